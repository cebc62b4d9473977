"""Structures at random, and what is true of them.

`structure(seed)` draws a model: its groups, their kinds, names and order, what joins them, and its
parameters. `Truth` lists all its configurations in float64 NumPy, from the energy that the
documentation states. Nothing here calls the energy of the library.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from plain_bp import logsumexp
from scipy.special import log_ndtr


# What the code of a structure may use.
HEADER = """\
import jax.numpy as jnp
import numpy as np
import ebmlearn as ebm
inf = float("inf")
def f(x, *shape):
    return jnp.asarray(x, jnp.float32).reshape(shape or np.shape(x))
"""
MOST = 2**11  # configurations


class Part(NamedTuple):
    """A layer of units, or a group of variables."""

    name: str
    kind: str
    size: int
    states: int
    seen: bool

    @property
    def width(self) -> int:
        return self.size * self.states if self.kind == "categorical" else self.size

    @property
    def is_real(self) -> bool:
        return self.kind in ("gaussian", "nonnegative")


class Feature(NamedTuple):
    """The derivative of the log-potential by one array of parameters, for each configuration; and
    the name of this array in a model, as code.
    """

    name: str
    values: np.ndarray
    # How much real units vary it at most, given the others.
    noise: float = 0.0


class Factor(NamedTuple):
    scope: tuple[int, ...]
    table: np.ndarray


class Sums(NamedTuple):
    """Sums over the real units for each configuration of the others: the logarithm of the integral,
    the means, and the second moments.
    """

    scores: np.ndarray
    means: np.ndarray
    second: np.ndarray
    locations: np.ndarray
    scales: np.ndarray


@dataclasses.dataclass
class Truth:
    """All configurations of the discrete units, with the real ones integrated out."""

    parts: tuple[Part, ...]
    states: np.ndarray
    scores: np.ndarray
    features: list[Feature]
    factors: list[Factor]
    # Real units: their moments, and what their values make of all this.
    means: np.ndarray | None = None
    second: np.ndarray | None = None
    # Of units that are independent given the discrete ones: before they are cut off below 0.
    locations: Any = None
    scales: Any = None
    # Points whose sums are the integrals, and their weights.
    points: tuple[np.ndarray, np.ndarray] | None = None
    given: Callable[[np.ndarray], "Truth"] | None = None

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        discrete = (part for part in self.parts if not part.is_real)
        return tuple(part.states for part in discrete for _ in range(part.size))

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """The part of each discrete variable."""
        sizes = [0 if part.is_real else part.size for part in self.parts]
        return np.repeat(np.arange(len(self.parts)), sizes)

    @property
    def seen(self) -> np.ndarray:
        return np.array([self.parts[k].seen for k in self.owner], bool)

    @property
    def is_possible(self) -> bool:
        """Whether there is a configuration."""
        return bool(np.isfinite(self.scores).any())

    def log_z(self, extra: Any = 0.0) -> float:
        return float(logsumexp(self.scores + extra))

    def p(self, extra: Any = 0.0) -> np.ndarray:
        scores = self.scores + extra
        return np.exp(scores - logsumexp(scores))

    def held(self, row: Any) -> np.ndarray:
        """0 for configurations in which the variables are in these states, -1 for any, else minus
        infinity.
        """
        row = np.asarray(row)
        agree = (self.states == row) | (row < 0)
        return np.where(agree.all(1), 0.0, -np.inf)

    def marginals(self, p: np.ndarray) -> list[np.ndarray]:
        """The probability of each state of each variable."""
        return [np.bincount(self.states[:, v], p, count) for v, count in enumerate(self.counts)]

    def expected(self, p: np.ndarray) -> list[np.ndarray]:
        return [np.tensordot(p, x.values, 1) for x in self.features]

    def draw(self, rng: Any, number: int, extra: Any = 0.0) -> np.ndarray:
        """Configurations, drawn exactly."""
        return self.states[rng.choice(len(self.states), number, p=self.p(extra))]

    def marginal_scores(self, visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The states of some variables, and their log-potentials with all others summed out."""
        rows, place = np.unique(self.states[:, visible], axis=0, return_inverse=True)
        scores = np.full(len(rows), -np.inf)
        np.logaddexp.at(scores, place.reshape(-1), self.scores)
        return rows, scores

    @functools.cached_property
    def is_tree(self) -> bool:
        """Whether the variables and the factors of two or more of them have no cycle."""
        root = {}

        def find(x):
            while root.setdefault(x, x) != x:
                x = root[x]
            return x

        for k, (scope, _) in enumerate(self.factors):
            for v in scope if len(scope) > 1 else ():
                a, b = find(("factor", k)), find(v)
                if a == b:
                    return False
                root[a] = b
        return True


@dataclasses.dataclass
class Structure:
    """`code` makes the model. `names` are what it defines."""

    seed: int
    kind: str
    code: str
    truth: Truth
    names: dict[str, Any]

    @property
    def model(self) -> Any:
        return self.names["model"]

    @property
    def is_graph(self) -> bool:
        return self.kind in ("TableModel", "GridMRF", "FactorGraphModel", "FactorModel")

    def array(self, like: Any, feature: Feature) -> np.ndarray:
        """The array of a feature in a model, or in a gradient."""
        return np.asarray(eval(f"like.{feature.name}", {**self.names, "like": like}), np.float64)

    @property
    def groups(self) -> list[Any]:
        """What names each group of a graph, in order."""
        return self.names.get("groups", [part.name for part in self.truth.parts])


def made(seed: int, kind: str, code: str, truth: Truth) -> Structure:
    names: dict[str, Any] = {}
    # PGMax is not written for strict promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(HEADER + code, names)
    total = sum_of(truth)
    # The oracle agrees with itself: its factors with its scores.
    if truth.factors and truth.means is None:
        np.testing.assert_allclose(total, truth.scores, rtol=1e-9, atol=1e-9)
    return Structure(seed, kind, code, truth, names)


def sum_of(truth: Truth) -> np.ndarray:
    out = np.zeros(len(truth.states))
    for scope, table in truth.factors:
        out = out + table[tuple(truth.states[:, v] for v in scope)]
    return out


def literal(x: Any) -> str:
    """An array as code."""
    x = np.asarray(x)
    shape = f", {', '.join(map(str, x.shape))}" if 0 in x.shape else ""
    return f"f({x.tolist()}{shape})"


def every(counts: Any) -> np.ndarray:
    """All configurations of variables."""
    counts = tuple(counts)
    return np.indices(counts).reshape(len(counts), -1).T if counts else np.zeros((1, 0), int)


def normal(rng: Any, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Numbers that are short as code."""
    return np.round(scale * rng.normal(size=shape), 2) + 0.0


def symmetric(rng: Any, part: Part, scale: float) -> np.ndarray:
    """Couplings inside a layer, zero within each unit."""
    w = normal(rng, part.width, part.width, scale=scale)
    owner = np.arange(part.width) // max(part.width // max(part.size, 1), 1)
    return np.where(owner[:, None] == owner, 0.0, np.triu(w, 1) + np.triu(w, 1).T)


@dataclasses.dataclass
class Layered:
    """Layers of units joined by blocks of weights: E = sum of E_0(x_k) - b_k x_k - x_k W_kl x_l.
    Gaussian units have E_0 = (x^2 + o^2) / 2 s^2, nonnegative ones r x^2 / 2.
    """

    parts: tuple[Part, ...]
    blocks: list[tuple[int, int, np.ndarray]]
    biases: list[np.ndarray]
    log_scale: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    origin: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    precision: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def encoded(self, states: np.ndarray) -> dict[int, np.ndarray]:
        """States of the discrete layers, categorical ones one-hot."""
        out, at = {}, 0
        for k, part in enumerate(self.parts):
            if part.is_real:
                continue
            own = states[:, at : at + part.size]
            at += part.size
            if part.kind == "categorical":
                own = np.eye(part.states)[own].reshape(len(states), part.width)
            out[k] = own.astype(float)
        return out

    def places(self) -> dict[int, slice]:
        """Where the units of each real layer are among all real ones."""
        out, at = {}, 0
        for k, part in enumerate(self.parts):
            if part.is_real:
                out[k] = slice(at, at + part.size)
                at += part.size
        return out

    def sums(self, x: dict[int, np.ndarray], known: np.ndarray) -> Sums:
        """Sums over the real units, or over those that are NaN in `known`."""
        rows = next(iter(x.values())).shape[0] if x else 1
        places, size = self.places(), len(known)
        field, own, scores = np.zeros((rows, size)), np.zeros((size, size)), np.zeros(rows)
        for k, part in enumerate(self.parts):
            if not part.is_real:
                scores = scores + x[k] @ self.biases[k]
                continue
            field[:, places[k]] += self.biases[k]
            if part.kind == "gaussian":
                variance = np.exp(2 * self.log_scale[k])
                scores = scores - (self.origin[k] ** 2 / variance).sum() / 2
                own[places[k], places[k]] += np.diag(1 / variance)
            else:
                own[places[k], places[k]] += np.diag(self.precision[k])
        for a, b, w in self.blocks:
            share = 0.5 if a == b else 1.0
            if a in x and b in x:
                scores = scores + share * np.einsum("ri,ij,rj->r", x[a], w, x[b])
            elif a in x:
                field[:, places[b]] += x[a] @ w
            elif b in x:
                field[:, places[a]] += x[b] @ w.T
            else:
                own[places[a], places[b]] -= share * w
                own[places[b], places[a]] -= share * w.T
        free = np.isnan(known)
        value = known[~free]
        scores = scores + field[:, ~free] @ value - value @ own[np.ix_(~free, ~free)] @ value / 2
        field = field - value @ own[~free]
        means, spread = np.zeros((rows, size)), np.zeros((rows, size, size))
        means[:, ~free] = value
        cut = np.zeros(size, bool)
        for k, place in places.items():
            cut[place] = self.parts[k].kind == "nonnegative"
        # Nonnegative units are joined to no other real ones.
        for i in np.flatnonzero(free & cut).tolist():
            log, mean, square = _rectified(field[:, i], own[i, i])
            scores, means[:, i] = scores + log, mean
            spread[:, i, i] = square - mean**2
        free = free & ~cut
        some, sent = own[np.ix_(free, free)], field[:, free]
        if free.any() and np.linalg.eigvalsh(some).min() <= 0.05:
            raise ValueError("no distribution")
        inverse = np.linalg.inv(some)
        scores = scores + np.einsum("ri,ij,rj->r", sent, inverse, sent) / 2
        scores = scores + (free.sum() * math.log(2 * math.pi) - np.linalg.slogdet(some)[1]) / 2
        means[:, free] = sent @ inverse
        spread[:, np.outer(free, free)] = inverse.reshape(-1)
        second = spread + means[:, :, None] * means[:, None, :]
        wide = np.diag(own)
        return Sums(scores, means, second, field / wide, 1 / np.sqrt(wide))

    def truth(self, features: Callable[..., list[Feature]] | None = None) -> Truth:
        size = sum(part.size for part in self.parts if part.is_real)
        return self._truth(np.full(size, np.nan), features)

    def _truth(self, known: np.ndarray, features: Any) -> Truth:
        counts = [p.states for p in self.parts if not p.is_real for _ in range(p.size)]
        states = every(counts)
        x = self.encoded(states)
        found = self.sums(x, known)
        make = self.features if features is None else features
        truth = Truth(self.parts, states, found.scores, make(x, found), self.factors())
        if len(known):
            truth.means, truth.second = found.means, found.second
            truth.locations, truth.scales = found.locations, found.scales
            truth.given = lambda row: self._truth(row, features)
            truth.factors = []
        return truth

    def products(self, x: dict[int, np.ndarray], found: Sums, a: int, b: int) -> np.ndarray:
        """The mean products of the units of two layers."""
        places = self.places()
        if a in places and b in places:
            return found.second[:, places[a], places[b]]
        left = found.means[:, places[a]] if a in places else x[a]
        right = found.means[:, places[b]] if b in places else x[b]
        return left[:, :, None] * right[:, None, :]

    def noise(self, found: Sums, *layers: int) -> float:
        """A bound of the variance of products of units, given the discrete ones."""
        real = [self.places()[k] for k in layers if k in self.places()]
        square = np.einsum("rii->ri", found.second)
        spread = square - found.means**2
        if len(real) < 2:
            return max((float(spread[:, at].max()) for at in real), default=0.0)
        # The fourth moment of a normal distribution.
        fourth = found.means**4 + 6 * found.means**2 * spread + 3 * spread**2
        return float(fourth[:, [i for at in real for i in range(at.start, at.stop)]].max())

    def units(self, x: dict[int, np.ndarray], found: Sums, k: int) -> np.ndarray:
        return found.means[:, self.places()[k]] if k in self.places() else x[k]

    def features(self, x: dict[int, np.ndarray], found: Sums) -> list[Feature]:
        """Those of a `LayeredModel`."""
        out = []
        # Blocks in both directions between two layers are one, as the first of them is.
        pairs = [(a, b) for a, b, _ in self.blocks]
        pairs = [pair for k, pair in enumerate(pairs) if pair[::-1] not in pairs[:k]]
        for n, (a, b) in enumerate(pairs):
            values = self.products(x, found, a, b)
            if a == b:
                values = values * _apart(self.parts[a])
            out.append(Feature(f"weights[{n}]", values, self.noise(found, a, b)))
        for k in range(len(self.parts)):
            values = self.units(x, found, k)
            out.append(Feature(f"biases[{k}]", values, self.noise(found, k)))
        for k in self.log_scale:
            at, variance = self.places()[k], np.exp(2 * self.log_scale[k])
            square = np.einsum("rii->ri", found.second)[:, at]
            values = (square + self.origin[k] ** 2) / variance
            noise = self.noise(found, k, k) / float(variance.min()) ** 2
            out.append(Feature(f"units_of[{k}].log_scale", values, noise))
        return out

    def factors(self) -> list[Factor]:
        """One for each unit, and one for each pair of units that are joined."""
        starts, at = {}, 0
        for k, part in enumerate(self.parts):
            starts[k] = at
            at += 0 if part.is_real else part.size
        out = []
        for k, part in enumerate(self.parts):
            if not part.is_real:
                tables = self._by_unit(k, self.biases[k])
                out += [Factor((starts[k] + i,), table) for i, table in enumerate(tables)]
        for a, b, w in self.blocks:
            if self.parts[a].is_real or self.parts[b].is_real:
                continue
            left = [self._by_unit(a, row) for row in w.T]
            for i in range(self.parts[a].size):
                for j in range(self.parts[b].size):
                    if a == b and i >= j:
                        continue
                    columns = np.stack([left[c][i] for c in self._columns(b, j)], -1)
                    table = columns
                    if self.parts[b].kind == "binary":
                        table = np.stack([np.zeros_like(columns[:, 0]), columns[:, 0]], -1)
                    if table.any():
                        out.append(Factor((starts[a] + i, starts[b] + j), table))
        return out

    def _columns(self, k: int, unit: int) -> range:
        wide = self.parts[k].width // max(self.parts[k].size, 1)
        return range(unit * wide, (unit + 1) * wide)

    def _by_unit(self, k: int, values: np.ndarray) -> list[np.ndarray]:
        """A table over the states of each unit, from numbers for each unit as it is inside."""
        if self.parts[k].kind == "categorical":
            return list(values.reshape(-1, self.parts[k].states))
        return [np.array([0.0, x]) for x in values]


def _rectified(field: np.ndarray, precision: float) -> tuple[np.ndarray, ...]:
    """One nonnegative unit: the logarithm of its integral, its mean and its second moment."""
    location, scale = field / precision, 1 / math.sqrt(precision)
    tail = log_ndtr(location / scale)
    value = field**2 / (2 * precision) + math.log(2 * math.pi / precision) / 2 + tail
    ratio = np.exp(-((location / scale) ** 2) / 2 - math.log(2 * math.pi) / 2 - tail)
    square = location**2 + scale**2 + location * scale * ratio
    return value, location + scale * ratio, square


def _apart(part: Part) -> np.ndarray:
    """1 for entries of two units, 0 within one."""
    owner = np.arange(part.width) // max(part.width // max(part.size, 1), 1)
    return (owner[:, None] != owner).astype(float)


VISIBLE = ("visible", "label", "pixels", "left")
HIDDEN = ((), ("hidden",), ("hidden",), ("hidden_1", "hidden_2"), ("hidden_2", "hidden_1"))


def _kind(rng: Any, mixed: str) -> str:
    choices = {
        "binary": ("binary",),
        "discrete": ("binary", "binary", "categorical"),
        "gaussian": ("binary", "gaussian"),
        "any": ("binary", "categorical", "gaussian", "nonnegative"),
    }[mixed]
    return str(rng.choice(choices))


def _parts(rng: Any, mixed: str) -> tuple[Part, ...]:
    hidden = list(HIDDEN[rng.integers(len(HIDDEN))])
    visible = list(rng.permutation(VISIBLE)[: rng.integers(1, 4 if not hidden else 3)])
    at = int(rng.integers(1, len(visible) + 1))
    names = [*visible[:at], *hidden, *visible[at:]][:4]
    parts = []
    for name in names:
        kind = _kind(rng, mixed)
        size = int(rng.choice([0, 1, 2, 3], p=[0.02, 0.18, 0.5, 0.3]))
        if kind == "categorical":
            size = min(size, 2)
        states = int(rng.choice([2, 3])) if kind == "categorical" else 2
        parts.append(Part(str(name), kind, size, states, not str(name).startswith("hidden")))
    return tuple(parts)


def _pairs(rng: Any, number: int) -> list[tuple[int, int]]:
    """Which layers are joined: a chain, a star, all of them, some, or none."""
    pairs = list(itertools.combinations(range(number), 2))
    shape = rng.choice(["chain", "star", "all", "some", "none"], p=[0.3, 0.25, 0.2, 0.2, 0.05])
    order = rng.permutation(number)
    if shape == "chain":
        pairs = list(itertools.pairwise(order.tolist()))
    elif shape == "star":
        pairs = [(int(order[0]), int(k)) for k in order[1:]]
    elif shape == "some":
        pairs = [pair for pair in pairs if rng.random() < 0.5]
    elif shape == "none":
        pairs = []
    # Either orientation, in any order.
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in pairs]
    return [pairs[k] for k in rng.permutation(len(pairs))]


def random_layers(rng: Any, mixed: str) -> Layered:
    while True:
        parts = _parts(rng, mixed)
        discrete = [p.states**p.size for p in parts if not p.is_real]
        if math.prod(discrete) > MOST:
            continue
        scale = float(rng.choice([0.5, 1.0, 2.0]))
        blocks = []
        for a, b in _pairs(rng, len(parts)):
            real = [parts[k].is_real for k in (a, b)]
            if all(real) and "nonnegative" in (parts[a].kind, parts[b].kind):
                continue
            own = 0.15 if all(real) else scale
            blocks.append((a, b, normal(rng, parts[a].width, parts[b].width, scale=own)))
            if rng.random() < 0.12:
                blocks.append((b, a, normal(rng, parts[b].width, parts[a].width, scale=own)))
        for k, part in enumerate(parts):
            if rng.random() < 0.2 and part.kind != "nonnegative" and part.size > 1:
                own = 0.15 if part.is_real else scale
                blocks.insert(rng.integers(len(blocks) + 1), (k, k, symmetric(rng, part, own)))
        biases = [normal(rng, part.width) for part in parts]
        gaussian = [k for k, part in enumerate(parts) if part.kind == "gaussian"]
        out = Layered(
            parts,
            blocks,
            biases,
            {k: normal(rng, parts[k].size, scale=0.2) for k in gaussian},
            {k: normal(rng, parts[k].size, scale=0.5 * (rng.random() < 0.3)) for k in gaussian},
            {
                k: np.round(rng.uniform(0.7, 1.5, parts[k].size), 2)
                for k, part in enumerate(parts)
                if part.kind == "nonnegative"
            },
        )
        try:
            out.truth()
        except ValueError:  # Gaussian units without a distribution.
            continue
        return out


def units_code(spec: Layered, k: int) -> str:
    part = spec.parts[k]
    if part.kind == "binary":
        return f"ebm.Binary({part.size})"
    if part.kind == "categorical":
        return f"ebm.Categorical({part.size}, {part.states})"
    if part.kind == "gaussian":
        own = literal(spec.log_scale[k])
        origin = f", {literal(spec.origin[k])}" if spec.origin[k].any() else ""
        return f"ebm.Gaussian({part.size}, {own}{origin})"
    return f"ebm.Nonnegative({part.size}, {literal(spec.precision[k])})"


def layered(seed: int, rng: Any) -> Structure:
    mixed = str(rng.choice(["binary", "discrete", "gaussian", "any"], p=[0.45, 0.3, 0.15, 0.1]))
    spec = random_layers(rng, mixed)
    names = [part.name for part in spec.parts]
    units = ", ".join(f"{name!r}: {units_code(spec, k)}" for k, name in enumerate(names))
    blocks = ", ".join(f"({names[a]!r}, {names[b]!r}): {literal(w)}" for a, b, w in spec.blocks)
    unary = ", ".join(f"{n!r}: {literal(x)}" for n, x in zip(names, spec.biases, strict=True))
    code = f"model = ebm.LayeredModel({{{units}}}, {{{blocks}}}, {{{unary}}})"
    kinds = "+".join(sorted({part.kind for part in spec.parts}))
    return made(seed, f"LayeredModel {kinds}", code, spec.truth())


def energy(seed: int, rng: Any) -> Structure:
    spec = random_layers(rng, str(rng.choice(["binary", "discrete"])))
    names = [part.name for part in spec.parts]
    alone = len(names) == 1
    if alone:
        spec.parts = (spec.parts[0]._replace(name="x"),)
    flat = [f"s[{name!r}].reshape(-1)" if not alone else "s.reshape(-1)" for name in names]
    terms = [
        f"{0.5 if a == b else 1.0} * ({flat[a]} @ {literal(w)} @ {flat[b]})"
        for a, b, w in spec.blocks
    ] + [f"{x} @ {literal(b)}" for x, b in zip(flat, spec.biases, strict=True)]
    units = ", ".join(f"{name!r}: {units_code(spec, k)}" for k, name in enumerate(names))
    given = units_code(spec, 0) if alone else f"{{{units}}}"
    code = f"model = ebm.EnergyModel(lambda s: -({' + '.join(terms)}), {given})"
    truth = spec.truth(lambda x, found: [])
    return made(seed, "EnergyModel", code, truth)


def _binary(name: str, size: int) -> Part:
    return Part(name, "binary", size, 2, not name.startswith("hidden"))


def classic(seed: int, rng: Any) -> Structure:
    name = str(rng.choice(list(_CLASSIC)))
    return _CLASSIC[name](seed, rng, float(rng.choice([0.5, 1.0, 2.0])))


def _size(rng: Any) -> int:
    return int(rng.choice([1, 2, 3], p=[0.2, 0.5, 0.3]))


def _named(spec: Layered, blocks: list[str], biases: list[str]):
    """The features of a class whose fields have these names."""

    def features(x: dict[int, np.ndarray], found: Sums) -> list[Feature]:
        out = []
        for name, own in zip([*blocks, *biases], spec.features(x, found), strict=True):
            out.append(own._replace(name=name))
        return out

    return features


def _rbm(seed: int, rng: Any, scale: float) -> Structure:
    parts = (_binary("visible", _size(rng)), _binary("hidden", _size(rng)))
    weights = normal(rng, parts[0].size, parts[1].size, scale=scale)
    biases = [normal(rng, part.size) for part in parts]
    spec = Layered(parts, [(0, 1, weights)], biases)
    code = f"model = ebm.RBM({literal(weights)}, {', '.join(map(literal, biases))})"
    names = _named(spec, ["weights"], ["visible_bias", "hidden_bias"])
    return made(seed, "RBM", code, spec.truth(names))


def _crbm(seed: int, rng: Any, scale: float) -> Structure:
    visible, hidden, features = _size(rng), _size(rng), 2
    parts = (_binary("visible", visible), _binary("hidden", hidden))
    weights = normal(rng, visible, hidden, scale=scale)
    left, right = normal(rng, visible, features), normal(rng, hidden, features)
    biases = [normal(rng, visible), normal(rng, hidden)]
    x = normal(rng, features)
    spec = Layered(parts, [(0, 1, weights)], [biases[0] + left @ x, biases[1] + right @ x])
    arrays = ", ".join(map(literal, (weights, left, right, *biases)))
    code = f"model = ebm.CRBM({arrays}).condition({literal(x)})"
    names = _named(spec, ["weights"], ["visible_bias", "hidden_bias"])
    return made(seed, "CRBM.condition", code, spec.truth(names))


def _dbm(seed: int, rng: Any, scale: float) -> Structure:
    sizes = [_size(rng) for _ in range(rng.integers(2, 5))]
    parts = (
        _binary("visible", sizes[0]),
        *(_binary(f"hidden_{k}", n) for k, n in enumerate(sizes[1:], 1)),
    )
    weights = [normal(rng, a, b, scale=scale) for a, b in itertools.pairwise(sizes)]
    biases = [normal(rng, n) for n in sizes]
    spec = Layered(parts, [(k, k + 1, w) for k, w in enumerate(weights)], biases)
    arrays = [f"[{', '.join(map(literal, x))}]" for x in (weights, biases)]
    code = f"model = ebm.DBM({', '.join(arrays)})"
    names = _named(
        spec,
        [f"weights[{k}]" for k in range(len(weights))],
        [f"biases[{k}]" for k in range(len(biases))],
    )
    return made(seed, "DBM", code, spec.truth(names))


def _boltzmann(seed: int, rng: Any, scale: float) -> Structure:
    part = Part("x", "binary", int(rng.integers(1, 6)), 2, True)
    couplings, bias = symmetric(rng, part, scale), normal(rng, part.size)
    spec = Layered((part,), [(0, 0, couplings)], [bias])
    code = f"model = ebm.BoltzmannMachine({literal(couplings)}, {literal(bias)})"
    return made(seed, "BoltzmannMachine", code, spec.truth(_named(spec, ["couplings"], ["bias"])))


def _semi(seed: int, rng: Any, scale: float) -> Structure:
    parts = [_binary("visible", _size(rng)), _binary("hidden", _size(rng))]
    weights = normal(rng, parts[0].size, parts[1].size, scale=scale)
    couplings = symmetric(rng, parts[0], scale)
    blocks = [(0, 1, weights), (0, 0, couplings)]
    biases = [normal(rng, part.size) for part in parts]
    arrays = [weights, couplings, *biases]
    fields = ["weights", "couplings"], ["visible_bias", "hidden_bias"]
    labelled = rng.random() < 0.5
    if labelled:
        # Labels come after the hidden units.
        label = Part("label", "categorical", 1, int(rng.choice([2, 3])), True)
        parts.append(label)
        more = normal(rng, label.width, parts[1].size, scale=scale)
        blocks.append((2, 1, more))
        biases.append(normal(rng, label.width))
        arrays += [more, biases[-1]]
        fields = [*fields[0], "label_weights"], [*fields[1], "label_bias"]
    spec = Layered(tuple(parts), blocks, biases)
    code = f"model = ebm.SemiRestrictedBM({', '.join(map(literal, arrays))})"
    kind = "SemiRestrictedBM, labels" if labelled else "SemiRestrictedBM"
    return made(seed, kind, code, spec.truth(_named(spec, *fields)))


def _gaussian(seed: int, rng: Any, scale: float) -> Structure:
    visible, hidden = _size(rng), _size(rng)
    parts = (Part("visible", "gaussian", visible, 2, True), _binary("hidden", hidden))
    weights = normal(rng, visible, hidden, scale=scale)
    b, c, log_sigma = normal(rng, visible), normal(rng, hidden), normal(rng, visible, scale=0.2)
    sigma = np.exp(log_sigma)
    blocks = [(0, 1, weights / sigma[:, None])]
    spec = Layered(parts, blocks, [b / sigma**2, c], {0: log_sigma}, {0: b})

    def features(x: dict[int, np.ndarray], found: Sums) -> list[Feature]:
        both = spec.products(x, found, 0, 1)
        mean, square = found.means, np.einsum("rii->ri", found.second)
        apart = (square - 2 * mean * b + b**2) / sigma**2
        sent = np.einsum("rij,ij->ri", both, weights) / sigma
        one, two = (spec.noise(found, *[0] * k) / float(sigma.min()) ** (2 * k) for k in (1, 2))
        return [
            Feature("weights", both / sigma[:, None], one),
            Feature("visible_bias", (mean - b) / sigma**2, one / float(sigma.min()) ** 2),
            Feature("hidden_bias", x[1]),
            Feature("log_sigma", apart - sent, 4 * (one + two)),
        ]

    code = f"model = ebm.GaussianRBM({', '.join(map(literal, (weights, b, c, log_sigma)))})"
    return made(seed, "GaussianRBM", code, spec.truth(features))


def _nonnegative(seed: int, rng: Any, scale: float) -> Structure:
    """E = x W x / 2 - b x for x >= 0, integrated on a grid of Gauss's points."""
    size = int(rng.choice([1, 2, 2, 3]))
    part = Part("x", "nonnegative", size, 2, True)
    couplings = symmetric(rng, part, 0.2) + np.diag(np.round(rng.uniform(0.8, 1.5, size), 2))
    bias = normal(rng, size)
    nodes, weights = np.polynomial.legendre.leggauss(80)
    one, weight = (nodes + 1) * 6, weights * 6
    x = np.stack(np.meshgrid(*[one] * size, indexing="ij"), -1).reshape(-1, size)
    each = functools.reduce(np.multiply.outer, [weight] * size).reshape(-1)

    def energy_of(x: np.ndarray) -> np.ndarray:
        return np.einsum("ri,ij,rj->r", x, couplings, x) / 2 - x @ bias

    def truth_of(x: np.ndarray, each: np.ndarray) -> Truth:
        p = each * np.exp(-energy_of(x))
        total, p = p.sum(), p / p.sum()
        means, second = (p @ x)[None], np.einsum("r,ri,rj->ij", p, x, x)[None]
        fourth = float((p @ x**4).max())
        # An edge is one parameter at two places.
        own = -second / (1 + np.eye(size))
        features = [Feature("couplings", own, fourth), Feature("bias", means, fourth)]
        scores = np.log([total])
        return Truth((part,), every([]), scores, features, [], means, second, points=(x, p))

    truth = truth_of(x, each)
    truth.given = lambda row: truth_of(row[None], np.ones(1))
    code = f"model = ebm.NNBM({literal(couplings)}, {literal(bias)})"
    return made(seed, "NNBM", code, truth)


_CLASSIC = {
    "nonnegative": _nonnegative,
    "rbm": _rbm,
    "crbm": _crbm,
    "dbm": _dbm,
    "boltzmann": _boltzmann,
    "semi": _semi,
    "gaussian": _gaussian,
}


def _with_zeros(rng: Any, table: np.ndarray, share: float) -> np.ndarray:
    return np.where(rng.random(table.shape) < share, -np.inf, table)


def _one_hot(states: np.ndarray, scope: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """1 for the entry of a table that each configuration meets."""
    out = np.zeros((len(states), *shape))
    out[(np.arange(len(states)), *(states[:, v] for v in scope))] = 1.0
    return out


def _of_factors(
    parts: tuple[Part, ...], counts: Any, factors: list[Factor], features: list[Feature]
) -> Truth:
    truth = Truth(parts, every(counts), np.zeros(0), features, factors)
    truth.scores = sum_of(truth)
    return truth


def tables(seed: int, rng: Any) -> Structure:
    while True:
        counts = [
            int(n) for n in rng.choice([1, 2, 3, 4], rng.integers(1, 7), p=[0.1, 0.5, 0.3, 0.1])
        ]
        if math.prod(counts) > MOST:
            continue
        zeros = float(rng.choice([0.0, 0.0, 0.1, 0.3]))
        scale = float(rng.choice([0.5, 1.0, 2.0, 20.0], p=[0.4, 0.3, 0.25, 0.05]))
        scopes = []
        for _ in range(rng.integers(0, 8)):
            order = min(
                int(rng.choice([0, 1, 2, 3, 4], p=[0.05, 0.25, 0.4, 0.2, 0.1])), len(counts)
            )
            scopes.append(tuple(int(v) for v in rng.permutation(len(counts))[:order]))
        values = []
        for scope in scopes:
            shape = tuple(counts[v] for v in scope)
            values.append(_with_zeros(rng, normal(rng, *shape, scale=scale), zeros))
        factors = [Factor(scope, table) for scope, table in zip(scopes, values, strict=True)]
        states = every(counts)
        features = [
            Feature(f"log_tables[{k}]", _one_hot(states, scope, table.shape))
            for k, (scope, table) in enumerate(factors)
        ]
        part = Part("x", "categorical", len(counts), max(counts), True)
        truth = _of_factors((part,), counts, factors, features)
        truth.counts = tuple(counts)
        # Few tables may contradict each other everywhere.
        if not truth.is_possible and rng.random() < 0.7:
            continue
        arrays = ", ".join(map(literal, values))
        code = f"model = ebm.TableModel({counts}, {scopes}, [{arrays}])"
        return made(seed, "TableModel", code, truth)


def grid(seed: int, rng: Any) -> Structure:
    shape = [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2)][rng.integers(6)]
    states = int(rng.choice([2, 3])) if shape[0] * shape[1] < 6 else 2
    pixels = shape[0] * shape[1]
    zeros = float(rng.choice([0.0, 0.0, 0.15]))
    scale = float(rng.choice([0.5, 1.0, 2.0, 60.0], p=[0.4, 0.3, 0.25, 0.05]))
    while True:
        values = [_with_zeros(rng, normal(rng, states, states, scale=scale), zeros) for _ in "four"]
        bias = normal(rng, states)
        channels = {}
        for name in ("pixels", "label")[: rng.integers(0, 3)]:
            width = int(rng.choice([2, 3]))
            if (
                states**pixels
                * math.prod(t.shape[1] ** pixels for t in channels.values())
                * (width**pixels)
                <= MOST
            ):
                channels[name] = _with_zeros(rng, normal(rng, states, width), zeros)
        counts = [states] * pixels
        at = np.arange(pixels).reshape(shape)
        factors, features = [], []
        every_state = every(counts + [n for t in channels.values() for n in [t.shape[1]] * pixels])

        def add(name, table, scopes, every_state=every_state, factors=factors, features=features):
            factors += [Factor(scope, table) for scope in scopes]
            met = np.zeros((len(every_state), *table.shape))
            for scope in scopes:
                met += _one_hot(every_state, scope, table.shape)
            features.append(Feature(name, met))

        # From the first end of an edge to the second.
        offsets = {"down": (1, 0), "right": (0, 1), "diagonal": (1, 1), "antidiagonal": (1, -1)}
        for (name, (down, across)), table in zip(offsets.items(), values, strict=True):
            scopes = [
                (int(at[i, j]), int(at[i + down, j + across]))
                for i in range(shape[0])
                for j in range(shape[1])
                if i + down < shape[0] and 0 <= j + across < shape[1]
            ]
            add(name, table, scopes)
        add("bias", bias, [(v,) for v in range(pixels)])
        parts = [Part("state", "categorical", pixels, states, True)]
        for k, (name, table) in enumerate(channels.items()):
            start = pixels * (k + 1)
            scopes = [(v, start + v) for v in range(pixels)]
            add(f"channel_tables[{k}]", table, scopes)
            parts.append(Part(name, "categorical", pixels, table.shape[1], True))
            counts += [table.shape[1]] * pixels
        truth = _of_factors(tuple(parts), counts, factors, features)
        if np.isfinite(truth.scores).any():
            break
    arrays = ", ".join(map(literal, values))
    emissions = ", ".join(f"{n!r}: {literal(t)}" for n, t in channels.items())
    code = (
        f"model = ebm.GridMRF({arrays}, shape={shape}, bias={literal(bias)},"
        f" emissions={{{emissions}}}, learned={tuple(channels)})"
    )
    return made(seed, "GridMRF", code, truth)


def _logical(name: str, number: int) -> np.ndarray:
    """The table of a factor whose last variable is a function of the others."""
    out = np.full((2,) * number, -np.inf)
    for x in itertools.product((0, 1), repeat=number):
        *parents, child = x
        if name == "OR":
            right = child == max(parents)
        elif name == "AND":
            right = child == min(parents)
        else:  # A pool has one choice if its indicator is 1, else none.
            right = sum(parents) == child
        if right:
            out[x] = 0.0
    return out


def factor_graph(seed: int, rng: Any) -> Structure:
    while True:
        found = _factor_graph(rng)
        if np.isfinite(found[1].scores).any():
            return made(seed, "FactorGraphModel", *found)


def _factor_graph(rng: Any) -> tuple[str, Truth]:
    number = int(rng.integers(1, 4))
    sizes = [_size(rng) for _ in range(number)]
    states = [int(rng.choice([2, 3], p=[0.8, 0.2])) for _ in range(number)]
    counts = [n for n, size in zip(states, sizes, strict=True) for _ in range(size)]
    scale = float(rng.choice([0.5, 1.0, 2.0]))
    names = [(g, i) for g, size in enumerate(sizes) for i in range(size)]
    starts = np.cumsum([0, *sizes])
    binary = [v for v, n in enumerate(counts) if n == 2]
    lines = ["import ebmlearn.pgmax", "from pgmax import fgraph, fgroup, vgroup"]
    lines += [
        f"g{k} = vgroup.NDVarArray(num_states={n}, shape=({size},))"
        for k, (n, size) in enumerate(zip(states, sizes, strict=True))
    ]
    groups = ", ".join(f"g{k}" for k in range(number))
    lines += [f"groups = [{groups}]", "graph = fgraph.FactorGraph(groups)", "added = []"]
    every_state = every(counts)
    factors: list[Factor] = []
    features: list[Feature] = []
    children: set[int] = set()
    dense: set[tuple[int, int]] = set()
    added = 0

    def variables(scope):
        return "[" + ", ".join(f"g{names[v][0]}[{names[v][1]}]" for v in scope) + "]"

    def put(code):
        nonlocal added
        lines.append(f"added.append(fgroup.{code})")
        added += 1

    def feature(values, k):
        features.append(Feature(f"log_potentials_of(added[{k}])", values))

    def scope_of(order, choices):
        return tuple(int(v) for v in rng.permutation(choices)[:order])

    # Two factors of one scope are no graph of PGMax.
    scopes: set[frozenset[int]] = set()
    for kind in rng.choice(
        ["pair", "pair", "enum", "OR", "AND", "pool", "dense"], rng.integers(0, 5)
    ):
        if kind == "pair" and len(counts) > 1:
            some = []
            for _ in range(rng.integers(1, 4)):
                scope = scope_of(2, len(counts))
                shapes = {tuple(counts[v] for v in s) for s in [*some, scope]}
                if frozenset(scope) not in scopes and len(shapes) == 1:
                    scopes.add(frozenset(scope))
                    some.append(scope)
            if not some:
                continue
            shape = tuple(counts[v] for v in some[0])
            tables_of = normal(rng, len(some), *shape, scale=scale)
            met = np.zeros((len(every_state), *tables_of.shape))
            for k, scope in enumerate(some):
                factors.append(Factor(scope, tables_of[k]))
                met[:, k] = _one_hot(every_state, scope, shape)
            feature(met, added)
            put(
                f"PairwiseFactorGroup([{', '.join(map(variables, some))}],"
                f" np.array({tables_of.tolist()}))"
            )
        elif kind == "enum":
            scope = scope_of(int(rng.integers(1, 5)), len(counts))
            if frozenset(scope) in scopes:
                continue
            scopes.add(frozenset(scope))
            shape = tuple(counts[v] for v in scope)
            configs = np.array([x for x in np.ndindex(shape) if rng.random() < 0.8])
            if not len(configs):
                continue
            own = normal(rng, 1, len(configs), scale=scale)
            table = np.full(shape, -np.inf)
            table[tuple(configs.T)] = own[0]
            factors.append(Factor(scope, table))
            met = _one_hot(every_state, scope, shape)[(slice(None), *configs.T)]
            feature(met[:, None], added)
            put(
                f"EnumFactorGroup([{variables(scope)}], np.array({configs.tolist()}),"
                f" np.array({own.tolist()}))"
            )
        elif kind in ("OR", "AND", "pool") and len(binary) > 1:
            scope = scope_of(int(rng.integers(2, 5)), binary)
            if frozenset(scope) in scopes or scope[-1] in children:
                continue
            scopes.add(frozenset(scope))
            children.add(scope[-1])
            factors.append(Factor(scope, _logical(str(kind), len(scope))))
            put(f"{'Pool' if kind == 'pool' else kind}FactorGroup([{variables(scope)}])")
        elif kind == "dense":
            two = [k for k in range(number) if states[k] == 2]
            if len(two) < 2:
                continue
            a, b = (int(k) for k in rng.permutation(two)[:2])
            if (a, b) in dense or (b, a) in dense:
                continue
            dense.add((a, b))
            weights = normal(rng, sizes[a], sizes[b], scale=scale)
            met = np.zeros((len(every_state), *weights.shape))
            for i, j in np.ndindex(weights.shape):
                scope = (int(starts[a]) + i, int(starts[b]) + j)
                table = np.zeros((2, 2))
                table[1, 1] = weights[i, j]
                factors.append(Factor(scope, table))
                met[:, i, j] = every_state[:, scope].all(1)
            feature(met, added)
            lines.append(
                f"added.append(ebmlearn.pgmax.RBMFactorGroup(g{a}, g{b},"
                f" np.array({weights.tolist()})))"
            )
            added += 1
    lines.append("graph.add_factors(added)" if added else "")
    evidence = []
    for k, (n, size) in enumerate(zip(states, sizes, strict=True)):
        own = normal(rng, size, n)
        evidence.append(f"g{k}: {literal(own)}")
        met = np.zeros((len(every_state), size, n))
        for i in range(size):
            v = int(starts[k]) + i
            factors.append(Factor((v,), own[i]))
            met[:, i] = _one_hot(every_state, (v,), (n,))
        features.append(Feature(f"evidence[{k}]", met))
    lines.append(
        f"model = ebmlearn.pgmax.FactorGraphModel(graph).with_evidence({{{', '.join(evidence)}}})"
    )
    parts = tuple(
        Part(f"g{k}", "categorical", size, n, True)
        for k, (n, size) in enumerate(zip(states, sizes, strict=True))
    )
    return "\n".join(lines), _of_factors(parts, counts, factors, features)


def factor_model(seed: int, rng: Any) -> Structure:
    """Binary and categorical groups, joined by blocks and by tables of up to four units."""
    while True:
        found = _factor_model(rng)
        # Few tables may contradict each other everywhere.
        if found[1].is_possible or rng.random() < 0.1:
            return made(seed, "FactorModel", *found)


def _factor_model(rng: Any) -> tuple[str, Truth]:
    spec = random_layers(rng, "discrete")
    if rng.random() < 0.5:  # Trees are rare among dense blocks.
        spec.blocks = []
    names = [part.name for part in spec.parts]
    truth = spec.truth()
    owner, first = truth.owner, np.searchsorted(truth.owner, np.arange(len(names)))
    x = spec.encoded(truth.states)
    found = spec.sums(x, np.zeros(0))
    factors, code = spec.factors(), []
    features = []
    for n, (a, b, w) in enumerate(spec.blocks):
        values = spec.products(x, found, a, b) * (_apart(spec.parts[a]) if a == b else 1.0)
        features.append(Feature(f"parts[{n}].weights", values))
        code.append(f"ebm.Dense({names[a]!r}, {names[b]!r}, {literal(w)})")
    zeros = float(rng.choice([0.0, 0.15, 0.3]))
    scale = float(rng.choice([0.5, 1.0, 2.0]))
    for _ in range(rng.integers(1, 4)):
        order = min(int(rng.choice([1, 2, 3, 4], p=[0.1, 0.3, 0.3, 0.3])), len(owner))
        scopes = [rng.permutation(len(owner))[:order]]
        # Another table of the same groups.
        more = rng.permutation(len(owner))[:order]
        if (owner[more] == owner[scopes[0]]).all() and (more != scopes[0]).any():
            scopes.append(more)
        shape = tuple(truth.counts[v] for v in scopes[0])
        own = _with_zeros(rng, normal(rng, len(scopes), *shape, scale=scale), zeros)
        met = np.zeros((len(truth.states), *own.shape))
        for k, scope in enumerate(scopes):
            scope = tuple(int(v) for v in scope)
            factors.append(Factor(scope, own[k]))
            met[:, k] = _one_hot(truth.states, scope, shape)
        features.append(Feature(f"parts[{len(code)}].log_potentials", met))
        axes = tuple(names[owner[v]] for v in scopes[0])
        members = [[int(v - first[owner[v]]) for v in scope] for scope in scopes]
        members = f"np.array({members}, int).reshape({len(scopes)}, {order})"
        code.append(f"ebm.Tables({axes}, {literal(own)}, {members})")
    for k, bias in enumerate(x[k] for k in range(len(names))):
        features.append(Feature(f"biases[{k}]", bias))
    units = ", ".join(f"{name!r}: {units_code(spec, k)}" for k, name in enumerate(names))
    unary = ", ".join(f"{n!r}: {literal(b)}" for n, b in zip(names, spec.biases, strict=True))
    line = f"model = ebm.FactorModel({{{units}}}, [{', '.join(code)}], {{{unary}}})"
    # Graphs tell the probabilities of all states, of binary groups too.
    parts = tuple(part._replace(kind="categorical", seen=True) for part in spec.parts)
    return line, _of_factors(parts, truth.counts, factors, features)


KINDS = {
    layered: 0.42,
    classic: 0.15,
    tables: 0.12,
    grid: 0.06,
    factor_graph: 0.11,
    factor_model: 0.1,
    energy: 0.04,
}


def structure(seed: int) -> Structure:
    """The structure of this number."""
    rng = np.random.default_rng(seed)
    kinds = list(KINDS)
    kind = kinds[rng.choice(len(kinds), p=list(KINDS.values()))]
    return kind(seed, rng)
