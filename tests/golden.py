"""Golden values: what version 0.1.0 computed on small fixed inputs, by named cases.

`python tests/golden.py --write` writes the values of all cases and the saved models anew, into the
folder `golden_0_1`, and `--write CASE ...` those of some cases; `test_golden.py` compares with
them. Written anew since, because the library draws other random numbers of the same distribution:
samples of PMP on graphs, one logistic number a binary variable, and those of `SamplerBlock`. The
names of cases and of their leaves belong to this file: where a class or an attribute of the library
gets another name, the functions here change and the data stays.

A case is a function without arguments that gives a tree of dictionaries, modules and arrays.
Numbers are compared to within `tol`, both absolute and relative; integers and booleans exactly.
Inference and gradients run in float64, where 1e-6 is wide enough for sums in another order. Samples
and training run in float32, as for most users.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from untyped import nd_var_array

import ebmlearn as ebm
from ebmlearn.models import Statistics
from ebmlearn.units import erfcx, log_ndtr


FOLDER = Path(__file__).parent / "golden_0_1"
VALUES = FOLDER / "values.npz"
# Of float32: sums of some ten terms, and the quantiles that real numbers are drawn by.
SINGLE = 1e-5
# Of the place of this switch, see `oracle.py`.
x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else cast(Any, jax).experimental.enable_x64


class Case(NamedTuple):
    function: Callable[[], Any]
    tol: float
    double: bool


CASES: dict[str, Case] = {}


def add(name: str, function: Callable, *args: Any, tol: float = 1e-6, double: bool = True) -> None:
    assert name not in CASES
    CASES[name] = Case(functools.partial(function, *args), tol, double)


def run(name: str) -> dict[str, np.ndarray]:
    """The leaves of a case, by name. PGMax and NumPyro are not written for strict promotion."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(x64(CASES[name].double))
        if any(word in name for word in ("graph", "numpyro", "pgmax")):
            stack.enter_context(jax.numpy_dtype_promotion("standard"))
            stack.enter_context(jax.numpy_rank_promotion("allow"))
        return dict(_leaves(CASES[name].function()))


def _leaves(tree: Any, name: str = ""):
    """Names and arrays: of what is a module or a named tuple, by the names of its fields."""
    if isinstance(tree, eqx.Module):
        tree = fields(tree)
    elif hasattr(tree, "_asdict"):
        tree = tree._asdict()
    elif isinstance(tree, (tuple, list)):
        tree = {str(k + 1): x for k, x in enumerate(tree)}
    if isinstance(tree, dict):
        for key, x in tree.items():
            yield from _leaves(x, f"{name}.{key}" if name else key)
    elif tree is not None and not isinstance(tree, str):
        x = np.asarray(tree)
        yield name, x.astype(np.int16) if np.issubdtype(x.dtype, np.integer) else x


def fields(module: Any) -> dict[str, Any]:
    """What a module holds."""
    return {x.name: getattr(module, x.name) for x in dataclasses.fields(module)}


# Inputs


def key(seed: int = 0) -> Any:
    return jax.random.key(seed)


def normal(seed: int, *shapes: Any, scale: float = 1.0) -> list:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(scale * rng.normal(size=shape)) for shape in shapes]


def bits(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (rows, columns)).astype(np.uint8)


def symmetric(seed: int, n: int) -> Any:
    upper = np.triu(np.random.default_rng(seed).normal(size=(n, n)), 1)
    return jnp.asarray(upper + upper.T)


def rbm(scale: float = 1.0) -> Any:
    return ebm.RBM(*normal(1, (5, 4), 5, 4, scale=scale))


def dbm() -> Any:
    w1, w2, a, b, c = normal(2, (4, 3), (3, 2), 4, 3, 2)
    return ebm.DBM([w1, w2], [a, b, c])


def boltzmann() -> Any:
    return ebm.BoltzmannMachine(symmetric(3, 5), *normal(4, 5))


def semi() -> Any:
    weights, visible, hidden = normal(5, (4, 3), 4, 3)
    return ebm.SemiRestrictedBM(weights, symmetric(6, 4), visible, hidden)


def labelled() -> Any:
    weights, visible, hidden, label_weights, label_bias = normal(7, (4, 3), 4, 3, (3, 3), 3)
    return ebm.SemiRestrictedBM(
        weights, symmetric(8, 4), visible, hidden, label_weights, label_bias
    )


def crbm() -> Any:
    return ebm.CRBM(*normal(9, (4, 3), (4, 2), (3, 2), 4, 3))


def gaussian() -> Any:
    return ebm.GaussianRBM(*normal(10, (4, 3), 4, 3, 4, scale=0.5))


def nnbm() -> Any:
    couplings = [[1.0, 0.3, -0.2], [0.3, 1.3, 0.1], [-0.2, 0.1, 0.8]]
    return ebm.NNBM(jnp.asarray(couplings), jnp.asarray([0.3, -0.2, 0.5]))


def sparse_nnbm() -> Any:
    """A chain of four."""
    mask = np.eye(4, k=1, dtype=bool) | np.eye(4, k=-1, dtype=bool)
    couplings, bias = np.eye(4) + 0.2 * mask, np.array([0.3, -0.2, 0.5, 0.1])
    return ebm.NNBM(jnp.asarray(couplings), jnp.asarray(bias), mask)


def grid() -> Any:
    *tables, bias, pixels = normal(11, (3, 3), (3, 3), (3, 3), (3, 3), 3, (3, 2), scale=0.7)
    emissions = {"pixels": jax.nn.log_softmax(pixels, axis=1)}
    return ebm.GridMRF(*tables, shape=(2, 3), bias=bias, emissions=emissions)


class Graph:
    """Variables of two states and of three; a dense group, pairs, listed configurations, OR."""

    def __init__(self):
        from pgmax import fgraph, fgroup

        import ebmlearn.pgmax as plugin

        rng = np.random.default_rng(12)
        a, b = (nd_var_array(num_states=2, shape=(n,)) for n in (3, 2))
        c = nd_var_array(num_states=3, shape=(2,))
        self.groups = {"a": a, "b": b, "c": c}
        self.graph = fgraph.FactorGraph([a, b, c])
        self.graph.add_factors(plugin.RBMFactorGroup(a, b, rng.normal(size=(3, 2))))
        self.graph.add_factors(
            fgroup.PairwiseFactorGroup(
                variables_for_factors=[[a[0], c[0]], [b[1], c[1]]],
                log_potential_matrix=rng.normal(size=(2, 2, 3)),
            )
        )
        self.graph.add_factors(
            fgroup.EnumFactorGroup(
                variables_for_factors=[[c[0], c[1]]],
                factor_configs=np.array([[0, 0], [1, 1], [2, 0], [2, 2], [0, 1]]),
                log_potentials=rng.normal(size=5),
            )
        )
        self.graph.add_factors(fgroup.ORFactorGroup([[a[1], a[2], b[0]]]))
        self.evidence = {
            group: rng.normal(size=(*group.shape, int(group.num_states.max())))
            for group in self.groups.values()
        }
        self.model = plugin.FactorGraphModel(self.graph).with_evidence(self.evidence)

    def by_name(self, named: Any) -> dict[str, Any]:
        return {name: named[group] for name, group in self.groups.items()}

    def by_group(self, named: dict[str, Any]) -> dict[Any, Any]:
        return {self.groups[name]: x for name, x in named.items()}


LAYERED = {"rbm": rbm, "dbm": dbm, "boltzmann": boltzmann, "semi": semi}
MODELS = LAYERED | {
    "labelled": labelled, "crbm": crbm, "gaussian": gaussian, "nnbm": nnbm, "grid": grid,
}  # fmt: skip


def width(model: Any) -> int:
    """How many visible units."""
    plain = model.centred if isinstance(model, ebm.QueryModel) else model
    return plain.unary()[0].shape[-1]


def data(name: str, model: Any, rows: int = 4) -> Any:
    """A batch for a learner."""
    rng = np.random.default_rng(20)
    if name == "crbm":
        return rng.normal(size=(rows, 2)).astype(model.weights.dtype), bits(rows, 4)
    if name == "labelled":
        return bits(rows, 4), rng.integers(0, 3, rows)
    if name in ("gaussian", "nnbm", "sparse_nnbm"):
        dtype = jax.tree.leaves(model)[0].dtype
        return np.abs(rng.normal(size=(rows, width(model)))).astype(dtype)
    if name == "grid":
        shape = (rows, 2, 3)
        return {"pixels": rng.integers(0, 2, shape), "state": rng.integers(-1, 3, shape)}
    return bits(rows, width(model))


GRAPH_ROWS = {
    "a": np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]]),
    "b": np.array([[1, 0], [0, 1], [1, 1]]),
    "c": np.array([[0, 1], [2, 2], [1, 1]]),
}
GRAPH_EVIDENCE = {"a": np.array([[-1, -1, -1], [1, -1, 0]]), "c": np.array([[-1, -1], [2, -1]])}


def evidence(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two rows: nothing observed, and some units, one of them by a likelihood or a real number."""
    n = width(model)
    observed = np.zeros((2, n), bool)
    observed[1, [0, 1, 3]] = True
    x = np.zeros((2, n), model.unary()[0].dtype)
    x[:, 0], x[:, 3] = 1, 0.3
    return x, observed


# What the library gives, by names of ours


def units(x: Any) -> dict[str, Any]:
    """States or probabilities of the units of a layered model, by layer."""
    if hasattr(x, "x"):
        return {"x": x.x}
    if isinstance(x.hidden, tuple):
        out = {"visible": x.visible} | {f"hidden_{k + 1}": h for k, h in enumerate(x.hidden)}
    else:
        out = {"visible": x.visible, "hidden": x.hidden}
    if hasattr(x, "label"):
        # Version 0.1.0 had one-hot labels.
        out["label"] = np.eye(3, dtype=np.int32)[np.asarray(x.label)[..., 0]]
    return out


def parameters(model: Any) -> Any:
    """Of a model, or a gradient in the shape of one."""
    if hasattr(model, "factor_groups"):
        return {"log_potentials": model.log_potentials, "evidence": model.evidence}
    if isinstance(model, ebm.QueryModel):
        numbers = {k: getattr(model, k) for k in ("log_temperature", "log_scale", "log_strength")}
        return {"centred": parameters(model.centred), **numbers}
    settings = ("edges", "channels", "shape", "learned")
    return {k: x for k, x in fields(model).items() if k not in settings}


def report(x: Any) -> Any:
    """Converged or not, how many sweeps, and the last change."""
    return np.stack([np.asarray(y, float) for y in (x.converged, x.iterations, x.residual)])


def beliefs(inference: Any, make: Callable, with_evidence: bool = True) -> dict[str, Any]:
    model = make()
    found = inference(model, *(evidence(model) if with_evidence else ()))
    out = {"log_partition": found.log_partition, "decode": units(found.decode())}
    # Several messages reach the bound of MPLP.
    if isinstance(inference, ebm.MPLP):
        return out
    probability = units(jax.tree.map(jax.nn.sigmoid, found.log_odds))
    return out | {"probability": probability, "report": report(found), "pairwise": found.pairwise}


def real_beliefs(inference: Any, make: Callable) -> dict[str, Any]:
    """Of Gaussian or nonnegative units."""
    model = make()
    found = inference(model, *(evidence(model) if make is gaussian else ()))
    names = ("mean", "variance", "covariance", "log_partition")
    if make is gaussian:
        names = ("mean", "variance", "hidden", "guarded")
    return {k: getattr(found, k) for k in names} | {"report": report(found)}


def grid_beliefs(inference: Any) -> dict[str, Any]:
    states = np.full((2, 2, 3), -1)
    states[1, 0, 1] = 2
    pixels = np.full((2, 2, 3), -1)
    pixels[1] = [[0, 1, -1], [-1, 1, 0]]
    found = inference(grid(), {"state": states, "pixels": pixels})
    return {
        "marginals": {k: found.marginals[k] for k in ("state", "pixels")},
        "decode": {k: found.decode()[k] for k in ("state", "pixels")},
        "pairs": {k: found.pairwise[k] for k in ("down", "antidiagonal")},
        "log_partition": found.log_partition,
        "report": report(found),
    }


def graph_beliefs(inference: Any) -> dict[str, Any]:
    graph = Graph()
    found = inference(graph.model, graph.by_group(GRAPH_EVIDENCE))
    return {
        "marginals": graph.by_name(found.marginals),
        "decode": graph.by_name(found.decode()),
        "factors": found.pairwise.values,
        "log_partition": found.log_partition,
        "report": report(found),
    }


for kind, make in LAYERED.items():
    for name, inference in {
        "bp": ebm.BP(5),
        "bp_max": ebm.BP(5, product="max"),
        "mean_field": ebm.MeanField(5),
        "exact": ebm.Exact(),
    }.items():
        add(f"beliefs-{kind}-{name}", beliefs, inference, make)
    add(f"beliefs-{kind}-mplp", beliefs, ebm.MPLP(1000), make, False)
for name, inference in {
    "bp_mixed": ebm.BP(5, product="mixed"),
    "bp_damped": ebm.BP(5, damping=0.3, start="plain"),
    "bp_flooding": ebm.BP(5, schedule="flooding"),
    "bp_temperature": ebm.BP(5, temperature=0.5),
    "bp_tol": ebm.BP(200, tol=1e-4, damping=0.2),
    "bp_unrolled": ebm.BP(5, unroll=True),
    "mean_field_tol": ebm.MeanField(200, damping=0.2, tol=1e-4),
    "exact_max": ebm.Exact(product="max"),
    "exact_mixed": ebm.Exact(product="mixed"),
}.items():
    add(f"beliefs-rbm-{name}", beliefs, inference, rbm)
add("beliefs-dbm-bp_mixed", beliefs, ebm.BP(5, product="mixed"), dbm)
# Weights too large for messages as odds.
large = functools.partial(rbm, 12.0)
for name, inference in {
    "bp": ebm.BP(10),
    "bp_max": ebm.BP(10, product="max"),
    "bp_damped": ebm.BP(10, damping=0.5, schedule="flooding"),
    "exact": ebm.Exact(),
}.items():
    add(f"beliefs-large_rbm-{name}", beliefs, inference, large)
add("beliefs-rbm-bp-no_evidence", beliefs, ebm.BP(5), rbm, False)
add("beliefs-rbm-bp-float32", beliefs, ebm.BP(5), rbm, tol=SINGLE, double=False)
add("beliefs-rbm-exact-float32", beliefs, ebm.Exact(), rbm, tol=SINGLE, double=False)
for name, inference in {
    "bp": ebm.BP(5),
    "bp_tol": ebm.BP(200, tol=1e-4, damping=0.2),
    "bp_flooding": ebm.BP(5, schedule="flooding"),
    "exact": ebm.Exact(),
}.items():
    add(f"beliefs-gaussian-{name}", real_beliefs, inference, gaussian)
for name, inference in {
    "mean_field": ebm.NaiveMeanField(),
    "tap": ebm.TAP(),
    "susp": ebm.SusP(),
    "isusp": ebm.ISusP(),
}.items():
    add(f"beliefs-nnbm-{name}", real_beliefs, inference, nnbm)
add("beliefs-nnbm-exact", real_beliefs, ebm.Exact(), nnbm)
add("beliefs-sparse_nnbm-propagation", real_beliefs, ebm.ISusP(method="propagation"), sparse_nnbm)
for name, inference in {
    "bp": ebm.BP(5),
    "bp_max": ebm.BP(5, product="max"),
    "exact": ebm.Exact(),
}.items():
    add(f"beliefs-grid-{name}", grid_beliefs, inference)
    add(f"beliefs-graph-{name}", graph_beliefs, inference)
add("beliefs-grid-bp_temperature", grid_beliefs, ebm.BP(5, temperature=0.5, damping=0.3))


# Models


def energies(make: Callable) -> dict[str, Any]:
    model = make()
    n = width(model)
    v = data("gaussian", model, 3) if make in (gaussian, nnbm) else bits(3, n)
    out = {"tempered": parameters(model.tempered(0.5))}
    if make in (boltzmann, nnbm):
        return out | {"energy": model.energy(v), "unit_given": model.unit_given(v)}
    if make is dbm:
        h = [bits(3, 3, 1), bits(3, 2, 2)]
        given = [model.layer_given(k, v, h) for k in range(3)]
        return out | {"energy": model.energy(v, h), "layer_given": given}
    label = [np.array([0, 2, 1])] if make is labelled else []
    h = bits(3, model.num_hidden, 1)
    given = model.visible_given(v, h) if make in (semi, labelled) else model.visible_given(h)
    return out | {
        "energy": model.energy(v, h, *label),
        "free_energy": model.free_energy(v, *label),
        "hidden_given": model.hidden_given(v, *label),
        "visible_given": given,
    }


def initial(name: str) -> dict[str, Any]:
    sizes = {
        "rbm": (5, 4), "dbm": (4, [3, 2]), "boltzmann": (5,), "semi": (4, 3), "labelled": (4, 3, 3),
        "crbm": (4, 3, 2), "gaussian": (4, 3), "nnbm": (3,), "grid": ((2, 3), 3),
    }  # fmt: skip
    return parameters(type(MODELS[name]()).init(*sizes[name], key=key()))


def conditioned() -> dict[str, Any]:
    model = crbm()
    x, v = data("crbm", model, 3)
    h = bits(3, 3, 1)
    return {
        "condition": parameters(model.condition(x)),
        "energy": model.energy(v, h, x),
        "free_energy": model.free_energy(v, x),
        "hidden_given": model.hidden_given(v, x),
        "visible_given": model.visible_given(h, x),
    }


def spins() -> dict[str, Any]:
    return {
        name: {"to": to, "back": parameters(type(make()).from_spins(*to))}
        for name, make in LAYERED.items()
        for to in [make().to_spins()]
    }


def graph_energies() -> dict[str, Any]:
    graph = Graph()
    states = np.random.default_rng(0).integers(0, 3, (2, 2, 3))
    pixels = np.random.default_rng(1).integers(0, 2, (2, 2, 3))
    return {
        "grid": grid().energy({"state": states, "pixels": pixels}),
        "graph": graph.model.energy(graph.by_group(GRAPH_ROWS)),
    }


def stack() -> dict[str, Any]:
    up = ebm.models.Stack([gaussian(), ebm.RBM(*normal(13, (3, 2), 3, 2))])
    v = data("gaussian", gaussian(), 3)
    return {
        "activities": up.activities(v),
        "drawn": up.activities(v, key=key()),
        "down": up.down(up.activities(v)),
    }


def special() -> dict[str, Any]:
    z = jnp.asarray([-20.0, -5.0, -1.0, 0.0, 0.5, 4.0, 30.0])
    return {"erfcx": erfcx(jnp.abs(z)), "log_ndtr": log_ndtr(z)}


def others() -> dict[str, Any]:
    centre = ebm.Layers(jnp.full(5, 0.3), jnp.full(4, 0.6))
    wrong = jnp.asarray([[1.0, -3, 0], [-3, 1, 0], [0, 0, 1]])
    return {
        "uncentred": parameters(rbm().uncentred(centre)),
        "hidden_marginal": parameters(gaussian().hidden_marginal()),
        "log_volume": gaussian().log_volume,
        "label_given": labelled().label_given(bits(3, 4)),
        "to_rbm": parameters(dbm().to_rbm()),
        "projected": parameters(eqx.tree_at(lambda m: m.couplings, nnbm(), wrong).project()),
    }


for kind in MODELS:
    add(f"init-{kind}", initial, kind, double=False)
for kind in ("rbm", "dbm", "boltzmann", "semi", "labelled", "gaussian", "nnbm"):
    add(f"energies-{kind}", energies, MODELS[kind])
add("energies-crbm", conditioned)
add("energies-graphs", graph_energies)
add("models-spins", spins)
add("models-stack", stack)
add("models-special", special, tol=1e-9)
add("models-others", others)


# Gradients


def facts(info: Any) -> np.ndarray:
    """Loss, gap, converged, iterations and accepted. 0.1.0 called learners converged that iterate
    nothing, where it is NaN now.
    """
    found = np.stack([np.asarray(x, float) for x in info])
    found[2] = np.where(np.isnan(found[2]), 1.0, found[2])
    return found


def gradient(name: str, make: Callable, learner: Any, steps: int = 1) -> dict[str, Any]:
    """That of the last step, and where chains are then."""
    model = make()
    batch = data(name, model)
    state = learner.init(model, key=key(1))
    found, info = None, ()
    for k in range(steps):
        found, state, info = learner.step(model, state, batch, key=key(2 + k), epoch=0)
    out = {"gradient": parameters(found), "info": facts(info)}
    chains = getattr(state, "chains", state)
    if hasattr(chains, "units"):
        out["chains"] = units(chains.units)
    return out


def query_model(name: str) -> Any:
    model = MODELS[name]()
    return ebm.QueryModel(model, 2, temperature=1.0 if name == "gaussian" else 0.8, scale=2.0)


def graph_gradient(learner: Any) -> dict[str, Any]:
    graph = Graph()
    batch = graph.by_group(GRAPH_ROWS)
    found, _, info = learner.step(graph.model, None, batch, key=key(2), epoch=0)
    return {"gradient": parameters(found), "info": facts(info)}


LEARNERS = {
    "mle_bp": (ebm.MLE(ebm.BP(5)), "rbm dbm boltzmann semi crbm grid"),
    "mle_exact": (ebm.MLE(ebm.Exact(), loss=True), "rbm dbm boltzmann semi crbm nnbm"),
    "mle_mean_field": (ebm.MLE(ebm.MeanField(5)), "rbm dbm semi crbm"),
    "mle_centred": (ebm.MLE(ebm.Exact(), centred=True, weight_decay=0.1), "semi crbm"),
    "mle_nnbm_mean_field": (ebm.MLE(ebm.NaiveMeanField()), "nnbm"),
    "mle_tap": (ebm.MLE(ebm.TAP()), "nnbm sparse_nnbm"),
    "mle_susp": (ebm.MLE(ebm.SusP()), "nnbm"),
    "mle_isusp": (ebm.MLE(ebm.ISusP()), "nnbm"),
    "mssvm_bp": (ebm.MSSVM(ebm.BP(5, product="mixed")), "rbm crbm"),
    "mssvm_exact": (ebm.MSSVM(ebm.Exact(product="mixed")), "dbm crbm"),
    "lssvm_bp": (ebm.LSSVM(ebm.BP(5, product="max")), "rbm boltzmann semi crbm"),
    "lssvm_exact": (ebm.LSSVM(ebm.Exact(product="max")), "dbm crbm"),
    "cd": (ebm.CD(2), "rbm dbm crbm gaussian"),
    "cd_random": (ebm.CD(1, start="random"), "crbm gaussian"),
    "perc_loss": (ebm.PercLoss(3), "rbm crbm"),
    "pseudo_likelihood": (ebm.PseudoLikelihood(), "rbm boltzmann semi crbm"),
    "pmp": (ebm.PMPLearner(ebm.PMP(5)), "rbm dbm boltzmann semi crbm grid"),
    "pmp_sampled": (ebm.PMPLearner(ebm.PMP(5), hidden="sampled"), "rbm"),
}
STATEFUL = {
    "sap": (ebm.SAP(num_chains=4), "rbm dbm boltzmann semi labelled gaussian nnbm"),
    "sap_short": (ebm.SAP(num_chains=4, steps=2, persistent=False), "rbm"),
    "sap_parallel": (ebm.SAP(ebm.ParallelTempering([0.5, 1.0]), num_chains=4), "rbm"),
    "trans_sap": (
        ebm.TransSAP([0.5, 0.8, 1.0], every=2, num_chains=4),
        "rbm dbm boltzmann labelled nnbm",
    ),
    "mcmc_mle": (ebm.MCMCMLE(num_chains=4, steps=3), "rbm dbm boltzmann labelled"),
    "pmp_renewal": (ebm.PMPLearner(ebm.PMP(5, renewal=0.5), num_chains=4), "rbm"),
}
NAMED = MODELS | {"sparse_nnbm": sparse_nnbm}
for table, steps in ((LEARNERS, 1), (STATEFUL, 2)):
    for name, (learner, kinds) in table.items():
        for kind in kinds.split():
            add(f"gradient-{kind}-{name}", gradient, kind, NAMED[kind], learner, steps)
for name, learner in {
    "mle_bp": ebm.MLE(ebm.BP(5)),
    "pmp": ebm.PMPLearner(ebm.PMP(5)),
}.items():
    add(f"gradient-graph-{name}", graph_gradient, learner)
learner = ebm.MLE(ebm.BP(5))
add("gradient-crbm-mle_bp-float32", gradient, "crbm", crbm, learner, tol=SINGLE, double=False)
ASKED = ebm.QueryTraining(ebm.queries.RandomTargets(0.5))
PIXELS = ebm.QueryTraining(ebm.queries.RandomTargets(0.5, groups=["pixels"]))
for kind in ("rbm", "dbm", "boltzmann", "gaussian", "grid"):
    ask = functools.partial(query_model, kind)
    add(f"gradient-{kind}-query_training", gradient, kind, ask, PIXELS if kind == "grid" else ASKED)


def moments(inference: Any) -> dict[str, Any]:
    mean = np.array([0.9, 0.6, 1.0])
    spread = np.array([[0.35, -0.05, 0.06], [-0.05, 0.2, -0.02], [0.06, -0.02, 0.4]])
    products = jnp.asarray(spread + np.outer(mean, mean))
    given = Statistics(
        ebm.models.Units(jnp.asarray(mean)), products, (jnp.diagonal(products),),
        jnp.asarray(True), jnp.asarray(0), jnp.asarray(0.0),
    )  # fmt: skip
    match = ebm.learners.solve_moments(given, inference)
    return {"model": parameters(match.model), "report": report(match)}


for name, inference in {"tap": ebm.TAP(), "susp": ebm.SusP(), "isusp": ebm.ISusP()}.items():
    # As far as the steps of Newton's method go.
    add(f"moments-nnbm-{name}", moments, inference, tol=1e-5)


# Samples


def samples(make: Callable, sampler: Any) -> dict[str, Any]:
    model = make()
    found, info = ebm.sample_with_info(
        model, sampler, 6, key=key(), num_chains=3, burn_in=1, thin=2
    )
    return {"samples": units(found), "info": info}


def chains(make: Callable, sampler: Any) -> dict[str, Any]:
    """By hand; those of the RBM begin at given states, and some units are held."""
    model, options = make(), {}
    if make is rbm:
        options = dict(
            start=ebm.Layers(jnp.asarray([1, 0, 1, 1, 0]), jnp.asarray([0, 1, 0, 1])),
            clamped=ebm.Layers(jnp.asarray([True, False, False, True, False]), None),
        )
    state = sampler.init(model, 3, key=key(), **options)
    begin, info = units(state.units), None
    for k in range(2):
        state, info = sampler.step(model, state, key=key(k))
    return {"begin": begin, "end": units(state.units), "info": info}


def conditioned_rbm() -> Any:
    return crbm().condition(data("crbm", crbm(), 3)[0])


def graph_samples() -> dict[str, Any]:
    graph = Graph()
    on_graph, info = ebm.sample_with_info(graph.model, ebm.PMP(5), 4, key=key())
    on_grid = ebm.sample(grid(), ebm.PMP(5), 4, key=key())
    return {
        "graph": graph.by_name(on_graph),
        "info": info,
        "grid": {k: on_grid[k] for k in ("state", "pixels")},
    }


SAMPLERS = {
    "gibbs": (ebm.Gibbs(), "rbm dbm boltzmann semi labelled conditioned gaussian nnbm sparse_nnbm"),
    "gibbs_hot": (ebm.Gibbs(0.5), "dbm"),
    "gradients": (ebm.GibbsWithGradients(2), "rbm dbm boltzmann semi conditioned"),
    "parallel": (
        ebm.ParallelTempering([0.4, 0.7, 1.0]),
        "rbm dbm labelled conditioned gaussian nnbm",
    ),
    "tempered": (
        ebm.TemperedTransitions([0.5, 0.75, 1.0]),
        "rbm dbm labelled conditioned gaussian nnbm",
    ),
    "pmp": (ebm.PMP(5), "rbm dbm boltzmann semi conditioned"),
    "pmp_renewal": (ebm.PMP(5, renewal=0.5), "rbm boltzmann"),
}
SAMPLED = NAMED | {"conditioned": conditioned_rbm}
REAL = ("gaussian", "nnbm", "sparse_nnbm")
for name, (sampler, kinds) in SAMPLERS.items():
    for kind in kinds.split():
        # Real numbers in float64, to compare them as sharply as bits.
        options: dict[str, Any] = {} if kind in REAL else dict(tol=SINGLE, double=False)
        add(f"chains-{kind}-{name}", chains, SAMPLED[kind], sampler, **options)
for kind, name in (
    ("rbm", "gibbs"), ("dbm", "parallel"), ("gaussian", "gibbs"), ("nnbm", "gibbs"),
):  # fmt: skip
    add(
        f"samples-{kind}-{name}", samples, MODELS[kind], SAMPLERS[name][0], tol=SINGLE, double=False
    )
add("samples-graphs-pmp", graph_samples, tol=SINGLE, double=False)


def adapted() -> dict[str, Any]:
    first = ebm.ParallelTempering([0.0, 0.1, 0.2, 1.0])
    found = ebm.adapt_ladder(rbm(), first, key=key(), num_chains=5, steps=5, rounds=1)
    x = np.cumsum(np.random.default_rng(0).normal(size=(50, 3)), axis=0)
    return {
        "betas": np.asarray(found.betas),
        "autocorrelation_time": ebm.samplers.autocorrelation_time(x),
        "singular_values": ebm.samplers.singular_values(semi()),
    }


add("samples-diagnostics", adapted, tol=1e-4, double=False)


# Queries


def answers(name: str) -> dict[str, Any]:
    """Of a plain model, and of one that brings its own inference."""
    plain, own = MODELS[name](), query_model(name)
    x, observed = evidence(plain)
    out = {
        "bp": ebm.query(plain, x, observed, inference=ebm.BP(5)),
        "exact": ebm.query(plain, x, observed, inference=ebm.Exact()),
        "own": ebm.query(own, x, observed),
    }
    if name != "gaussian":
        out["joint"] = ebm.joint_query(plain, x, observed & False, ebm.BP(5), [2, 4 % width(plain)])
        out["own_joint"] = ebm.joint_query(own, x, observed, targets=[2])
    return out


def graph_answers() -> dict[str, Any]:
    graph = Graph()
    plain, own = graph.model, ebm.QueryModel(graph.model, 2)
    given = graph.by_group({"a": GRAPH_EVIDENCE["a"]})
    targets = [(graph.groups["b"], 0), (graph.groups["c"], 1)]
    square = {"pixels": np.array([[0, 1, -1], [-1, 1, 0]])}
    return {
        "bp": graph.by_name(ebm.query(plain, given, inference=ebm.BP(5))),
        "own": graph.by_name(ebm.query(own, given)),
        "joint": ebm.joint_query(plain, given, inference=ebm.BP(5), targets=targets),
        "grid": ebm.query(grid(), square, inference=ebm.BP(5), targets="state"),
        "own_grid": ebm.query(query_model("grid"), square, targets="state"),
    }


def drawn_queries() -> dict[str, Any]:
    mask = np.array([True, True, False, False, False])
    kinds = {
        "random": ebm.queries.RandomTargets(0.4),
        "count": ebm.queries.TargetCount(2),
        "one": ebm.queries.LeaveOneOut(),
        "block": ebm.queries.BlockTargets((1, 5), (1, 2)),
        "fixed": ebm.queries.FixedTargets(mask, ~mask),
        "mixed": ebm.queries.MixedTargets([ebm.queries.TargetCount(1), ebm.queries.TargetCount(3)]),
    }
    return {name: kind(rbm(), 4, key=key()) for name, kind in kinds.items()}


for kind in ("rbm", "dbm", "boltzmann", "semi", "gaussian"):
    add(f"query-{kind}", answers, kind)
add("query-graphs", graph_answers)
add("query-drawn", drawn_queries)


# Estimates


def annealed(make: Callable) -> dict[str, Any]:
    model = make()
    base = jnp.linspace(-1, 1, width(model), dtype=model.unary()[0].dtype)
    there = ebm.ais(model, key=key(), betas=5, num_chains=4, base=base)
    layers = [jnp.asarray(bits(4, b.shape[-1], k), jnp.int32) for k, b in enumerate(model.unary())]
    if make is labelled:
        layers[2] = jnp.asarray([[0], [2], [1], [2]])
    back = ebm.reverse_ais(model, model.named(tuple(layers)), key=key(), betas=5)
    # The numbers of steps are newer than these values.
    found = {"ais": vars(there), "reverse": vars(back)}
    return {k: {name: x[name] for name in x if name != "steps"} for k, x in found.items()}


def likelihoods() -> dict[str, Any]:
    v = bits(3, 4)
    return {
        "rbm": ebm.log_likelihood(rbm(), bits(3, 5), 7.0),
        "boltzmann": ebm.log_likelihood(boltzmann(), bits(3, 5), 7.0),
        "semi": ebm.log_likelihood(semi(), v, 7.0),
        "labelled": ebm.log_likelihood(labelled(), (v, np.array([0, 2, 1])), 7.0),
        "gaussian": ebm.log_likelihood(gaussian(), data("gaussian", gaussian(), 3), 7.0),
        "pseudo_rbm": ebm.pseudo_log_likelihood(rbm(), bits(3, 5)),
        "pseudo_boltzmann": ebm.pseudo_log_likelihood(boltzmann(), bits(3, 5)),
        "pseudo_semi": ebm.pseudo_log_likelihood(semi(), v),
        "base_rate": ebm.estimate.base_rate(v),
        "mmd": ebm.estimate.mmd(bits(5, 4), bits(7, 4, 1)),
    }


def predictions() -> dict[str, Any]:
    x, v = data("crbm", crbm())
    found = ebm.predict(crbm(), x, inference=ebm.BP(5, product="max"))
    return {
        "predicted": found,
        "error_rate": ebm.error_rate(found, v),
        "labels": ebm.classify(labelled(), v),
        "one_hot": ebm.classify(rbm(), bits(3, 3), labels=2),
        "by_bp": ebm.classify(rbm(), bits(3, 3), labels=2, inference=ebm.BP(5)),
    }


def entropies() -> dict[str, Any]:
    asked, v = ebm.queries.RandomTargets(0.5), bits(4, 5)
    out = {
        "bp": ebm.query_entropy(rbm(), v, asked, ebm.BP(5), key=key()),
        "own": ebm.query_entropy(query_model("rbm"), v, asked, key=key()),
        "gibbs": ebm.query_entropy(rbm(), v, asked, ebm.Gibbs(), key=key(), steps=5, burn_in=2),
    }
    return {k: {"value": x.value, "rows": x.rows, "targets": x.targets} for k, x in out.items()}


def sampled() -> dict[str, Any]:
    x, observed = evidence(rbm())
    x = np.round(x)
    return {
        "marginals": ebm.sampled_marginals(rbm(), x, observed, key=key(), steps=5, burn_in=2),
        "bound": ebm.pmp_bound(rbm(), key=key(), num_samples=4, solver=ebm.PMP(5)),
        "exact_bound": ebm.pmp_bound(
            rbm(), key=key(), num_samples=4, solver=ebm.Exact(product="max")
        ),
    }


for kind in ("rbm", "dbm", "boltzmann", "semi", "labelled"):
    add(f"estimate-ais-{kind}", annealed, MODELS[kind], tol=SINGLE, double=False)
add("estimate-likelihoods", likelihoods)
add("estimate-predictions", predictions)
add("estimate-entropies", entropies)
add("estimate-sampled", sampled, tol=SINGLE, double=False)


# NumPyro and PGMax


def kernel_draws(name: str, make: Callable) -> dict[str, Any]:
    from numpyro.infer import MCMC

    from ebmlearn import numpyro

    kernel = {
        "gibbs": lambda: numpyro.GibbsKernel(),
        "nnbm_gibbs": lambda: numpyro.NNBMGibbsKernel(),
        "gradients": lambda: numpyro.GibbsWithGradientsKernel(flips=2),
        "tempered": lambda: numpyro.TemperedTransitionsKernel([0.5, 0.8, 1.0]),
        "parallel": lambda: numpyro.ParallelTemperingKernel([0.3, 0.6, 1.0]),
    }[name]()
    mcmc = MCMC(kernel, num_warmup=1, num_samples=4, progress_bar=False)
    mcmc.run(key(), make(), extra_fields=("potential_energy", "accept_prob"))
    fields = mcmc.get_extra_fields()
    named = {"energy": fields["potential_energy"], "accepted": fields["accept_prob"]}
    return {"draws": mcmc.get_samples(), "fields": named}


def distribution() -> dict[str, Any]:
    from numpyro import primitives

    from ebmlearn.numpyro import EnergyDistribution, SamplerBlock

    exact = EnergyDistribution(rbm(), "exact", steps=3)
    real = EnergyDistribution(gaussian(), None, steps=3)
    site = EnergyDistribution(rbm(), None)
    block = SamplerBlock(
        ebm.Gibbs(), lambda sites: rbm(), lambda: primitives.sample("x", site), steps=2
    )
    state = block.init(key(), 0, {"x": jnp.asarray([1, 0, 1, 0, 1])}, (), {})
    return {
        "drawn": exact.sample(key(), (3,)),
        "log_prob": exact.log_prob(bits(3, 5)),
        "real_drawn": real.sample(key(), (3,)),
        "real_log_prob": real.log_prob(data("gaussian", gaussian(), 3)),
        "block": block.sample(state, (), {}).z["x"],
    }


def matrix_bp() -> dict[str, Any]:
    from ebmlearn.pgmax import MatrixBP

    graph = Graph()
    bp = MatrixBP(graph.graph.bp_state)
    out = {}
    for temperature in (0.0, 1.0):
        arrays = bp.init(evidence_updates=graph.evidence)
        found = bp.get_beliefs(bp.run(arrays, 5, 0.3, temperature))
        out[f"temperature_{temperature:.0f}"] = graph.by_name(found)
    return out


def converted() -> dict[str, Any]:
    """An NNBM on a grid of values, as a graph of PGMax."""
    from ebmlearn.pgmax import FactorGraphModel, grid_for, to_pgmax

    graph, variables, given = to_pgmax(nnbm(), grid_for(nnbm(), points=8))
    model = FactorGraphModel(graph).with_evidence(given)
    found = ebm.BP(5)(model)
    return {"marginals": found.marginals[variables.x], "log_partition": found.log_partition}


for name in ("gibbs", "gradients", "tempered", "parallel"):
    add(f"numpyro-rbm-{name}", kernel_draws, name, rbm, tol=SINGLE, double=False)
add("numpyro-dbm-gibbs", kernel_draws, "gibbs", dbm, tol=SINGLE, double=False)
add("numpyro-nnbm-gibbs", kernel_draws, "nnbm_gibbs", nnbm, tol=SINGLE, double=False)
add("numpyro-distributions", distribution, tol=SINGLE, double=False)
add("pgmax-matrix_bp", matrix_bp)
add("pgmax-nnbm", converted)


# Training


def fitted(model: Any, learner: Any, rows: Any, **options: Any) -> dict[str, Any]:
    defaults = dict(epochs=2, batch_size=4, key=key(5), progress=False, optimizer=optax.adam(0.05))
    found = ebm.fit(model, learner, rows, **{**defaults, **options})
    history = {k: np.asarray(x) for k, x in found.history.steps.items()}
    history["converged"] = np.nan_to_num(history["converged"], nan=1.0)
    return {"last": parameters(found.last), "steps": history}


def resumed() -> dict[str, Any]:
    """Four epochs, in one run and in two."""
    run = functools.partial(fitted, crbm(), ebm.MLE(ebm.BP(5)), data("crbm", crbm(), 12))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        whole = run(epochs=4, checkpoint=one)
        run(epochs=2, checkpoint=two)
        return {"whole": whole, "resumed": run(epochs=4, checkpoint=two)}


def trained(name: str) -> dict[str, Any]:
    if name == "sap":
        return fitted(rbm(), ebm.SAP(num_chains=4), bits(12, 5), average=0.9)
    if name == "nnbm":
        return fitted(nnbm(), ebm.MLE(ebm.TAP()), data("nnbm", nnbm(), 12))
    return fitted(query_model("rbm"), ASKED, bits(12, 5))


# Adam divides by the size of gradients: errors of float32 in small ones are not small.
add("fit-crbm-mle_bp", resumed, tol=2e-5, double=False)
for name in ("sap", "nnbm", "query_training"):
    add(f"fit-{name}", trained, name, tol=2e-5, double=False)


# Saved models, in float32

SAVED: dict[str, Callable] = {name: MODELS[name] for name in MODELS if name != "semi"}
SAVED["sparse_nnbm"] = sparse_nnbm
SAVED["query_rbm"] = functools.partial(query_model, "rbm")


def saved(name: str) -> Path:
    return FOLDER / f"{name}.ebm"


# Reading and writing


def chosen() -> list[str]:
    """The cases of a short run: every model, inference, learner and sampler, but of models that
    share their code not every pair, and little of NumPyro and PGMax. All cases if `GOLDEN_ALL` is
    set.
    """
    if os.environ.get("GOLDEN_ALL"):
        return list(CASES)
    alike = ("dbm", "boltzmann", "semi", "conditioned", "sparse_nnbm")
    always = ("bp", "mle_bp", "gibbs", "propagation")
    out = []
    for name in CASES:
        group, *rest = name.split("-")
        if group in ("beliefs", "gradient", "chains"):
            kind, what = rest[:2]
            short = kind not in alike or what in always
            short &= kind != "graph" or (group, what) == ("beliefs", "bp")
            short &= f"{kind}-{what}" not in LONG
        else:
            short = name not in LONG
        if short:
            out.append(name)
    return out


LONG = (
    "dbm-mle_bp", "grid-query_training", "grid-pmp", "rbm-sap_parallel", "labelled-trans_sap",
    "labelled-mcmc_mle", "estimate-sampled", "estimate-entropies", "pgmax-nnbm", "estimate-ais-dbm",
    "estimate-ais-boltzmann", "estimate-ais-semi", "query-dbm",
    "query-boltzmann", "query-semi", "query-graphs", "samples-graphs-pmp", "samples-gaussian-gibbs",
    "samples-nnbm-gibbs", "samples-diagnostics", "numpyro-rbm-gradients", "numpyro-rbm-tempered",
    "numpyro-rbm-parallel", "numpyro-dbm-gibbs", "numpyro-distributions", "pgmax-matrix_bp",
    "fit-query_training",
)  # fmt: skip


def read() -> dict[str, dict[str, np.ndarray]]:
    """The values of all cases."""
    out: dict[str, dict[str, np.ndarray]] = {}
    with np.load(VALUES) as file:
        for name in file.files:
            case, leaf = name.split("/")
            out.setdefault(case, {})[leaf] = file[name]
    return out


def write(chosen: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    values = read() if chosen else {}
    for case in chosen or CASES:
        begin = time.time()
        values[case] = run(case)
        print(f"{time.time() - begin:6.2f} s  {case}", flush=True)
    leaves = {f"{case}/{leaf}": x for case, found in values.items() for leaf, x in found.items()}
    np.savez_compressed(VALUES, **leaves)  # pyright: ignore[reportArgumentType]
    if not chosen:
        for name, make in SAVED.items():
            ebm.save(saved(name), make())


def as_the_tests(folder: str) -> None:
    """JAX as the tests have it."""
    import conftest
    import programs

    os.environ[programs.COMPILED] = folder
    conftest.pytest_configure(types.SimpleNamespace(workerinput={}))


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"] or not set(sys.argv[2:]) <= set(CASES):
        sys.exit("usage: python tests/golden.py --write [CASE ...]")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as compiled:
        as_the_tests(compiled)
        write(sys.argv[2:])
