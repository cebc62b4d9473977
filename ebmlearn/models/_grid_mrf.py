import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

from .. import _checks
from .._sentinels import EXCLUDED, LEAST
from .._types import AnyArray, Batch, Key
from ..units import Categorical
from ._arrays import gaussian
from ._block import Block
from ._graph import AbstractGraphModel, excludes, scaled_potentials
from ._groups import (
    cut_states,
    cut_units,
    Groups,
    likelihoods_of,
    place,
    rows_of,
    Sizes,
)
from ._lattice import around, colours, ends, features, log_potential, OFFSETS, sizes_of
from ._require import refuse
from ._statistics import Statistics
from ._turns import put, taken, unless_held


_STATE = "state"
_TABLES = ("down", "right", "diagonal", "antidiagonal")


class GridMRF(AbstractGraphModel):
    """A Markov random field of hidden states on a grid of pixels, each joined to its eight
    neighbours by four tables that are the same everywhere, and seen through channels: the grid MRF
    of Lázaro-Gredilla et al. 2021 (appendix B). With pixel $p$ in state $x_p$,

    $E = -\\sum_{pq} T_{pq}(x_p, x_q) - \\sum_p b(x_p) - \\sum_{p, c} O_c(x_p, y_{p, c})$.

    Its groups of variables are `"state"`, the hidden states, and one group for each channel, with
    one variable per pixel. Inferences, [`ebmlearn.query`][], [`ebmlearn.MLE`][],
    [`ebmlearn.PMP`][] and [`ebmlearn.fit`][] work as on a [`ebmlearn.pgmax.FactorGraphModel`][] of
    the same graph, but with shifted arrays and matrix products, which is much faster.

    !!! example

        ```python
        label = jnp.array([0] * 64 + [1, 2])  # 64 states of a contour, one outside, one inside
        model = GridMRF.init(
            shape=(30, 30),
            states=66,
            emissions={
                "pixels": jnp.log(jnp.stack([1 - p_seen, p_seen], -1))[label],
                "labels": jnp.log(jax.nn.one_hot(label, 3)),  # determined by the state
            },
            key=key,
        )
        beliefs = ebmlearn.BP(15)(model, evidence={"pixels": images})  # [batch, 30, 30]
        beliefs["labels"]  # [batch, 30, 30, 3]
        ```

    While tables are traced, as in training, log-potentials more than 80 (640 in float64) below the
    largest of their table are raised to that level.

    Channels that are not observed are summed out. Only the tables of channels in `learned` are
    trained.
    """

    down: Float[Array, "states states"]
    right: Float[Array, "states states"]
    diagonal: Float[Array, "states states"]
    antidiagonal: Float[Array, "states states"]
    bias: Float[Array, " states"]
    channel_tables: tuple[Float[Array, "states _"], ...]
    channels: tuple[str, ...] = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)
    learned: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        down: Float[AnyArray, "states states"],
        right: Float[AnyArray, "states states"],
        diagonal: Float[AnyArray, "states states"],
        antidiagonal: Float[AnyArray, "states states"],
        *,
        shape: tuple[int, int],
        bias: Float[AnyArray, " states"] | None = None,
        emissions: Mapping[str, Float[AnyArray, "states _"]] | None = None,
        learned: tuple[str, ...] = (),
    ):
        """**Arguments:**

        - `down`: log-potentials `[states, states]` of a pixel (first index) and the pixel below it
          (second index).
        - `right`: the same for a pixel and its right neighbour.
        - `diagonal`: the same for a pixel and its lower right neighbour.
        - `antidiagonal`: the same for a pixel and its lower left neighbour.
        - `shape`: the height and the width of the grid.
        - `bias`: the log-potential of each state, zero by default.
        - `emissions`: a dictionary from names of channels to log-probabilities `[states, values]`
          of the observed value given the state. Minus infinity excludes a value. They need not be
          normalised.
        - `learned`: the names of the channels whose tables are trained.
        """
        tables = {"down": down, "right": right, "diagonal": diagonal, "antidiagonal": antidiagonal}
        self.down, self.right, self.diagonal, self.antidiagonal = (
            _checks.log_potentials(name, x) for name, x in tables.items()
        )
        if bias is None:
            bias = jnp.zeros(self.down.shape[:1], self.down.dtype)
        self.bias = _checks.log_potentials("bias", bias)
        emissions = {} if emissions is None else emissions
        if not isinstance(emissions, Mapping):
            got = _checks.describe(emissions)
            raise TypeError(f"`emissions` must be a dictionary from names to tables, got {got}.")
        self.channels = tuple(emissions)
        self.channel_tables = tuple(
            _checks.log_potentials(f"emissions[{name!r}]", x) for name, x in emissions.items()
        )
        self.shape = tuple(shape) if isinstance(shape, list) else shape  # pyright: ignore
        if not isinstance(learned, Iterable):
            got = _checks.describe(learned)
            raise TypeError(f"`learned` must hold names of channels, got {got}.")
        self.learned = (learned,) if isinstance(learned, str) else tuple(learned)

    def __check_init__(self):
        if not isinstance(self.shape, tuple) or len(self.shape) != 2:
            raise ValueError(f"`shape` must be a height and a width, got {self.shape!r}.")
        for size in self.shape:
            _checks.count("shape", size)
        states = self.down.shape[0] if self.down.ndim else 0
        if not states:
            got = _checks.describe(self.down)
            raise ValueError(f"`down` must have shape (states, states), got {got}.")
        named = {"bias": self.bias}
        for name, table in zip(_TABLES, self.log_potentials, strict=False):
            _checks.exact_shape(name, table, (states, states), "a pair of states each")
            named[name] = table
        _checks.exact_shape("bias", self.bias, (states,), "as `down` has rows")
        for name, table in zip(self.channels, self.channel_tables, strict=True):
            if not isinstance(name, str) or name in (_STATE, *_TABLES):
                raise ValueError(
                    f"`emissions` must have names of its own, not {', '.join(_TABLES)} or {_STATE},"
                    f" got {name!r}."
                )
            if table.ndim != 2 or table.shape[0] != states or not table.shape[1]:
                raise ValueError(
                    f"`emissions[{name!r}]` must have shape ({states}, values), one row per state,"
                    f" got {_checks.describe(table)}."
                )
            named[f"emissions[{name!r}]"] = table
        _checks.one_dtype(**named)
        for name in self.learned:
            if name not in self.channels:
                wanted = ", ".join(repr(n) for n in self.channels) or "none"
                raise ValueError(f"`learned` must name channels, {wanted}, got {name!r}.")

    @classmethod
    def init(
        cls,
        shape: tuple[int, int],
        states: int,
        emissions: Mapping[str, Float[AnyArray, "states _"]] | None = None,
        *,
        key: Key,
        scale: float = 1.0,
        learned: tuple[str, ...] = (),
        dtype: DTypeLike | None = None,
    ) -> "GridMRF":
        """A random grid MRF. The tables are random because learning could otherwise not distinguish
        states that have the same emissions.

        **Arguments:**

        - `shape`: the height and the width of the grid.
        - `states`: the number of hidden states of a pixel.
        - `emissions`, `learned`: as for the class itself.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the log-potentials. The bias is zero.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("states", states)
        tables = gaussian((4, states, states), scale, dtype, _checks.as_key(key))
        given = {} if emissions is None else emissions
        if isinstance(given, Mapping):
            given = {k: _converted(k, x, tables.dtype) for k, x in given.items()}
        return cls(*tables, shape=shape, emissions=given, learned=learned)

    @property
    def log_potentials(self) -> tuple[PyTree, ...]:  # pyright: ignore
        """The four tables, then those of the channels."""
        # Of any type, for `tree_at` to look for their places; no tables are a place of their own.
        channels = self.channel_tables if self.channels else ()
        return self.down, self.right, self.diagonal, self.antidiagonal, *channels

    @property
    def tables(self) -> tuple[Float[Array, "states states"], ...]:
        """The four tables that join pixels, in the order of `_lattice.OFFSETS`."""
        return self.down, self.right, self.diagonal, self.antidiagonal

    @property
    def trained_emissions(self) -> tuple[Float[Array, "states _"], ...]:
        """The tables of the channels; no gradient reaches those that are not learned."""
        return tuple(
            table if name in self.learned else jax.lax.stop_gradient(table)
            for name, table in zip(self.channels, self.channel_tables, strict=True)
        )

    @property
    def emissions(self) -> dict[str, Float[Array, "states _"]]:
        """The tables of the channels by name."""
        return dict(zip(self.channels, self.channel_tables, strict=True))

    @property
    def sizes(self) -> Sizes:
        """The shape of each group of variables, and the number of their states."""
        return sizes_of(self.shape, self.tables, self.channel_tables)

    @property
    def kind(self) -> str:
        """A grid."""
        return "grid"

    @property
    def layers(self) -> tuple[Categorical, ...]:
        """The hidden states, then the channels."""
        return tuple(Categorical(math.prod(shape), states) for shape, states in self.sizes)

    def project(self) -> "GridMRF":
        """The model itself: its tables may be any numbers."""
        return self

    @property
    def num_states(self) -> Int[np.ndarray, " variables"]:
        return np.repeat([n for _, n in self.sizes], math.prod(self.shape))

    def unary(self) -> tuple[Float[Array, " states"]]:
        pixels = math.prod(self.shape)
        parts = [jnp.broadcast_to(self.bias, (pixels, self.bias.shape[0])).reshape(-1)]
        parts += [jnp.zeros(pixels * n, self.bias.dtype) for _, n in self.sizes[1:]]
        return (jnp.concatenate(parts),)

    def blocks(self) -> tuple[Block, ...]:
        return ()

    def rows(self, data: Batch, name: str = "data") -> Int[AnyArray, "*batch variables"]:
        """Observed states as one array: the hidden states, row by row, then each channel.

        **Arguments:**

        - `data`: from the names of groups to states, `[*batch, height, width]`, integers or
          booleans, -1 where not known. An array as returned here works too.

        **Returns:**

        An array `[*batch, variables]`, -1 where a variable is not observed.
        """
        return rows_of(data, name, self.sizes, self.num_states, self._index)

    def likelihood(self, data: Batch) -> tuple[Batch, Float[Array, "*batch states"] | None]:
        data, parts = likelihoods_of(data, self.sizes, self.num_states, self._index)
        if parts is None:
            return data, None
        flat = [x.reshape(*x.shape[:-2], math.prod(x.shape[-2:])) for x in parts]
        return data, jnp.concatenate(flat, -1)

    def units(self, layers: Sequence[Float[Array, "*batch variables most"]]) -> Groups:
        return Groups(cut_units(layers[0], self.sizes), self.group_names)

    def configuration(self, states: Int[AnyArray, "*batch variables"]) -> Groups:
        return Groups(cut_states(states, self.sizes), self.group_names)

    def by_factor(self, blocks: tuple[Float[Array, "..."], ...]) -> Groups:
        """One value for each log-potential: `factors["down"]`, and so on, and `factors[channel]`.
        Of beliefs they are sums over all pixels.
        """
        return Groups(tuple(blocks), (*_TABLES, *self.channels))

    def padded(self, flat: Float[Array, "*batch states"]) -> Float[Array, "*batch variables most"]:
        most = max(n for _, n in self.sizes)
        parts, at = [], 0
        for shape, n in self.sizes:
            pixels = math.prod(shape)
            part = flat[..., at : at + pixels * n].reshape(*flat.shape[:-1], pixels, n)
            parts.append(jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, most - n)]))
            at += pixels * n
        return jnp.concatenate(parts, -2)

    def flattened(
        self, padded: Float[Array, "*batch variables most"]
    ) -> Float[Array, "*batch states"]:
        batch, pixels = padded.shape[:-2], math.prod(self.shape)
        parts = [
            padded[..., k * pixels : (k + 1) * pixels, :n].reshape(*batch, pixels * n)
            for k, (_, n) in enumerate(self.sizes)
        ]
        return jnp.concatenate(parts, -1)

    def log_potential(
        self, states: Int[Array, "*batch variables"], product: Literal["sum", "max"] = "max"
    ) -> Float[Array, "*batch"]:
        # All tables as they are: `Exact` differentiates in those that are not trained, too.
        met = functools.partial(log_potential, self.shape, self.tables, self.channel_tables)
        flat = jax.vmap(met)(states.reshape(-1, states.shape[-1]))
        return flat.reshape(states.shape[:-1])

    def features(
        self, states: Int[Array, " variables"]
    ) -> tuple[Float[Array, "variables most"], tuple[Float[Array, "..."], ...]]:
        most = max(n for _, n in self.sizes)
        units = jax.nn.one_hot(states, most, dtype=self.bias.dtype)
        return units, features(self.shape, self.tables, self.channel_tables, states)

    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        units, pairwise = statistics.units, statistics.pairwise
        mean = units.values[0].reshape(-1, *self.shape, self.bias.shape[0]).mean(0)
        out = -(self.bias * mean.sum((0, 1))).sum()
        for table, x in zip((*self.tables, *self.trained_emissions), pairwise.values, strict=True):
            out = out - (table * x).sum()
        return out

    def trained(self) -> "GridMRF":
        """Booleans in the place of arrays: of the tables of channels that are not learned,
        False.
        """
        out = jax.tree.map(lambda _: True, self)
        tables = tuple(name in self.learned for name in self.channels)
        return eqx.tree_at(lambda model: model.channel_tables, out, tables)

    def tempered(self, beta: float | Float[Array, ""]) -> "GridMRF":
        """The model of $p(x)^\\beta$."""
        return jax.tree.map(lambda x: scaled_potentials(x, beta), self)

    def given(self, rows: Int[Array, "rows variables"]) -> Float[Array, "rows variables most"]:
        x, *seen = cut_states(rows, self.sizes)
        most = max(n for _, n in self.sizes)
        fields = self._around(x)
        out = []
        for emission, y in zip(self.channel_tables, seen, strict=True):
            fields = fields + emission.T[y]
            out.append(emission[x])
        parts = []
        for part in (fields, *out):
            flat = part.reshape(rows.shape[0], -1, part.shape[-1])
            wide = ((0, 0), (0, 0), (0, most - part.shape[-1]))
            parts.append(jnp.pad(flat, wide, constant_values=LEAST))
        return jnp.concatenate(parts, 1)

    def as_tables(
        self,
    ) -> tuple[tuple[Int[AnyArray, "_ _"], Float[Array, "..."]], ...]:
        at = np.arange(math.prod(self.shape), dtype=np.int32).reshape(self.shape)
        pairs = [np.stack([at[a].ravel(), at[b].ravel()], 1) for a, b in self._ends()]
        seen = [
            np.stack([at.ravel(), at.ravel() + (k + 1) * at.size], 1)
            for k in range(len(self.channels))
        ]
        tables = (*self.tables, *self.channel_tables)
        return tuple(
            (own, jnp.broadcast_to(table, (len(own), *table.shape)))
            for own, table in zip(pairs + seen, tables, strict=True)
            if len(own)
        )

    def classes(self) -> Int[np.ndarray, "classes _"]:
        """Pixels that are no neighbours, then each channel."""
        own, pixels = colours(self.shape), math.prod(self.shape)
        total = len(self.sizes) * pixels
        out = np.full((len(own) + len(self.channels), pixels), total, np.int32)
        out[: len(own), : own.shape[1]] = np.where(own < pixels, own, total)
        for k in range(len(self.channels)):
            out[len(own) + k] = np.arange(pixels) + (k + 1) * pixels
        return out

    def expected_potential(self, q: Float[Array, "variables most"]) -> Float[Array, ""]:
        x, *seen = cut_units(q, self.sizes)
        pairs = [(x[a], x[b]) for a, b in self._ends()]
        pairs += [(x, y) for y in seen]
        tables = (*self.tables, *self.channel_tables)
        return jnp.stack(
            [
                jnp.einsum("ijs,st,ijt->", a, table, b, precision="highest")
                for table, (a, b) in zip(tables, pairs, strict=True)
            ]
        ).sum()

    @property
    def site_states(self) -> Int[np.ndarray, " pixels"]:
        """A pixel moves with all that is seen of it: each combination of their states is one."""
        return np.full(math.prod(self.shape), math.prod(n for _, n in self.sizes))

    def turns(self) -> Int[np.ndarray, "colours _"]:
        """Pixels that are no neighbours."""
        return colours(self.shape)

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        x, *_ = cut_states(rows, self.sizes)
        fields = self._around(x).reshape(rows.shape[0], math.prod(self.shape), -1)
        out = self._unless_held(fields.at[:, members].get(mode="clip"), rows, members, held, 0)
        # An axis more for each channel.
        for k, emission in enumerate(self.channel_tables, 1):
            own = jnp.zeros((*out.shape[:2], emission.shape[1]), out.dtype)
            own = self._unless_held(own, rows, members, held, k)
            shape = (*out.shape, emission.shape[1])
            middle = (1,) * (k - 1)
            table = emission.reshape(1, 1, emission.shape[0], *middle, emission.shape[1])
            own = own.reshape(*own.shape[:2], 1, *middle, own.shape[2])
            out = jnp.broadcast_to(out[..., None], shape)
            out = out + jnp.broadcast_to(table, shape) + jnp.broadcast_to(own, shape)
        out = out.reshape(*out.shape[:2], math.prod(out.shape[2:]))
        return jnp.where(out < EXCLUDED / 2, -jnp.inf, out)

    def chosen(
        self, rows: Int[Array, "rows variables"], members: Int[Array, " width"]
    ) -> Int[Array, "rows width"]:
        out = jnp.zeros((rows.shape[0], members.shape[0]), rows.dtype)
        for k, (_, states) in enumerate(self.sizes):
            out = out * states + taken(rows, self._variables(members, k))
        return out

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        for k in reversed(range(len(self.sizes))):
            number = self.sizes[k][1]
            rows = put(rows, self._variables(members, k), states % number)
            states = states // number
        return rows

    def completed(
        self, rows: Int[Array, "rows variables"], fixed: Bool[Array, "rows variables"]
    ) -> Int[Array, "rows variables"]:
        """The same: a pixel is drawn with all that is seen of it."""
        return rows

    @property
    def determined(self) -> Int[np.ndarray, " 0"]:
        """None: a pixel moves with its channels."""
        return np.zeros(0, np.int32)

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        if any(excludes(x) for x in self.tables):
            refuse(
                self, "let all neighbours be in all states for annealing", "take `Exact` or `BP`"
            )
        out = jnp.where(self.bias < EXCLUDED / 2, -jnp.inf, jnp.zeros_like(self.bias))
        for emission in self.channel_tables:
            out = out + jnp.log((emission >= EXCLUDED / 2).sum(1).astype(out.dtype))
        return math.prod(self.shape) * jax.nn.logsumexp(out)

    def no_chains(self) -> str | None:
        if any(excludes(x) for x in self.tables):
            return (
                "its tables exclude pairs of states, so that pixels may not come past each other;"
                " take `PMP`"
            )
        return None

    def no_moves(self) -> str | None:
        if any(excludes(x) for x in self.log_potentials):
            return (
                "it excludes pairs of states; take `Gibbs`, which draws a pixel with its channels"
            )
        return None

    def _ends(self) -> list[tuple[tuple, tuple]]:
        """The first and the second ends of the edges of each table."""
        return [ends(self.shape, offset) for offset in OFFSETS]

    def _around(self, x: Int[AnyArray, "rows height width"]) -> Float[Array, "rows height width _"]:
        """The scores of hidden states, without what the channels say."""
        out = jax.vmap(lambda x: around(self.tables, x))(jnp.asarray(x))
        return out + jnp.broadcast_to(self.bias, out.shape)

    def _variables(self, members: Int[Array, " width"], group: int) -> Int[Array, " width"]:
        """Where the variables of a group at some pixels stand among all; beyond the last for pixels
        beyond the last.
        """
        pixels = math.prod(self.shape)
        return jnp.where(members < pixels, members + group * pixels, len(self.sizes) * pixels)

    def _unless_held(
        self, scores: Float[Array, "rows width _"], rows: Any, members: Any, held: Any, group: int
    ) -> Float[Array, "rows width _"]:
        if held is None:
            return scores
        at = self._variables(members, group)
        return unless_held(scores, taken(rows, at), taken(held, at))

    @property
    def group_names(self) -> tuple[str, ...]:
        """`state`, and the names of the channels."""
        return (_STATE, *self.channels)

    def _index(self, group: Any, what: str) -> int:
        return place(self.group_names, group, what)


def _converted(channel: Any, x: Any, dtype: Any) -> Float[Array, "..."]:
    try:
        return jnp.asarray(x, dtype)
    except (TypeError, ValueError) as error:
        got = _checks.describe(x)
        raise TypeError(
            f"`emissions[{channel!r}]` must be an array of floats, got {got}."
        ) from error
