"""Random models, and what is true of them by enumeration of all units in float64 NumPy.

Nothing here uses the library beyond the parameters of its models.
"""

import itertools
from typing import Any, cast, NamedTuple

import equinox as eqx
import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm


# The place of this switch depends on the version of JAX.
x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else cast(Any, jax.experimental).enable_x64


class Flat(NamedTuple):
    """A pairwise model of any kind as one symmetric matrix and one vector."""

    couplings: np.ndarray
    bias: np.ndarray
    sizes: tuple[int, ...]

    def cut(self, x):
        """Cuts the last axis into layers."""
        return np.split(x, np.cumsum(self.sizes)[:-1], axis=-1)


def flat(model) -> Flat:
    if isinstance(model, ebm.BoltzmannMachine):
        blocks, biases = {(0, 0): model.couplings}, [model.bias]
    elif isinstance(model, ebm.DBM):
        blocks = {(k, k + 1): w for k, w in enumerate(model.weights)}
        biases = model.biases
    elif isinstance(model, ebm.LayeredModel):
        blocks, biases = dict(zip(model.joined, model.weights, strict=True)), model.biases
    else:
        blocks, biases = {(0, 1): model.weights}, [model.visible_bias, model.hidden_bias]
        if isinstance(model, ebm.SemiRestrictedBM):
            blocks[0, 0] = model.couplings
            if model.label_weights is not None:
                blocks[2, 1] = model.label_weights
                biases.append(model.label_bias)
    sizes = tuple(b.shape[-1] for b in biases)
    ends = np.cumsum((0, *sizes))
    couplings = np.zeros((ends[-1], ends[-1]))
    for (a, b), w in blocks.items():
        w = np.asarray(w, np.float64)
        couplings[ends[a] : ends[a + 1], ends[b] : ends[b + 1]] = w
        couplings[ends[b] : ends[b + 1], ends[a] : ends[a + 1]] = w.T
    return Flat(couplings, np.concatenate([np.asarray(b, np.float64) for b in biases]), sizes)


class Truth(NamedTuple):
    states: np.ndarray  # all configurations
    scores: np.ndarray  # their log-potentials
    log_z: float
    marginals: list[np.ndarray]
    pairwise: np.ndarray  # over all units


def seen(model, rows: np.ndarray):
    """Rows of `configurations` as users see states: integers by name, a label by its number."""
    parts = []
    for units, x in zip(model.layers, flat(model).cut(rows), strict=True):
        if isinstance(units, ebm.Categorical):
            x = x.reshape(len(x), units.size, units.states).argmax(-1)
        parts.append(jnp.asarray(x, jnp.int32))
    return model.named(parts)


def by_group(model, rows):
    """Rows of all variables of a graph, by group."""
    parts = np.split(np.asarray(rows), model.variables.ends[:-1], axis=-1)
    pairs = zip(parts, model.shapes, strict=True)
    return model.named([jnp.asarray(x.reshape(*x.shape[:-1], *shape)) for x, shape in pairs])


def configurations(model) -> np.ndarray:
    """All of them, label units one-hot, as they are inside."""
    f = flat(model)
    x = np.array(list(itertools.product((0, 1), repeat=f.bias.size)), np.float64)
    return x if len(f.sizes) < 3 or isinstance(model, ebm.DBM) else x[f.cut(x)[2].sum(1) == 1]


def truth(model, clamped: dict[int, int] | None = None, extra: Any = 0.0, temperature=1.0) -> Truth:
    """Enumerates. `clamped` fixes units by their number, `extra` is added to the bias."""
    f = flat(model)
    x = configurations(model)
    for unit, state in (clamped or {}).items():
        x = x[x[:, unit] == state]
    scores = (x @ (f.bias + extra) + np.einsum("si,ij,sj->s", x, f.couplings, x) / 2) / temperature
    log_z = float(np.logaddexp.reduce(scores))
    p = np.exp(scores - log_z)
    pairwise = np.einsum("s,si,sj->ij", p, x, x)
    return Truth(x, scores, log_z, f.cut(p @ x), pairwise)


def max_marginals(t: Truth) -> np.ndarray:
    """The best score with each unit at 1, less that with it at 0."""
    return np.array(
        [
            t.scores[t.states[:, i] == 1].max(initial=-np.inf)
            - t.scores[t.states[:, i] == 0].max(initial=-np.inf)
            for i in range(t.states.shape[1])
        ]
    )


def pair_blocks(model, matrix: np.ndarray):
    """Cuts a matrix over all units as `beliefs.pairwise` is cut."""
    sizes = flat(model).sizes
    ends = np.cumsum((0, *sizes))

    def block(a, b):
        return matrix[ends[a] : ends[a + 1], ends[b] : ends[b + 1]]

    if isinstance(model, ebm.BoltzmannMachine):
        return [block(0, 0)]
    if isinstance(model, ebm.SemiRestrictedBM):
        return [block(0, 1), block(0, 0)]
    return [block(k, k + 1) for k in range(len(sizes) - 1)]


def layers(units) -> list:
    """The layers of `Layers` or `Units`, in order."""
    if hasattr(units, "x"):
        return [units.x]
    hidden = units.hidden if isinstance(units.hidden, tuple) else (units.hidden,)
    return [units.visible, *hidden]


def arrays(pairwise) -> list:
    return list(pairwise) if isinstance(pairwise, tuple) else [pairwise]


def mapped(function, models) -> list:
    """What `function` makes of each model: compiled once, for all of them together."""
    stacked = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *models)
    found = jax.tree.map(np.asarray, eqx.filter_jit(eqx.filter_vmap(function))(stacked))
    return [jax.tree.map(lambda x, k=k: x[k], found) for k in range(len(models))]


def random_rbm(rng, visible=5, hidden=4, scale=1.0, bias=1.0, dtype="float32"):
    return ebm.RBM(
        jnp.asarray(scale * rng.normal(size=(visible, hidden)), dtype),
        jnp.asarray(bias * rng.normal(size=visible), dtype),
        jnp.asarray(bias * rng.normal(size=hidden), dtype),
    )


def random_dbm(rng, sizes=(3, 4, 2, 3), scale=1.0, bias=1.0, dtype="float32"):
    weights = [scale * rng.normal(size=shape) for shape in itertools.pairwise(sizes)]
    biases = [bias * rng.normal(size=n) for n in sizes]
    return ebm.DBM(
        [jnp.asarray(w, dtype) for w in weights], [jnp.asarray(b, dtype) for b in biases]
    )


def symmetric(rng, n, scale):
    upper = np.triu(scale * rng.normal(size=(n, n)), 1)
    return upper + upper.T


def random_boltzmann(rng, n=7, scale=1.0, bias=1.0, dtype="float32"):
    return ebm.BoltzmannMachine(
        jnp.asarray(symmetric(rng, n, scale), dtype), jnp.asarray(bias * rng.normal(size=n), dtype)
    )


def random_semi(rng, visible=4, hidden=3, scale=1.0, bias=1.0, dtype="float32"):
    return ebm.SemiRestrictedBM(
        jnp.asarray(scale * rng.normal(size=(visible, hidden)), dtype),
        jnp.asarray(symmetric(rng, visible, scale), dtype),
        jnp.asarray(bias * rng.normal(size=visible), dtype),
        jnp.asarray(bias * rng.normal(size=hidden), dtype),
    )


def random_labelled(rng, visible=3, hidden=2, labels=3, scale=1.0, dtype="float32"):
    plain = random_semi(rng, visible, hidden, scale, dtype=dtype)
    return ebm.SemiRestrictedBM(
        plain.weights,
        plain.couplings,
        plain.visible_bias,
        plain.hidden_bias,
        jnp.asarray(scale * rng.normal(size=(labels, hidden)), dtype),
        jnp.asarray(rng.normal(size=labels), dtype),
    )


MODELS = {
    "rbm": random_rbm,
    "wide_rbm": lambda rng, **kw: random_rbm(rng, 3, 6, **kw),
    "dbm": random_dbm,
    "boltzmann": random_boltzmann,
    "semi_restricted": random_semi,
}


# All of them in float64, where comparisons are sharp, and two in float32.
every_model = pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, "float64") for kind in MODELS), ("rbm", "float32"), ("semi_restricted", "float32")],
    indirect=["dtype"],
)


def random_tree_edges(rng, n: int) -> list[tuple[int, int]]:
    """The edges of a random tree."""
    return [(int(rng.integers(i)), i) for i in range(1, n)]


def random_tree_rbm(rng, visible: int, hidden: int, scale=1.5, dtype="float32"):
    """An RBM whose nonzero weights are the edges of a random spanning tree.

    **Returns:** the RBM, and which weights belong to the tree.
    """
    weights = np.zeros((visible, hidden))
    weights[0, 0] = scale * rng.normal()
    joined: tuple[list[int], list[int]] = [0], [0]
    rest = [(0, i) for i in range(1, visible)] + [(1, j) for j in range(1, hidden)]
    for k in rng.permutation(len(rest)):
        side, unit = rest[k]
        other = int(rng.choice(joined[1 - side]))
        weights[(unit, other) if side == 0 else (other, unit)] = scale * rng.normal()
        joined[side].append(unit)
    rbm = ebm.RBM(
        jnp.asarray(weights, dtype),
        jnp.asarray(rng.normal(size=visible), dtype),
        jnp.asarray(rng.normal(size=hidden), dtype),
    )
    return rbm, weights != 0


def random_tree_boltzmann(rng, n: int, scale=1.5, dtype="float32"):
    couplings = np.zeros((n, n))
    for i, j in random_tree_edges(rng, n):
        couplings[i, j] = couplings[j, i] = scale * rng.normal()
    return ebm.BoltzmannMachine(
        jnp.asarray(couplings, dtype), jnp.asarray(rng.normal(size=n), dtype)
    ), couplings != 0
