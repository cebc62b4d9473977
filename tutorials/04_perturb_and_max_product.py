# %% [markdown]
# # Perturb-and-max-product: sampling where Gibbs gets stuck
#
# Add suitable noise to the unary terms of a model and maximise: the maximum is approximately a
# sample. **Perturb-and-max-product** (PMP, Lázaro-Gredilla, Dedieu & George 2021) finds the maximum
# by max-product belief propagation, for all samples at once, in a fixed number of sweeps. It works
# on every discrete model of ebmlearn, including PGMax graphs with logical factors.
#
# We start with a model that we can solve exactly. Then we decompose pictures into unknown features,
# where Gibbs sampling would get stuck.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from pgmax import fgraph, fgroup, vgroup

import ebmlearn as ebm
from ebmlearn import datasets, plotting
from ebmlearn.pgmax import FactorGraphModel


# %% [markdown]
# ## When samples are exact
#
# Without edges the samples are exact; this is the Gumbel trick. With edges they are approximate.
# Here are four spins, all joined to each other: PMP exaggerates their coupling.

# %%
key = jax.random.key(0)
print(f"{'coupling':>8} {'exact':>8} {'PMP':>8}   share of rows with all four spins alike")
shares = {}
for coupling in (0.0, 0.1, 0.3, 0.5):
    spins = ebm.BoltzmannMachine.from_spins(coupling * (1 - jnp.eye(4)), jnp.zeros(4))
    drawn = np.asarray(ebm.sample(spins, ebm.PMP(100), 20_000, key=key).x)
    s = 2 * np.array(np.meshgrid(*[[0, 1]] * 4)).reshape(4, -1).T - 1
    p = np.exp(coupling * (s.sum(1) ** 2 - 4) / 2)
    exact = p[np.abs(s.sum(1)) == 4].sum() / p.sum()
    alike = np.mean(drawn.min(1) == drawn.max(1))
    shares[coupling] = exact, alike
    print(f"{coupling:8} {exact:8.3f} {alike:8.3f}")
assert abs(shares[0.0][0] - shares[0.0][1]) < 0.01
assert shares[0.5][1] > shares[0.5][0]

# %% [markdown]
# PMP therefore samples a slightly different model. This does not matter if PMP is also used for
# **learning**: `PMPLearner` finds parameters whose PMP samples look like the data. At a coupling of
# 0.33, PMP draws the samples that Gibbs draws at 0.5.
#
# ## Decomposing pictures
#
# Small pictures are made of features at several places; overlapping features are combined by OR.
# Given only the pictures, what are the features, and where are they? Both are unknown, features can
# be exchanged for each other, and each pixel depends on all of them.

# %%
true = np.array([[[1, 1, 1], [0, 1, 0], [0, 1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]])
data = datasets.binary_convolution(12, size=6, density=0.04, features=true)
plotting.images(data.images.reshape(12, -1), (6, 6), columns=12)

# %% [markdown]
# The graph describes how pictures are made. A feature lights a pixel of the picture if its own
# pixel and its place are both 1 (AND). A pixel of the picture is lit if any feature lights it (OR).

# %%
COUNT, SIDE = 2, 3
number, size, _ = data.images.shape
room = size - SIDE + 1
features = vgroup.NDVarArray(2, (COUNT, SIDE, SIDE))
places = vgroup.NDVarArray(2, (number, COUNT, room, room))
lights = vgroup.NDVarArray(2, (number, COUNT, room, room, SIDE, SIDE))
images = vgroup.NDVarArray(2, (number, size, size))

ands, ors = [], {}
for at in np.ndindex(*lights.shape):
    picture, feature, down, across, row, column = at
    ands.append(
        [places[picture, feature, down, across], features[feature, row, column], lights[at]]
    )
    ors.setdefault((picture, down + row, across + column), []).append(lights[at])
graph = fgraph.FactorGraph([features, places, lights, images])
graph.add_factors(fgroup.ANDFactorGroup(variables_for_factors=ands))
graph.add_factors(
    fgroup.ORFactorGroup(
        variables_for_factors=[[*parents, images[at]] for at, parents in ors.items()]
    )
)

# %% [markdown]
# Priors are evidence: the pixels of features tend to be dark, and placing a feature is costly, so
# pictures are explained by few features. The observed pixels are almost certain.

# %%
doubt = 230.0 * (2.0 * data.images - 1)
model = FactorGraphModel(graph).with_evidence(
    {
        features: np.array([0.0, -1.1]),
        places: np.array([0.0, -172.0]),
        images: np.stack([np.zeros(doubt.shape), doubt], -1),
    }
)
print(f"{model.num_variables:,} variables")
samples, info = ebm.sample_with_info(model, ebm.PMP(300), 10, key=key)
found, where = np.asarray(samples[features]), np.asarray(samples[places])

# %% [markdown]
# Every sample explains all pictures without an error. The features come in one order in some
# samples and in the other order in others: the samples cover both modes of the posterior.

# %%
plotting.images(found.swapaxes(0, 1).reshape(20, -1), (3, 3), columns=10)
explained = [
    bool((datasets.convolved(f, w, size) == data.images).all())
    for f, w in zip(found, where, strict=True)
]
first = (found[:, 0] == true[0]).all((1, 2))
print("explain all pictures:", sum(explained), "of 10; features in the first order:", first.sum())
assert all(explained) and np.isfinite(info.energy).all()
assert 0 < first.sum() < 10

# %% [markdown]
# `info` helps to judge a sample: its energy, which is infinite if a logical factor is violated,
# whether changing one variable would improve it, and how much the last sweep changed. A larger
# graph, with 100 pictures of 14×14 pixels and 1.5 million variables, is a benchmark:
# `python -m benchmarks pmp --task deconvolution`.
