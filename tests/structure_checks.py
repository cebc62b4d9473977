"""Every operation of the library on a structure, against its `Truth`: right, wrong, or refused with
one clear sentence.
"""

import math
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import plain_bp
from scipy.stats import truncnorm
from structures import Structure, Truth

import ebmlearn as ebm
from ebmlearn.models import expected_energy


class Outcome(NamedTuple):
    """`result` is right, wrong, refused, or nothing: the operation has no meaning there."""

    result: str
    detail: str = ""


class Wrong(Exception):
    """The library says something else than the oracle."""


class Nothing(Exception):
    """The operation has no meaning for a structure."""


OPERATIONS: dict[str, Callable[[Structure, Any], None]] = {}
# How many draws samplers are judged by, and how many standard errors they may be off.
DRAWS, ERRORS = 4000, 6.0
# What refusals may be. Beliefs without a quantity have no such attribute.
REFUSALS = (ValueError, TypeError, NotImplementedError, AttributeError)


def operation(check: Callable[[Structure, Any], None]) -> Callable[[Structure, Any], None]:
    OPERATIONS[check.__name__] = check
    return check


def outcome(structure: Structure, name: str) -> Outcome:
    """What one operation does with a structure."""
    rng = np.random.default_rng([structure.seed, sum(map(ord, name))])
    try:
        # PGMax is not written for strict promotion.
        with (
            warnings.catch_warnings(),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            warnings.simplefilter("ignore")
            if structure.truth.is_possible:
                OPERATIONS[name](structure, rng)
            else:
                _impossible(structure, name)
    except Wrong as error:
        return Outcome("wrong", str(error))
    except Nothing:
        return Outcome("nothing")
    except Exception as error:
        return judged(error)
    return Outcome("right")


_LOWEST = -1e5


def _impossible(s: Structure, name: str) -> None:
    """A model without a configuration has no distribution: log Z is minus infinity."""
    inferences: dict[str, Any] = {
        "exact_sum": ebm.Exact(),
        "exact_elimination": ebm.Exact(method="elimination"),
        "exact_max": ebm.Exact(product="max"),
        "auto": ebm.Auto(5),
        "auto_max": ebm.Auto(5, product="max"),
    }
    need(name in inferences)
    value = float(inferences[name](s.model).log_partition)
    holds("log Z of no configuration", value < _LOWEST, value, "minus infinity")


def judged(error: Exception) -> Outcome:
    """A refusal if an error is one clear sentence of the library, else wrong."""
    text = str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = "/ebmlearn/" in frame.filename
    # One sentence: none begins within it.
    one = text.endswith(".") and not re.search(r"\n|\. [A-Z]", text)
    clear = one and re.search(r"`[^`]+`", text)
    if isinstance(error, REFUSALS) and ours and clear:
        return Outcome("refused", text)
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return Outcome("wrong", f"{type(error).__name__} at {where}: {text[:300]}")


_NAMES = r"\b(visible|label|pixels|left|hidden_N|hidden)\b"
_KINDS = r"\b(binary|categorical|gaussian|nonnegative)\b"


def sentence(text: str) -> str:
    """A refusal without what belongs to one structure: numbers, and names and kinds of layers."""
    text = re.sub(r"`[^`]*/[^`]*`", "`PATH`", text)
    text = re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?", "N", text)
    text = re.sub(rf"{_NAMES}(, {_NAMES})+", "NAMES", text)
    # Which kinds are known depends on what has been imported.
    text = re.sub(r"takes, [a-z ]+, got", "takes, KINDS, got", text)
    return re.sub(rf"{_KINDS}( {_KINDS})+", "KINDS", text)


def near(what: str, got: Any, expected: Any, atol: float = 5e-4, rtol: float = 5e-4) -> None:
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.shape != expected.shape:
        raise Wrong(f"{what}: got shape {got.shape}, expected {expected.shape}")
    if not np.allclose(got, expected, atol=atol, rtol=rtol, equal_nan=False):
        raise Wrong(f"{what}: got {_short(got)}, expected {_short(expected)}")


def _short(x: np.ndarray) -> str:
    text = np.array2string(x, precision=4, separator=", ", threshold=40, max_line_width=10**6)
    return text.replace("\n", "")


def holds(what: str, condition: Any, got: Any, expected: Any) -> None:
    if not condition:
        raise Wrong(f"{what}: got {got}, expected {expected}")


def need(condition: Any) -> None:
    if not condition:
        raise Nothing


# States as the library takes and gives them.


def by_part(truth: Truth, states: np.ndarray, real: np.ndarray | None = None) -> list[np.ndarray]:
    """States of all variables, cut into parts; real units have theirs."""
    out, at, first = [], 0, 0
    for part in truth.parts:
        if part.is_real:
            assert real is not None
            out.append(real[:, first : first + part.size].astype(np.float32))
            first += part.size
        else:
            out.append(states[:, at : at + part.size].astype(np.int32))
            at += part.size
    return out


def real_draws(truth: Truth, rng: Any, numbers: np.ndarray) -> np.ndarray | None:
    """Real units given the numbers of the configurations of the others, drawn exactly."""
    if truth.means is None or truth.second is None:
        return None
    if truth.points is not None:
        x, p = truth.points
        return x[rng.choice(len(x), len(numbers), p=p)]
    means = truth.means[numbers]
    spread = truth.second[numbers] - means[:, :, None] * means[:, None, :]
    spread = spread + 1e-12 * np.eye(means.shape[1])
    out = means + np.einsum("rij,rj->ri", np.linalg.cholesky(spread), rng.normal(size=means.shape))
    at = 0
    for part in truth.parts:
        if part.kind == "nonnegative":
            for i in range(at, at + part.size):
                out[:, i] = _truncated(truth, rng, numbers, i)
        at += part.size if part.is_real else 0
    return out


def _truncated(truth: Truth, rng: Any, numbers: np.ndarray, i: int) -> np.ndarray:
    """Found from the first two moments, which are those of one location and one precision."""
    assert truth.locations is not None
    location, scale = truth.locations[numbers, i], truth.scales[i]
    drawn = truncnorm.rvs(-location / scale, np.inf, location, scale, random_state=rng)
    return np.asarray(drawn)


def layers_of(structure: Structure, parts: list[Any]) -> Any:
    return structure.model.named([None if x is None else jnp.asarray(x) for x in parts])


def grouped(structure: Structure, rows: np.ndarray) -> dict[Any, Any]:
    """Rows of all variables of a graph by group."""
    out = {}
    shapes = structure.model.shapes
    parts = np.split(rows, np.cumsum([math.prod(x) for x in shapes])[:-1], -1)
    for group, shape, x in zip(structure.groups, shapes, parts, strict=True):
        out[group] = jnp.asarray(x.reshape(*x.shape[:-1], *shape))
    return out


def as_states(structure: Structure, states: np.ndarray, real: np.ndarray | None = None) -> Any:
    if structure.is_graph:
        return grouped(structure, states.astype(np.int32))
    return layers_of(structure, by_part(structure.truth, states, real))


def told(structure: Structure, named: Any) -> list[np.ndarray]:
    """One array for each part, from what the library names."""
    if structure.is_graph:
        return [np.asarray(named[group]) for group in structure.groups]
    return [np.asarray(x) for x in jax.tree.leaves(named)]


def marginals_of(structure: Structure, named: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The probabilities of the states of each discrete variable, and the means of real units."""
    discrete, real = [], []
    leaves = told(structure, named)
    for part, x in zip(structure.truth.parts, leaves, strict=True):
        if part.is_real:
            real += [x[..., i] for i in range(part.size)]
        elif part.kind == "binary":
            discrete += [np.stack([1 - x[..., i], x[..., i]], -1) for i in range(part.size)]
        else:
            flat = x.reshape(*_batch(x, part), part.size, part.states)
            discrete += [flat[..., i, :] for i in range(part.size)]
    counts = structure.truth.counts
    return [x[..., :n] for x, n in zip(discrete, counts, strict=True)], real


def _batch(x: np.ndarray, part: Any) -> tuple[int, ...]:
    """The leading axes of the probabilities of a part: there is one or none."""
    return () if x.size == part.size * part.states else x.shape[:1]


def near_marginals(
    structure: Structure,
    what: str,
    named: Any,
    expected: list[tuple[Truth, np.ndarray]],
    **tol: Any,
) -> None:
    """Beliefs of a batch of so many instances, or of one that is no batch."""
    discrete, real = marginals_of(structure, named)
    for k, (truth, p) in enumerate(expected):
        at = k if len(expected) > 1 else ()
        for v, wanted in enumerate(truth.marginals(p)):
            near(f"{what} of variable {v}", discrete[v][at], wanted, **tol)
        if truth.means is not None:
            wanted = p @ truth.means
            near(f"{what}, real units", np.array([x[at] for x in real]), wanted, **tol)


def number_of(truth: Truth, states: np.ndarray) -> np.ndarray:
    """The numbers of configurations."""
    if not truth.counts:
        return np.zeros(len(states), int)
    return np.asarray(np.ravel_multi_index(tuple(states.T), truth.counts))


class Data(NamedTuple):
    """Rows: as the library takes them, the states of all variables, -1 where hidden, and the real
    units, NaN where hidden.
    """

    batch: Any
    rows: np.ndarray
    real: np.ndarray | None


def data_of(structure: Structure, rng: Any, number: int, hide: bool = True) -> Data:
    """Visible units drawn from the model. Of a graph, some variables are hidden."""
    truth = structure.truth
    numbers = rng.choice(len(truth.states), number, p=truth.p())
    rows, real = truth.states[numbers].copy(), real_draws(truth, rng, numbers)
    if structure.is_graph:
        if hide:
            rows[:, rng.random(rows.shape[1]) < 0.3] = -1
        return Data(jnp.asarray(rows, jnp.int32), rows, None)
    parts = by_part(truth, rows, real)
    given = [jnp.asarray(x) for part, x in zip(truth.parts, parts, strict=True) if part.seen]
    rows[:, ~truth.seen] = -1
    if real is not None:
        seen = [part.seen for part in truth.parts if part.is_real for _ in range(part.size)]
        real = np.where(seen, real.astype(np.float32), np.nan)
    return Data(given[0] if len(given) == 1 else tuple(given), rows, real)


def posteriors(structure: Structure, data: Data) -> list[tuple[Truth, np.ndarray]]:
    """The configurations given each row, and what to add to their scores."""
    out = []
    for k, row in enumerate(data.rows):
        truth = structure.truth
        if data.real is not None:
            assert truth.given is not None
            truth = truth.given(data.real[k])
        out.append((truth, truth.held(row)))
    return out


class Given(NamedTuple):
    """Evidence as the library takes it, and each row's truth with what it adds to scores."""

    evidence: Any
    observed: Any
    truths: list[tuple[Truth, np.ndarray]]


def evidence_of(structure: Structure, rng: Any, soft: float = 0.3, number: int = 2) -> Given:
    """Hard, soft and missing evidence, of the first layer or of a graph. `soft` is the share of the
    groups of a graph, or of binary units, that have likelihoods.
    """
    truth = structure.truth
    numbers = rng.choice(len(truth.states), number, p=truth.p())
    rows, real = truth.states[numbers], real_draws(truth, rng, numbers)
    known = rng.random(rows.shape) < 0.5
    if structure.is_graph:
        hard = np.where(known, rows, -1)
        told = np.zeros((number, len(truth.states)))
        evidence = grouped(structure, hard.astype(np.int32))
        for k in np.flatnonzero(rng.random(len(structure.groups)) < soft):
            own = np.flatnonzero(truth.owner == k)
            most = truth.parts[k].states
            likelihood = np.round(rng.uniform(0.1, 1.0, (number, len(own), most)), 2)
            # Some states are impossible, but none that was drawn.
            states = rows[:, own, None] == np.arange(most)
            likelihood[(rng.random(likelihood.shape) < 0.1) & ~states] = 0.0
            shape = structure.model.shapes[k]
            evidence[structure.groups[k]] = jnp.asarray(
                likelihood.reshape(number, *shape, most), jnp.float32
            )
            hard[:, own] = -1
            with np.errstate(divide="ignore"):
                scores = np.log(likelihood)
            for i, v in enumerate(own):
                told = told + scores[:, i, truth.states[:, v]]
        extras = [truth.held(row) + extra for row, extra in zip(hard, told, strict=True)]
        return Given(evidence, None, [(truth, extra) for extra in extras])
    first = truth.parts[0]
    if first.is_real:
        assert real is not None and truth.given is not None
        values = np.where(rng.random((number, first.size)) < 0.5, real[:, : first.size], np.nan)
        values = values.astype(np.float32)
        rest = real.shape[1] - first.size
        truths = [truth.given(np.r_[row, np.full(rest, np.nan)].astype(float)) for row in values]
        mask = None if np.isnan(values).any() else np.ones(values.shape, bool)
        return Given(values, mask, [(t, np.zeros(len(t.states))) for t in truths])
    own, known = rows[:, : first.size], known[:, : first.size]
    values = np.where(known, own, np.nan).astype(np.float32)
    extras = []
    if first.kind == "binary":
        likely = rng.random(values.shape) < soft
        values = np.where(likely, np.round(rng.uniform(0.1, 0.9, values.shape), 2), values)
    for row in values:
        extra = np.zeros(len(truth.states))
        for v, x in enumerate(row):
            state = truth.states[:, v]
            if np.isnan(x):
                continue
            if 0 < x < 1 and first.kind == "binary":
                # The likelihood of 1 against 0: log Z leaves out that of 0.
                extra = extra + np.where(state == 1, np.log(x) - np.log1p(-x), 0.0)
            else:
                extra = extra + np.where(state == x, 0.0, -np.inf)
        extras.append(extra)
    values = values.astype(np.float32)
    if rng.random() < 0.5 or not np.isnan(values).any():
        # The same by a mask.
        mask = ~np.isnan(values)
        return Given(np.nan_to_num(values), mask, [(truth, x) for x in extras])
    return Given(values, None, [(truth, x) for x in extras])


# Energies.


@operation
def energy(s: Structure, rng: Any) -> None:
    near("energy", _energies(s, s.model), -s.truth.scores, rtol=1e-4)


def _energies(s: Structure, model: Any) -> np.ndarray:
    """Of all configurations, by the library."""
    need(s.truth.means is None)
    if s.is_graph:
        return np.asarray(model.energy(jnp.asarray(s.truth.states, jnp.int32)))
    named = layers_of(s, by_part(s.truth, s.truth.states))
    return np.asarray(model.energies(model.encode(named)))


# Inferences.


@operation
def exact_sum(s: Structure, rng: Any) -> None:
    beliefs = ebm.Exact()(s.model)
    p = s.truth.p()
    near("log Z", beliefs.log_partition, s.truth.log_z(), atol=2e-3)
    near_marginals(s, "marginal", beliefs.means if not s.is_graph else beliefs, [(s.truth, p)])


@operation
def exact_pairwise(s: Structure, rng: Any) -> None:
    _pairwise(s, ebm.Exact()(s.model), 1e-3)


def _pairwise(s: Structure, beliefs: Any, atol: float) -> None:
    expected = s.truth.expected(s.truth.p())
    found = beliefs.pairwise
    names = [x.name for x in s.truth.features]
    if s.kind in ("TableModel", "FactorModel"):
        for k, feature in enumerate(s.truth.features):
            if not feature.name.startswith("biases"):
                # Within one unit, pairs have no meaning.
                got = np.where(feature.values.any(0), found[k], expected[k])
                near(feature.name, got, expected[k], atol)
        return
    if s.kind == "NNBM":
        assert s.truth.second is not None
        near("products", found, s.truth.second[0], atol)
        return
    need(not s.is_graph and s.kind not in ("EnergyModel", "GaussianRBM"))
    blocks = [k for k, name in enumerate(names) if re.match("(label_)?weights|couplings", name)]
    found = list(found) if isinstance(found, tuple) else [found]
    holds("pairwise", len(found) == len(blocks), len(found), len(blocks))
    for x, k in zip(found, blocks, strict=True):
        x, wanted = np.asarray(x), expected[k]
        if x.shape == wanted.shape:
            # What no configuration meets has no meaning: two states of one unit.
            x = np.where(s.truth.features[k].values.any(0), x, wanted)
        near(f"pairwise {names[k]}", x, wanted, atol)


@operation
def exact_statistics(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    statistics = ebm.Exact().statistics(s.model)
    p = s.truth.p()
    scores = np.where(p > 0, s.truth.scores, 0.0)
    near("expected energy", expected_energy(s.model, statistics), -(p @ scores), atol=3e-3)


@operation
def exact_evidence(s: Structure, rng: Any) -> None:
    _given(s, rng, ebm.Exact(), 1e-3)


def _given(s: Structure, rng: Any, inference: Any, atol: float) -> None:
    _near_given(s, evidence_of(s, rng), inference, atol)


def _near_given(s: Structure, given: Given, inference: Any, atol: float) -> None:
    beliefs = inference(s.model, given.evidence, given.observed)
    truths = [(truth, truth.p(extra)) for truth, extra in given.truths]
    named = beliefs if s.is_graph else beliefs.means
    near_marginals(s, "marginal given evidence", named, truths, atol=atol)
    values = [truth.log_z(extra) for truth, extra in given.truths]
    near("log Z given evidence", beliefs.log_partition, values, atol=5e-3)


def _has_soft(given: Given) -> bool:
    """Whether evidence is a likelihood, whose scale log Z may leave out."""
    if isinstance(given.evidence, dict):
        return any(jnp.issubdtype(x.dtype, jnp.floating) for x in given.evidence.values())
    values = np.asarray(given.evidence)
    return bool(((values > 0) & (values < 1)).any())


@operation
def exact_impossible(s: Structure, rng: Any) -> None:
    """Evidence that contradicts the model."""
    none = np.flatnonzero(~np.isfinite(s.truth.scores))
    need(s.is_graph and len(none))
    row = s.truth.states[rng.choice(none)].astype(np.int32)
    value = float(ebm.Exact()(s.model, grouped(s, row)).log_partition)
    holds("log Z of no configuration", value < _LOWEST, value, "minus infinity")


@operation
def exact_elimination(s: Structure, rng: Any) -> None:
    need(s.is_graph)
    beliefs = ebm.Exact(method="elimination")(s.model)
    near("log Z", beliefs.log_partition, s.truth.log_z(), atol=2e-3)
    near_marginals(s, "marginal", beliefs, [(s.truth, s.truth.p())])


@operation
def exact_max(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    _decoded(s, ebm.Exact(product="max")(s.model), exact=True)


def _decoded(s: Structure, beliefs: Any, exact: bool) -> None:
    best = s.truth.scores.max()
    states = np.concatenate([np.ravel(x) for x in told(s, beliefs.decode())])
    score = s.truth.scores[number_of(s.truth, states[None].astype(int))[0]]
    if exact:
        near("log-potential of the decoded states", score, best, atol=2e-3)
        near("largest log-potential", beliefs.log_partition, best, atol=2e-3)


@operation
def exact_mixed(s: Structure, rng: Any) -> None:
    need(s.truth.means is None and not s.is_graph)
    beliefs = ebm.Exact(product="mixed")(s.model)
    _mixed(s, beliefs)


def _mixed(s: Structure, beliefs: Any) -> None:
    visible = s.truth.seen
    rows, scores = s.truth.marginal_scores(visible)
    states = np.concatenate([np.ravel(x) for x in told(s, beliefs.decode())])[visible]
    own = scores[(rows == states).all(1)][0]
    near("log-potential of the visible states", own, scores.max(), atol=2e-3)
    near("largest log-potential", beliefs.log_partition, scores.max(), atol=2e-3)


@operation
def auto(s: Structure, rng: Any) -> None:
    beliefs = ebm.Auto(5)(s.model)
    holds("exact", beliefs.report is not None and beliefs.report.is_exact, False, True)
    near("log Z", beliefs.log_partition, s.truth.log_z(), atol=2e-3)
    named = beliefs if s.is_graph else beliefs.means
    near_marginals(s, "marginal", named, [(s.truth, s.truth.p())])


@operation
def auto_max(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    _decoded(s, ebm.Auto(5, product="max")(s.model), exact=True)


@operation
def bp(s: Structure, rng: Any) -> None:
    beliefs = ebm.BP(500, tol=1e-6)(s.model)
    named = beliefs if s.is_graph else beliefs.means
    discrete, real = marginals_of(s, named)
    for x in (*discrete, *real):
        holds("finite", np.isfinite(x).all(), x, "finite numbers")
    if s.truth.means is not None:
        _gaussian_bp(s, beliefs)
        return
    if s.truth.is_tree:
        near_marginals(s, "marginal on a tree", named, [(s.truth, s.truth.p())], atol=2e-3)
        near("log Z on a tree", beliefs.log_partition, s.truth.log_z(), atol=5e-3)
        return
    if bool(beliefs.converged):
        _fixed_point(s, discrete, float(beliefs.log_partition), rng)


def _gaussian_bp(s: Structure, beliefs: Any) -> None:
    """Messages are exact where no unit is joined to two others; else they are near."""
    hidden = sum(part.size for part in s.truth.parts if not part.is_real)
    visible = sum(part.size for part in s.truth.parts if part.is_real)
    if bool(beliefs.converged) and hidden == 1 and visible == 1:
        near_marginals(s, "marginal", beliefs.means, [(s.truth, s.truth.p())], atol=5e-3)


def _fixed_point(s: Structure, discrete: list[np.ndarray], value: float, rng: Any) -> None:
    """Messages end where plain NumPy ends from one of several starts. Strong couplings have many
    fixed points, and are left out.
    """
    need(np.ptp(s.truth.scores[np.isfinite(s.truth.scores)]) < 30)
    closest = None
    for merged in (False, True):
        factors = plain_bp.merged(s.truth.factors) if merged else s.truth.factors
        for start in range(3):
            found = plain_bp.run(factors, s.truth.counts, rng if start else None)
            if found is None:
                continue
            apart = max(np.abs(a - b).max() for a, b in zip(discrete, found.marginals, strict=True))
            if apart < 5e-3 and abs(value - found.log_z) < 2e-2 * (1 + abs(value)):
                return
            if closest is None or apart < closest[0]:
                closest = apart, found.log_z
        if merged or len(plain_bp.merged(s.truth.factors)) == len(s.truth.factors):
            break
    if closest is not None:
        raise Wrong(
            f"fixed point: marginals are {closest[0]:.4g} away from plain loopy BP, log Z is"
            f" {value:.6g}, expected {closest[1]:.6g}"
        )


@operation
def bp_evidence(s: Structure, rng: Any) -> None:
    need(s.truth.means is None and s.truth.is_tree)
    _given(s, rng, ebm.BP(100), 2e-3)


@operation
def bp_soft(s: Structure, rng: Any) -> None:
    need(s.truth.is_tree)
    _soft(s, rng, ebm.BP(100), 2e-3)


@operation
def exact_soft(s: Structure, rng: Any) -> None:
    _soft(s, rng, ebm.Exact(), 1e-3)


@operation
def auto_soft(s: Structure, rng: Any) -> None:
    _soft(s, rng, ebm.Auto(5), 1e-3)


def _soft(s: Structure, rng: Any, inference: Any, atol: float) -> None:
    need(s.truth.means is None)
    given = evidence_of(s, rng, soft=0.7)
    need(_has_soft(given))
    _near_given(s, given, inference, atol)


@operation
def bp_max(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    beliefs = ebm.BP(200, product="max")(s.model)
    _decoded(s, beliefs, exact=s.truth.is_tree and _unique(s.truth.scores))


@operation
def bp_mixed(s: Structure, rng: Any) -> None:
    need(s.truth.means is None and not s.is_graph)
    beliefs = ebm.BP(200, product="mixed")(s.model)
    visible = s.truth.seen
    # Visible units that hidden ones join do not stay a tree once those are summed out.
    _, scores = s.truth.marginal_scores(visible)
    states = [np.ravel(x) for x in told(s, beliefs.decode())]
    holds("finite", np.isfinite(beliefs.log_partition).all(), beliefs.log_partition, "a number")
    flat = np.concatenate(states)
    holds("states", ((flat == 0) | (flat == 1)).all(), flat, "0 and 1")
    if s.truth.is_tree and visible.all() and _unique(s.truth.scores):
        _mixed(s, beliefs)
    if s.truth.is_tree and not visible.any():
        near("log Z", beliefs.log_partition, scores.max(), atol=5e-3)


def _unique(scores: np.ndarray) -> bool:
    """Whether the best configuration is better than all others."""
    best = np.sort(scores)[::-1]
    return len(best) < 2 or best[0] - best[1] > 1e-2


@operation
def mean_field(s: Structure, rng: Any) -> None:
    solver = ebm.MeanField(2000, tol=1e-7)
    beliefs = solver(s.model)
    need(s.truth.means is None)
    discrete, _ = marginals_of(s, beliefs if s.is_graph else beliefs.means)
    p = _independent(s, discrete, beliefs.log_partition, bool(beliefs.converged), s.truth.scores)
    if bool(beliefs.converged):
        # The bound is stationary: its gradient is the statistics of independent units.
        found = eqx.filter_grad(lambda model: solver(model).log_partition)(s.model)
        _near_gradient(s, found.by_edges(), s.truth.expected(p), atol=5e-3)
    scores = np.where(p > 1e-20, s.truth.scores, 0.0)
    energy = expected_energy(s.model, solver.statistics(s.model))
    near("expected energy", energy, -(p @ scores), atol=5e-3, rtol=2e-3)


@operation
def mean_field_evidence(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    given = evidence_of(s, rng)
    beliefs = ebm.MeanField(2000, tol=1e-7)(s.model, given.evidence, given.observed)
    discrete, _ = marginals_of(s, beliefs if s.is_graph else beliefs.means)
    for k, (truth, extra) in enumerate(given.truths):
        value = None if _has_soft(given) else beliefs.log_partition[k]
        own = [x[k] for x in discrete]
        _independent(s, own, value, bool(beliefs.converged[k]), truth.scores + extra)


def _independent(
    s: Structure, discrete: list[np.ndarray], value: Any, converged: bool, scores: np.ndarray
) -> np.ndarray:
    """The probabilities of configurations if variables are independent, checked: the value is the
    bound of log Z that these give, and each variable is as it should be given all others.
    """
    with np.errstate(divide="ignore"):
        logs = [np.log(np.maximum(q, 1e-30)) for q in discrete]
    each = np.stack([q[s.truth.states[:, v]] for v, q in enumerate(logs)], 1)
    p = np.exp(each.sum(1))
    if value is not None:
        log_z = float(np.logaddexp.reduce(scores))
        holds("lower bound", value <= log_z + 2e-3 * (1 + abs(log_z)), value, f"at most {log_z}")
        bound = p @ np.where(p > 1e-20, scores, 0.0) - p @ each.sum(1)
        near("the bound", value, bound, atol=5e-3, rtol=2e-3)
    for v, count in enumerate(s.truth.counts if converged else ()):
        rest = np.exp(each.sum(1) - each[:, v])
        told = np.where(rest > 1e-20, rest * np.where(rest > 1e-20, scores, 0.0), 0.0)
        means = np.array([told[s.truth.states[:, v] == k].sum() for k in range(count)])
        wanted = np.exp(means - means.max())
        near(f"fixed point at variable {v}", discrete[v], wanted / wanted.sum(), atol=5e-3)
    return p


@operation
def mplp(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    beliefs = ebm.MPLP()(s.model)
    value, best = float(beliefs.log_partition), s.truth.scores.max()
    holds("upper bound", value >= best - 2e-3 * (1 + abs(best)), value, f"at least {best}")
    _decoded(s, beliefs, exact=False)
    if s.truth.is_tree and bool(beliefs.converged) and not s.is_graph:
        near("the bound on a tree", value, best, atol=2e-2)


@operation
def trbp(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    beliefs = ebm.TRBP()(s.model)
    value, log_z = float(beliefs.log_partition), s.truth.log_z()
    holds("upper bound", value >= log_z - 2e-3 * (1 + abs(log_z)), value, f"at least {log_z}")
    if s.truth.is_tree and bool(beliefs.converged):
        near("the bound on a tree", value, log_z, atol=2e-2)


@operation
def convergent_bp(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    beliefs = ebm.ConvergentBP()(s.model)
    named = beliefs if s.is_graph else beliefs.means
    if not bool(beliefs.converged):
        return
    discrete, _ = marginals_of(s, named)
    if s.truth.is_tree:
        near_marginals(s, "marginal on a tree", named, [(s.truth, s.truth.p())], atol=5e-3)
        near("log Z on a tree", beliefs.log_partition, s.truth.log_z(), atol=1e-2)
    else:
        _fixed_point(s, discrete, float(beliefs.log_partition), rng)


# Samplers, by stationarity: chains start at draws that are exact.


def _indicators(truth: Truth) -> np.ndarray:
    """Of each configuration, which states of single variables and of pairs it has."""
    one = [np.eye(n)[truth.states[:, v]] for v, n in enumerate(truth.counts)]
    columns = [np.ones((len(truth.states), 1)), *one]
    for i in range(len(one)):
        pairs = (one[i][:, :, None] * one[j][:, None, :] for j in range(i))
        columns += [x.reshape(len(x), -1) for x in pairs]
    return np.concatenate(columns, 1)


def _stationary(
    s: Structure, drawn: Any, truth: Truth, p: np.ndarray, what: str, slack: float = 0.0
) -> None:
    """Compares draws with a distribution, by its marginals of one and two variables."""
    parts = [x.reshape(len(x), -1) for x in told(s, drawn)]
    discrete = [x for x, part in zip(parts, s.truth.parts, strict=True) if not part.is_real]
    number = len(parts[0])
    rows = np.concatenate(discrete, 1) if discrete else np.zeros((number, 0))
    ok = (rows >= 0) & (rows < np.array(truth.counts))
    holds(f"{what}: states", ok.all(), rows[~ok.all(1)][:1], "states of the variables")
    numbers = number_of(truth, rows.astype(int))
    holds(f"{what}: possible", (p[numbers] > 0).all(), rows[p[numbers] == 0][:1], "possible states")
    table = _indicators(truth)
    wanted, found = p @ table, table[numbers].mean(0)
    error = ERRORS * np.sqrt(wanted * (1 - wanted) / number) + 8 / number + slack
    worst = np.argmax(np.abs(found - wanted) / error)
    if np.abs(found - wanted)[worst] > error[worst]:
        raise Wrong(
            f"{what}: frequency of states {found[worst]:.4f}, expected {wanted[worst]:.4f} within"
            f" {error[worst]:.4f}"
        )
    real = [x for x, part in zip(parts, s.truth.parts, strict=True) if part.is_real]
    if real and truth.means is not None and truth.second is not None:
        x = np.concatenate(real, 1).astype(float)
        for name, draws, mean in (
            ("mean", x, p @ truth.means),
            ("square", x**2, p @ np.einsum("rii->ri", truth.second)),
        ):
            error = ERRORS * draws.std(0) / np.sqrt(number) + 1e-3 + slack
            found = draws.mean(0)
            holds(f"{what}: {name}", (abs(found - mean) <= error).all(), found, mean)


def _mixes(truth: Truth) -> bool:
    """Whether a hundred sweeps forget where chains began: not if couplings are strong."""
    if np.ptp(truth.scores[np.isfinite(truth.scores)]) > 8:
        return False
    return truth.means is None or float(np.ptp(truth.means, axis=0).max(initial=0)) < 2


def _sampler(s: Structure, rng: Any, sampler: Any, slack: float = 0.0) -> None:
    truth = s.truth
    numbers = rng.choice(len(truth.states), DRAWS, p=truth.p())
    start = as_states(s, truth.states[numbers], real_draws(truth, rng, numbers))
    key = int(rng.integers(2**31))
    drawn = ebm.sample(s.model, sampler, DRAWS, key=key, num_chains=DRAWS, start=start)
    _stationary(s, drawn, truth, truth.p(), "stationary", slack)


@operation
def gibbs(s: Structure, rng: Any) -> None:
    _sampler(s, rng, ebm.Gibbs())


@operation
def gibbs_from_random(s: Structure, rng: Any) -> None:
    key = int(rng.integers(2**31))
    drawn = ebm.sample(s.model, ebm.Gibbs(), DRAWS, key=key, num_chains=DRAWS, burn_in=100)
    need(_mixes(s.truth))
    _stationary(s, drawn, s.truth, s.truth.p(), "after 100 sweeps", 0.02)


@operation
def gibbs_clamped(s: Structure, rng: Any) -> None:
    truth = s.truth
    need(truth.means is None and truth.counts)
    row = truth.draw(rng, 1)[0]
    mask = rng.random(len(row)) < 0.5
    extra = truth.held(np.where(mask, row, -1))
    starts = truth.draw(rng, DRAWS, extra)
    masks = np.broadcast_to(mask, starts.shape)
    if s.is_graph:
        clamped = grouped(s, masks)
    else:
        clamped = layers_of(s, [x.astype(bool) for x in by_part(truth, masks)])
    key = int(rng.integers(2**31))
    options = {"key": key, "num_chains": DRAWS, "start": as_states(s, starts), "clamped": clamped}
    drawn = ebm.sample(s.model, ebm.Gibbs(), DRAWS, **options)
    _stationary(s, drawn, truth, truth.p(extra), "stationary with clamped units")


@operation
def gibbs_metropolised(s: Structure, rng: Any) -> None:
    _sampler(s, rng, ebm.Gibbs(metropolised=True))


@operation
def gibbs_with_gradients(s: Structure, rng: Any) -> None:
    _sampler(s, rng, ebm.GibbsWithGradients(2))


@operation
def dmala(s: Structure, rng: Any) -> None:
    _sampler(s, rng, ebm.DMALA(0.5))


@operation
def pas(s: Structure, rng: Any) -> None:
    _sampler(s, rng, ebm.PAS(2))


@operation
def parallel_tempering(s: Structure, rng: Any) -> None:
    # Its hot replicas start where the cold ones do, so only many steps forget the start.
    key = int(rng.integers(2**31))
    sampler = ebm.ParallelTempering([0.3, 0.6, 1.0])
    drawn = ebm.sample(s.model, sampler, DRAWS, key=key, num_chains=DRAWS, burn_in=100)
    need(_mixes(s.truth))
    _stationary(s, drawn, s.truth, s.truth.p(), "after 100 steps", 0.02)


@operation
def tempered_transitions(s: Structure, rng: Any) -> None:
    _sampler(s, rng, ebm.TemperedTransitions([0.5, 0.75, 1.0]))


@operation
def pmp(s: Structure, rng: Any) -> None:
    """Perturbed maxima are another distribution: their states must be possible ones."""
    drawn = ebm.sample(s.model, ebm.PMP(50), 200, key=int(rng.integers(2**31)))
    need(s.truth.means is None)
    rows = np.concatenate([x.reshape(len(x), -1) for x in told(s, drawn)], 1)
    ok = (rows >= 0) & (rows < np.array(s.truth.counts))
    holds("states", ok.all(), rows[~ok.all(1)][:1], "states of the variables")


# Learners.


def _near_gradient(
    s: Structure, gradient: Any, expected: list[np.ndarray], errors: Any = None, atol: float = 2e-3
) -> None:
    for k, (feature, wanted) in enumerate(zip(s.truth.features, expected, strict=True)):
        got = s.array(gradient, feature)
        if got.shape != wanted.shape:
            raise Wrong(f"gradient of {feature.name}: shape {got.shape}, expected {wanted.shape}")
        # What no configuration meets is no parameter: the diagonals of couplings.
        got = np.where(feature.values.any(0), got, wanted)
        error = atol if errors is None else errors[k]
        if not (np.abs(got - wanted) <= error + 2e-3 * np.abs(wanted)).all():
            raise Wrong(f"gradient of {feature.name}: got {_short(got)}, expected {_short(wanted)}")


def _difference(a: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _mean(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.mean(x, 0) for x in zip(*parts, strict=True)]


def _step(s: Structure, learner: Any, batch: Any, rng: Any) -> tuple[Any, Any]:
    key = int(rng.integers(2**31))
    state = learner.init(s.model, key=key)
    gradient, _, info = learner.step(s.model, state, batch, key=key, epoch=0)
    return gradient, info


@operation
def mle(s: Structure, rng: Any) -> None:
    need(s.truth.features)
    data = data_of(s, rng, 3)
    gradient, info = _step(s, ebm.MLE(ebm.Exact(), loss=True), data.batch, rng)
    given = posteriors(s, data)
    positive = _mean([truth.expected(truth.p(extra)) for truth, extra in given])
    negative = s.truth.expected(s.truth.p())
    _near_gradient(s, gradient, _difference(negative, positive))
    loss = s.truth.log_z() - np.mean([truth.log_z(extra) for truth, extra in given])
    near("loss", info.loss, loss, atol=5e-3)


@operation
def mle_missing(s: Structure, rng: Any) -> None:
    """Some values of the first layer are missing."""
    first = s.truth.parts[0]
    need(s.truth.features and not s.is_graph and first.seen)
    data = data_of(s, rng, 3)
    batch = list(data.batch) if isinstance(data.batch, tuple) else [data.batch]
    gaps = rng.random(batch[0].shape) < 0.4
    batch[0] = np.where(gaps, np.nan, np.asarray(batch[0], np.float32))
    rows, real = data.rows.copy(), None if data.real is None else data.real.copy()
    if first.is_real:
        assert real is not None
        real[:, : first.size] = batch[0]
    else:
        rows[:, : first.size] = np.where(gaps, -1, rows[:, : first.size])
    given = posteriors(s, Data(None, rows, real))
    whole = batch[0] if len(batch) == 1 else tuple(batch)
    gradient, _ = _step(s, ebm.MLE(ebm.Exact()), whole, rng)
    positive = _mean([truth.expected(truth.p(extra)) for truth, extra in given])
    _near_gradient(s, gradient, _difference(s.truth.expected(s.truth.p()), positive))


@operation
def pseudo_likelihood(s: Structure, rng: Any) -> None:
    need(s.truth.means is None and s.truth.features)
    data = data_of(s, rng, 3, hide=False)
    gradient, info = _step(s, ebm.PseudoLikelihood(), data.batch, rng)
    found = [_pseudo(s, row) for row in data.rows]
    near("loss", info.loss, -np.mean([value for value, _ in found]), atol=2e-3)
    _near_gradient(s, gradient, [-x for x in _mean([g for _, g in found])])


def _pseudo(s: Structure, row: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """The pseudo-log-likelihood of a row, and its gradient. Variables that are functions of others
    follow them, and have no term.
    """
    truth, own = s.truth, s.truth.held(row)
    children = _children(s)
    here, value = truth.expected(truth.p(own)), 0.0
    total = [np.zeros_like(x) for x in here]
    for v in np.setdiff1d(np.flatnonzero(row >= 0), children):
        free = row.copy()
        free[[v, *children]] = -1
        extra = truth.held(free)
        value += truth.log_z(own) - truth.log_z(extra)
        others = truth.expected(truth.p(extra))
        total = [t + a - b for t, a, b in zip(total, here, others, strict=True)]
    return value, total


def _children(s: Structure) -> np.ndarray:
    """The variables of a graph that the library takes for functions of the others, which they must
    be.
    """
    if s.kind != "FactorGraphModel":
        return np.zeros(0, int)
    children = np.asarray(s.model.sites.children)
    possible = s.truth.states[np.isfinite(s.truth.scores)]
    others = np.delete(possible, children, axis=1)
    assert len(np.unique(others, axis=0)) == len(np.unique(possible, axis=0))
    return children


@operation
def pseudo_log_likelihood(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    data = data_of(s, rng, 3, hide=False)
    found = ebm.pseudo_log_likelihood(s.model, data.batch)
    wanted = [_pseudo(s, row)[0] for row in data.rows]
    near("pseudo-log-likelihood", found, wanted, atol=2e-3)


def _wrong_units(truth: Truth, row: np.ndarray) -> np.ndarray:
    """How many visible units each configuration has other than a row."""
    return ((truth.states != row) & (row >= 0)).sum(1).astype(float)


@operation
def lssvm(s: Structure, rng: Any) -> None:
    need(s.truth.means is None and s.truth.features)
    data = data_of(s, rng, 2)
    gradient, info = _step(s, ebm.LSSVM(ebm.Exact(product="max")), data.batch, rng)
    gradients, losses = [], []
    for row in data.rows:
        right = s.truth.scores + s.truth.held(row)
        rival = s.truth.scores + _wrong_units(s.truth, row)
        need(_unique(right) and _unique(rival))
        losses.append(rival.max() - right.max())
        a, b = right.argmax(), rival.argmax()
        gradients.append([x.values[b] - x.values[a] for x in s.truth.features])
    near("loss", info.loss, np.mean(losses), atol=5e-3)
    _near_gradient(s, gradient, _mean(gradients))


@operation
def mssvm(s: Structure, rng: Any) -> None:
    need(s.truth.means is None and s.truth.features)
    data = data_of(s, rng, 2)
    gradient, info = _step(s, ebm.MSSVM(ebm.Exact(product="mixed")), data.batch, rng)
    gradients, losses = [], []
    for row in data.rows:
        visible = row >= 0
        rows, scores = s.truth.marginal_scores(visible)
        scores = scores + (rows != row[visible]).sum(1)
        need(_unique(scores))
        rival = row.copy()
        rival[visible] = rows[scores.argmax()]
        a, b = s.truth.held(row), s.truth.held(rival)
        losses.append(scores.max() - s.truth.log_z(a))
        expected = [s.truth.expected(s.truth.p(x)) for x in (b, a)]
        gradients.append(_difference(*expected))
    near("loss", info.loss, np.mean(losses), atol=5e-3)
    _near_gradient(s, gradient, _mean(gradients))


def _errors(truth: Truth, p: np.ndarray, number: int) -> list[np.ndarray]:
    """How far the mean of so many features of draws may be from the truth."""
    out = []
    for x in truth.features:
        mean = np.tensordot(p, x.values, 1)
        spread = np.tensordot(p, x.values**2, 1) - mean**2
        spread = np.maximum(spread, 0) + x.noise
        out.append(ERRORS * np.sqrt(2 * spread / number) + 0.01)
    return out


@operation
def cd(s: Structure, rng: Any) -> None:
    """Of data from the model itself, the gradient is zero on average."""
    need(s.truth.features)
    data = data_of(s, rng, DRAWS, hide=False)
    gradient, _ = _step(s, ebm.CD(1, inference=_posterior(s)), data.batch, rng)
    p = s.truth.p()
    zero = [np.zeros_like(x) for x in s.truth.expected(p)]
    _near_gradient(s, gradient, zero, _errors(s.truth, p, DRAWS))


def _posterior(s: Structure) -> Any:
    return ebm.Exact()


@operation
def sap(s: Structure, rng: Any) -> None:
    need(s.truth.features)
    data = data_of(s, rng, 3)
    learner = ebm.SAP(ebm.Gibbs(), num_chains=DRAWS, steps=60, inference=_posterior(s))
    gradient, _ = _step(s, learner, data.batch, rng)
    need(_mixes(s.truth))
    p = s.truth.p()
    given = posteriors(s, data)
    positive = _mean([truth.expected(truth.p(extra)) for truth, extra in given])
    errors = [x + 0.02 for x in _errors(s.truth, p, DRAWS)]
    _near_gradient(s, gradient, _difference(s.truth.expected(p), positive), errors)


# Estimates.


@operation
def log_likelihood(s: Structure, rng: Any) -> None:
    data = data_of(s, rng, 3)
    found = ebm.log_likelihood(s.model, data.batch, s.truth.log_z())
    wanted = [truth.log_z(extra) - s.truth.log_z() for truth, extra in posteriors(s, data)]
    near("log-likelihood", found, wanted, atol=2e-3)


@operation
def free_energy(s: Structure, rng: Any) -> None:
    need(hasattr(s.model, "free_energy"))
    data = data_of(s, rng, 3)
    batch = data.batch if isinstance(data.batch, tuple) else (data.batch,)
    if s.kind.startswith("LayeredModel"):
        batch = (data.batch,)
    elif len(batch) > 1:
        batch = (batch[0], batch[1][:, 0])
    found = s.model.free_energy(*batch)
    wanted = [-truth.log_z(extra) for truth, extra in posteriors(s, data)]
    near("free energy", found, wanted, atol=2e-3)


@operation
def classify(s: Structure, rng: Any) -> None:
    seen = [part for part in s.truth.parts if part.seen]
    need(not s.is_graph and len(seen) == 2 and seen[1].kind == "categorical" and seen[1].size == 1)
    data = data_of(s, rng, 3)
    found = np.asarray(ebm.classify(s.model, data.batch[0]))
    label = int(np.flatnonzero(s.truth.owner == s.truth.parts.index(seen[1]))[0])
    rows = data.rows.copy()
    rows[:, label] = -1
    for k, (truth, extra) in enumerate(posteriors(s, Data(None, rows, data.real))):
        wanted = truth.marginals(truth.p(extra))[label]
        if found.ndim == 1:
            if _unique(np.log(wanted + 1e-30)):
                holds("label", found[k] == wanted.argmax(), found[k], wanted.argmax())
        else:
            near("probabilities of labels", found[k], wanted, atol=2e-3)


@operation
def ais(s: Structure, rng: Any) -> None:
    found = ebm.ais(s.model, key=int(rng.integers(2**31)), betas=200, num_chains=500)
    need(float(found.effective_chains) > 100)
    value, error = float(found.log_partition), float(found.standard_error)
    log_z = s.truth.log_z()
    holds("log Z", abs(value - log_z) <= 6 * error + 0.05, f"{value} ± {error}", log_z)


@operation
def log_partition(s: Structure, rng: Any) -> None:
    found = ebm.log_partition(s.model, key=int(rng.integers(2**31)), num_chains=8, max_steps=256)
    low, high = found.interval
    slack, log_z = high - low + 0.05, s.truth.log_z()
    holds("interval", low - slack <= log_z <= high + slack, found.interval, log_z)


# Queries.


@operation
def query(s: Structure, rng: Any) -> None:
    _query(s, rng, None)


@operation
def query_exact(s: Structure, rng: Any) -> None:
    _query(s, rng, ebm.Exact())


def _query(s: Structure, rng: Any, inference: Any) -> None:
    given = evidence_of(s, rng)
    answer = ebm.query(s.model, given.evidence, given.observed, inference)
    truths = [(truth, truth.p(extra)) for truth, extra in given.truths]
    if s.is_graph:
        near_marginals(s, "answer", answer, truths, atol=2e-3)
        return
    first = s.truth.parts[0]
    if first.is_real:
        moments: Any = [(p, truth.means, truth.second) for truth, p in truths]
        mean = np.array([p @ m[:, : first.size] for p, m, _ in moments])
        square = np.array([p @ np.einsum("rii->ri", x)[:, : first.size] for p, _, x in moments])
        near("mean", answer.mean, mean, atol=2e-3)
        near("variance", answer.variance, square - mean**2, atol=5e-3)
        return
    got = np.asarray(answer)
    if not first.size:
        holds("answer", not got.size, got.shape, "nothing")
        return
    wanted = np.array([truth.marginals(p)[: first.size] for truth, p in truths])
    if first.kind == "binary":
        near("answer", got, wanted[..., 1], atol=2e-3)
    else:
        near("answer", got.reshape(wanted.shape), wanted, atol=2e-3)


@operation
def joint_query(s: Structure, rng: Any) -> None:
    need(s.truth.means is None)
    truth = s.truth
    own = np.arange(len(truth.counts)) if s.is_graph else np.flatnonzero(truth.owner == 0)
    need(len(own) > 1)
    targets = [int(v) for v in rng.permutation(own)[:2]]
    row = np.full(len(truth.counts), -1)
    some = [v for v in own if v not in targets and rng.random() < 0.5]
    row[some] = truth.draw(rng, 1)[0][some]
    extra = truth.held(row)
    if s.is_graph:
        evidence = grouped(s, row.astype(np.int32))
        places = []
        for v in targets:
            k = int(truth.owner[v])
            at = int(v - np.flatnonzero(truth.owner == k)[0])
            index = np.unravel_index(at, s.model.shapes[k])
            places.append((s.groups[k], tuple(int(i) for i in index)))
    else:
        evidence = np.where(row[own] < 0, np.nan, row[own]).astype(np.float32)
        places = targets
    found = ebm.joint_query(s.model, evidence, inference=ebm.Exact(), targets=places)
    wanted = np.zeros([truth.counts[v] for v in targets])
    np.add.at(wanted, tuple(truth.states[:, v] for v in targets), truth.p(extra))
    near("joint probabilities", found, wanted, atol=2e-3)


# Adaptors and files.


@operation
def distribution(s: Structure, rng: Any) -> None:
    from ebmlearn.numpyro import EnergyDistribution

    need(s.truth.means is None)
    model = EnergyDistribution(s.model, "exact")
    truth = s.truth
    visible = truth.seen if model.event_shape[0] == truth.seen.sum() else np.ones_like(truth.seen)
    holds("event", model.event_shape == (visible.sum(),), model.event_shape, visible.sum())
    rows, scores = truth.marginal_scores(visible)
    wanted = scores - truth.log_z()
    near("log_prob", model.log_prob(jnp.asarray(rows, jnp.int32)), wanted, atol=3e-3)


@operation
def distribution_unnormalised(s: Structure, rng: Any) -> None:
    from ebmlearn.numpyro import EnergyDistribution

    data = data_of(s, rng, 3)
    model = EnergyDistribution(s.model, s.truth.log_z())
    need(model.event_shape[0] == sum(part.size for part in s.truth.parts if part.seen))
    parts = data.batch if isinstance(data.batch, tuple) else (data.batch,)
    event = jnp.concatenate([jnp.asarray(x) for x in parts], -1)
    found = model.log_prob(event)
    wanted = [truth.log_z(extra) - s.truth.log_z() for truth, extra in posteriors(s, data)]
    near("log_prob", found, wanted, atol=3e-3)


@operation
def sampler_kernel(s: Structure, rng: Any) -> None:
    import numpyro

    from ebmlearn.numpyro import SamplerKernel

    kernel = SamplerKernel(ebm.Gibbs())
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=20,
        num_samples=5,
        num_chains=1000,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(int(rng.integers(2**31))), s.model)
    found = mcmc.get_samples(group_by_chain=True)
    need(_mixes(s.truth))
    named = [np.asarray(found[part.name])[:, -1] for part in s.truth.parts]
    _stationary(s, layers_of(s, named), s.truth, s.truth.p(), "samples", 0.05)


@operation
def as_energy(s: Structure, rng: Any) -> None:
    need(s.is_graph)
    model = s.model.as_energy()
    shapes = s.model.shapes
    parts = np.split(s.truth.states, np.cumsum([math.prod(x) for x in shapes])[:-1], -1)
    named = model.named([jnp.asarray(x, jnp.int32) for x in parts])
    near("energy", model.energies(model.encode(named)), -s.truth.scores, atol=2e-3)


@operation
def to_tables(s: Structure, rng: Any) -> None:
    from ebmlearn import uai

    model = uai.to_tables(s.model)
    rows = jnp.asarray(s.truth.states, jnp.int32)
    near("energy", model.energy(rows), -s.truth.scores, atol=2e-3)


@operation
def uai_file(s: Structure, rng: Any) -> None:
    from ebmlearn import uai

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.uai"
        uai.write(path, s.model)
        model = uai.read(path)
    rows = jnp.asarray(s.truth.states, jnp.int32)
    near("energy", model.energy(rows), -s.truth.scores, atol=2e-3)


@operation
def uai_answers(s: Structure, rng: Any) -> None:
    from ebmlearn import uai

    network = uai.to_network(s.model)
    found, _ = uai.answer("PR", network, seconds=5)
    near("log10 Z", found.log10_partition, s.truth.log_z() / math.log(10), atol=2e-3)


@operation
def to_pgmax(s: Structure, rng: Any) -> None:
    import ebmlearn.pgmax

    need(s.truth.means is None)
    graph, _, evidence = ebmlearn.pgmax.to_pgmax(s.model)
    model = ebmlearn.pgmax.FactorGraphModel(graph).with_evidence(evidence)
    rows = jnp.asarray(s.truth.states, jnp.int32)
    near("energy", model.energy(rows), -s.truth.scores, atol=2e-3)


@operation
def to_factor_graph(s: Structure, rng: Any) -> None:
    from ebmlearn import uai

    model = uai.to_factor_graph(s.model)
    rows = jnp.asarray(s.truth.states, jnp.int32)
    near("energy", model.energy(rows), -s.truth.scores, atol=2e-3)


@operation
def save_and_load(s: Structure, rng: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.ebm"
        ebm.save(path, s.model)
        loaded: Any = ebm.load(path)
    holds("class", type(loaded) is type(s.model), type(loaded), type(s.model))
    for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(s.model), strict=True):
        near("array", a, b, 0, 0)
    near("energy", _energies(s, loaded), -s.truth.scores, rtol=1e-4)


def chosen(structure: Structure, number: int) -> list[str]:
    """Some operations, others for each structure; exact inference is always among them."""
    rng = np.random.default_rng([structure.seed, 1])
    others = [name for name in OPERATIONS if name != "exact_sum"]
    return ["exact_sum", *(str(x) for x in rng.permutation(others)[: max(number - 1, 0)])]
