# %% [markdown]
# # An RBM inside a PGMax graph
#
# [PGMax](https://github.com/google-deepmind/PGMax) builds factor graphs of discrete variables and
# passes messages on them. ebmlearn adds whole models as factor groups, and turns any graph into a
# model that can be trained. Here an RBM models the pixels of pictures, and logical factors define
# concepts on top of them. The graph is trained end to end from pixels alone, and then answers
# questions about concepts that were never labelled.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from pgmax import fgraph, fgroup, infer, vgroup

import ebmlearn as ebm
from ebmlearn import plotting
from ebmlearn.pgmax import FactorGraphModel, RBMFactorGroup


# %% [markdown]
# ## Pictures with concepts
#
# The pictures are horizontal bars on a 5×5 grid; most pixels of a bar are lit. A variable for each
# row says whether any of its pixels is lit (OR). One more variable says whether rows 1 and 5 are
# both lit, which we call a *frame* (AND).

# %%
SIDE, HIDDEN = 5, 6
pixels = vgroup.NDVarArray(num_states=2, shape=(SIDE, SIDE))
rows = vgroup.NDVarArray(num_states=2, shape=(SIDE,))
frame = vgroup.NDVarArray(num_states=2, shape=(1,))
hidden = vgroup.NDVarArray(num_states=2, shape=(HIDDEN,))

rng = np.random.default_rng(0)
graph = fgraph.FactorGraph([pixels, rows, frame, hidden])
rbm = RBMFactorGroup(pixels, hidden, 0.1 * rng.normal(size=(SIDE * SIDE, HIDDEN)))
graph.add_factors(rbm)
graph.add_factors(fgroup.ORFactorGroup([[*pixels[k, :], rows[k]] for k in range(SIDE)]))
graph.add_factors(fgroup.ANDFactorGroup([[rows[0], rows[4], frame[0]]]))
model = FactorGraphModel(graph)
print(model.num_variables, "variables")

# %% [markdown]
# In the data, rows 1 and 5 come together: both lit, or both dark.

# %%
bars = rng.integers(0, 2, (600, SIDE, 1))
bars[:, 4] = bars[:, 0]
pictures = np.repeat(bars, SIDE, axis=2) & (rng.random((600, SIDE, SIDE)) < 0.8)
plotting.images(pictures[:10].reshape(10, -1), (SIDE, SIDE))

# %% [markdown]
# ## Learning end to end
#
# `MLE` trains the whole graph with belief propagation: the pixels are observed, and everything else
# is summed out. The parameters are the weights of the RBM and the evidence of all variables;
# logical factors have none. `bp_arrays` would return the learned parameters to PGMax's inferers.

# %%
fitted = ebm.fit(
    model,
    ebm.MLE(ebm.BP(iterations=50, damping=0.3)),
    {pixels: pictures},
    optimizer=optax.adam(5e-3),
    epochs=25,
    batch_size=100,
    key=jax.random.key(1),
    progress=False,
)
learned = fitted.model
print("gap of energies, first and last epoch:", np.round(fitted.history.epochs["gap"][[0, -1]], 2))

# %% [markdown]
# ## Questions about concepts
#
# *The picture has a frame: what does it look like?* The data have no labels for frames. Evidence
# may be given for any group of variables, and the answer covers every group.

# %%
inference = ebm.BP(iterations=200, damping=0.5, tol=1e-4)
questions = {
    "a frame": {frame: np.array([1])},
    "no frame": {frame: np.array([0])},
    "row 1 is lit": {rows: np.array([1, -1, -1, -1, -1])},
    "row 1 is dark": {rows: np.array([0, -1, -1, -1, -1])},
    "rows 2 and 4 alone": {rows: np.array([0, 1, 0, 1, 0])},
}
figure, axes = plt.subplots(1, len(questions), figsize=(9, 2), layout="constrained")
answers = {}
for ax, (name, evidence) in zip(axes, questions.items(), strict=True):
    answers[name] = ebm.query(learned, evidence, inference=inference)
    plotting.marginals(answers[name][pixels][..., 1].ravel(), (SIDE, SIDE), ax=ax)
    ax.set_title(name, fontsize=9)
lit = {name: np.asarray(answer[pixels][..., 1].mean(1)) for name, answer in answers.items()}
for name, shares in lit.items():
    print(f"{name:20} lit by row: {np.round(shares, 2)}")

# %% [markdown]
# The RBM has learned that rows 1 and 5 go together. The logical factors say that a lit row has
# pixels and that a frame has two lit rows. The answer needs both parts.

# %%
assert lit["row 1 is lit"][4] > 2 * lit["row 1 is dark"][4]
assert lit["a frame"][[0, 4]].min() > 0.5
assert lit["rows 2 and 4 alone"][[0, 2, 4]].max() < 0.02

# %% [markdown]
# ## PGMax's own inference
#
# Training did not change the graph, and PGMax runs it like any other graph. `MatrixBP` is an
# inferer for PGMax that uses matrices for dense groups.

# %%
bp = infer.build_inferer(graph.bp_state, backend="bp")
arrays = bp.run(learned.bp_arrays(graph.bp_state), num_iters=200, damping=0.5, temperature=1.0)
marginals = infer.get_marginals(bp.get_beliefs(arrays))
ours = ebm.BP(iterations=200, damping=0.5, start="plain")(learned)  # as PGMax begins
gap = np.abs(np.asarray(marginals[pixels]) - np.asarray(ours[pixels])).max()
print(f"largest difference of a probability: {gap:.1e}")
assert gap < 1e-3
