from typing import Literal


# What messages do with the states of their sender: sum over them, or take the best; or the best of
# some units and the sum over the others.
Product = Literal["sum", "max", "mixed"]
# How messages are kept. Odds are faster, log-odds always exact; see `_edge.py`.
Form = Literal["odds", "log-odds"]
# Who sends in a sweep: the even layers, then the odd ones; or all at once.
Schedule = Literal["layers", "flooding"]
# The first messages: none in ±1 form, or none in {0, 1} form.
Start = Literal["centred", "plain"]
# How one end of a factor sends: it sums over its states, takes the best, or sends as if it were
# held at its likeliest state (the visible units of mixed-product to the hidden ones, Ping & Ihler
# 2017, eq. (15)); or each of its units in one of these ways.
Rule = Literal["sum", "max", "plug", "mixed"]
