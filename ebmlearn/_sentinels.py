"""The finite numbers that stand for infinity in all modules. They are finite so that the difference
of two of them is never NaN. They are ordered: LIMIT < HUGE < -LEAST.
"""

# Log-potentials and logarithms of likelihoods are cut to within this. Models learn nothing near it,
# and float32 still resolves 1/16 there.
LIMIT = 1e6
# The score of a state that evidence or a factor excludes: a log-potential of minus infinity. A sum
# of log-potentials below half of it is excluded.
EXCLUDED = -LIMIT
# Larger than any log-odds, and small enough to add a hundred million of them in float32.
HUGE = 1e30
# The log-odds of a unit held at 1. It is not LIMIT, because biases of binary units are not cut.
CLAMPED = HUGE
# The logarithm of an empty sum.
NOTHING = -HUGE
# The score of a state that a variable does not have, and the least value of a message; PGMax uses
# this number. It lies below NOTHING, which is a possible message.
LEAST = -1e32
