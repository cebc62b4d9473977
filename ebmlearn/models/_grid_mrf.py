import math
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, PyTree

from .. import _checks
from .._sentinels import EXCLUDED
from .._types import AnyArray, Key
from ..factors import Lattice, OFFSETS
from ..units import Categorical
from ._arrays import gaussian
from ._base import AbstractPlainModel, Arrays, Kinds, refuse
from ._grouped import AbstractGrouped
from ._turns import AbstractTurns, by_colour, excludes, put, taken, unless_held
from ._variables import Groups


_STATE = "state"
_TABLES = ("down", "right", "diagonal", "antidiagonal")


class GridMRF(AbstractGrouped, AbstractPlainModel):
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
        label = jnp.array([0] * 8 + [1, 2])  # 8 states of a contour, one outside, one inside
        p_seen = jnp.array([0.8, 0.1, 0.1])  # the probability of an edge, by label
        emissions = {
            "pixels": jnp.log(jnp.stack([1 - p_seen, p_seen], -1))[label],
            "labels": jnp.log(jax.nn.one_hot(label, 3)),  # determined by the state
        }
        model = ebmlearn.GridMRF.init(shape=(6, 6), states=10, emissions=emissions, key=0)
        beliefs = ebmlearn.BP(15)(model, evidence={"pixels": jnp.zeros((4, 6, 6), int)})
        beliefs["labels"]  # [4, 6, 6, 3]
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
        key: Key = 0,
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
        """The four tables that join pixels, in the order of `OFFSETS`."""
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
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """That of the grid for each group."""
        return (self.shape,) * len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """`state`, and the names of the channels."""
        return (_STATE, *self.channels)

    @property
    def layers(self) -> tuple[Categorical, ...]:
        """The hidden states, then the channels."""
        tables = (self.down, *self.channel_tables)
        return tuple(Categorical(math.prod(self.shape), x.shape[-1]) for x in tables)

    def unary(self) -> Arrays:
        """The bias of all pixels alike, and none of channels."""
        bias = jnp.tile(self.bias, math.prod(self.shape))
        return bias, *(jnp.zeros(units.width, bias.dtype) for units in self.layers[1:])

    def factors(self, product: str = "sum") -> tuple[Lattice, ...]:
        """The four tables between neighbours, then a table for each channel."""
        pairs = zip(self.tables, OFFSETS, strict=True)
        near = [Lattice(_STATE, _STATE, table, self.shape, offset) for table, offset in pairs]
        seen = zip(self.channels, self.channel_tables, strict=True)
        return (*near, *(Lattice(_STATE, name, x, self.shape, (0, 0)) for name, x in seen))

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "GridMRF":
        """The bias is that of the first pixel."""
        bias = unary[0][: self.bias.shape[0]]
        return eqx.tree_at(lambda m: (*m.log_potentials, m.bias), self, (*parameters, bias))

    @property
    def turns(self) -> AbstractTurns:
        """A pixel moves with all that is seen of it."""
        return _Pixels(self)  # pyright: ignore

    def by_factor(self, values: tuple[Float[Array, "..."], ...]) -> Groups:
        """One value for each log-potential: `factors["down"]`, and so on, and `factors[channel]`.
        Of beliefs they are sums over all pixels.
        """
        return Groups(tuple(values), (*_TABLES, *self.channels))

    def trained(self) -> "GridMRF":
        """Booleans in the place of arrays: of the tables of channels that are not learned,
        False.
        """
        out = jax.tree.map(lambda _: True, self)
        tables = tuple(name in self.learned for name in self.channels)
        return eqx.tree_at(lambda model: model.channel_tables, out, tables)


class _Pixels(AbstractTurns):
    """A pixel is a site with all that is seen of it: each combination of their states is one."""

    model: GridMRF

    @property
    def site_states(self) -> Int[np.ndarray, " pixels"]:
        states = math.prod(units.number for units in self.model.layers)
        return np.full(math.prod(self.model.shape), states)

    @property
    def order(self) -> Int[np.ndarray, "colours _"]:  # pyright: ignore
        """Pixels that are no neighbours, in four classes: those of odd and even rows and
        columns.
        """
        row, column = np.indices(self.model.shape)
        return by_colour((row % 2 * 2 + column % 2).reshape(-1))

    def scores(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows variables"] | None,
    ) -> Float[Array, "rows width most"]:
        model = self.model
        states: Any = dict(zip(model.names, model.variables.cut(rows), strict=True))
        around = [f.given(states, _STATE) for f in model.factors() if f.is_inside(_STATE)]
        fields = jnp.stack(around).sum(0).reshape(rows.shape[0], -1, model.bias.shape[0])
        fields = fields + jnp.broadcast_to(model.bias, fields.shape)
        out = self._unless_held(fields.at[:, members].get(mode="clip"), rows, members, held, 0)
        # An axis more for each channel.
        for k, emission in enumerate(model.channel_tables, 1):
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
        for k, units in enumerate(self.model.layers):
            out = out * units.number + taken(rows, self._variables(members, k))
        return out

    def placed(
        self,
        rows: Int[Array, "rows variables"],
        members: Int[Array, " width"],
        states: Int[Array, "rows width"],
    ) -> Int[Array, "rows variables"]:
        for k, units in reversed(list(enumerate(self.model.layers))):
            rows = put(rows, self._variables(members, k), states % units.number)
            states = states // units.number
        return rows

    def log_number(self) -> Float[Array, ""]:
        model = self.model
        if any(excludes(x) for x in model.tables):
            refuse(
                model, "let all neighbours be in all states for annealing", "take `Exact` or `BP`"
            )
        out = jnp.where(model.bias < EXCLUDED / 2, -jnp.inf, jnp.zeros_like(model.bias))
        for emission in model.channel_tables:
            out = out + jnp.log((emission >= EXCLUDED / 2).sum(1).astype(out.dtype))
        return math.prod(model.shape) * jax.nn.logsumexp(out)

    def no_chains(self) -> str | None:
        if any(excludes(x) for x in self.model.tables):
            return (
                "its tables exclude pairs of states, so that pixels may not come past each other;"
                " take `PMP`"
            )
        return None

    def no_moves(self) -> str | None:
        if any(excludes(x) for x in self.model.log_potentials):
            return (
                "it excludes pairs of states; take `Gibbs`, which draws a pixel with its channels"
            )
        return None

    def _variables(self, members: Int[Array, " width"], group: int) -> Int[Array, " width"]:
        """Where the variables of a group at some pixels stand among all; beyond the last for pixels
        beyond the last.
        """
        pixels = math.prod(self.model.shape)
        beyond = len(self.model.names) * pixels
        return jnp.where(members < pixels, members + group * pixels, beyond)

    def _unless_held(
        self, scores: Float[Array, "rows width _"], rows: Any, members: Any, held: Any, group: int
    ) -> Float[Array, "rows width _"]:
        if held is None:
            return scores
        at = self._variables(members, group)
        return unless_held(scores, taken(rows, at), taken(held, at))


def _converted(channel: Any, x: Any, dtype: Any) -> Float[Array, "..."]:
    try:
        return jnp.asarray(x, dtype)
    except (TypeError, ValueError) as error:
        got = _checks.describe(x)
        raise TypeError(
            f"`emissions[{channel!r}]` must be an array of floats, got {got}."
        ) from error
