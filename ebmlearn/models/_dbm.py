from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, DTypeLike, Float, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..factors import AbstractFactor, Dense
from ..units._binary import binary
from ._arrays import gaussian, states
from ._base import AbstractPlainModel, Arrays, energy_of, field_of, from_spins, Kinds, to_spins
from ._rbm import RBM


def _arrays(name: str) -> Callable[[Sequence[ArrayLike]], tuple[Array, ...]]:
    """Converts a sequence of parameters."""

    def convert(x: Sequence[ArrayLike]) -> tuple[Array, ...]:
        if not isinstance(x, (tuple, list)):
            raise TypeError(f"`{name}` must be a tuple of arrays, got {_checks.describe(x)}.")
        return tuple(_checks.parameter(f"{name}[{k}]", part) for k, part in enumerate(x))

    return convert


class DBM(AbstractPlainModel):
    """A deep Boltzmann machine: layers of binary units $x_0 = v, x_1, \\ldots, x_L$, each joined to
    the next,

    $E(x) = -\\sum_k x_k^\\top W_k x_{k+1} - \\sum_k b_k^\\top x_k$.

    Parameters are tuples from the visible layer up. Even layers are joined to odd layers only, so a
    DBM of any depth is bipartite. `to_rbm` converts a DBM with two hidden layers to an RBM.

    !!! example

        ```python
        dbm = ebmlearn.DBM.init(visible=64, hidden=(32, 16), key=0)
        ```

    **Arguments:**

    - `weights`: arrays of shapes `[n_0, n_1]`, `[n_1, n_2]`, ...
    - `biases`: arrays of shapes `[*batch, n_0]`, `[*batch, n_1]`, ...
    """

    weights: tuple[Float[Array, "_ _"], ...] = eqx.field(converter=_arrays("weights"))
    biases: tuple[Float[Array, "*#batch _"], ...] = eqx.field(converter=_arrays("biases"))

    def __check_init__(self):
        if not self.weights or len(self.biases) != len(self.weights) + 1:
            raise ValueError(
                "`weights` must hold at least one array and `biases` one more, got"
                f" {len(self.weights)} and {len(self.biases)}."
            )
        names = {f"weights[{k}]": w for k, w in enumerate(self.weights)}
        names |= {f"biases[{k}]": b for k, b in enumerate(self.biases)}
        for k, w in enumerate(self.weights):
            _checks.rank(f"weights[{k}]", w, 2, "[lower, upper]")
            if k and w.shape[0] != self.weights[k - 1].shape[1]:
                raise ValueError(
                    f"`weights[{k}]` must have {self.weights[k - 1].shape[1]} rows, as"
                    f" `weights[{k - 1}]` has columns, got {_checks.describe(w)}."
                )
        sizes = (self.weights[0].shape[0], *(w.shape[1] for w in self.weights))
        for k, b in enumerate(self.biases):
            _checks.trailing(f"biases[{k}]", b, (sizes[k],), "as `weights` has units in that layer")
        _checks.broadcastable(**{f"biases[{k}]": b.shape[:-1] for k, b in enumerate(self.biases)})
        _checks.one_dtype(**names)
        _checks.finite(**names)

    @classmethod
    @_checks.usage("DBM.init(visible=784, hidden=[500, 500], key=0)")
    def init(
        cls,
        visible: int,
        hidden: Sequence[int],
        *,
        key: Key = 0,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "DBM":
        """A random DBM.

        **Arguments:**

        - `visible`: the number of visible units.
        - `hidden`: the numbers of units of the hidden layers, from the lowest up.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the weights. Biases are zero.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        if not isinstance(hidden, (tuple, list)) or not hidden:
            got = _checks.describe(hidden)
            raise TypeError(f"`hidden` must be a tuple of numbers of units, got {got}.")
        sizes = (visible, *hidden)
        for k, size in enumerate(sizes):
            _checks.count("visible" if k == 0 else f"hidden[{k - 1}]", size)
        keys = jax.random.split(_checks.as_key(key), len(hidden))
        shapes = zip(sizes[:-1], sizes[1:], keys, strict=True)
        weights = tuple(gaussian((m, n), scale, dtype, k) for m, n, k in shapes)
        return cls(weights, tuple(jnp.zeros(size, weights[0].dtype) for size in sizes))

    @classmethod
    def from_spins(
        cls,
        weights: Sequence[Float[AnyArray, "_ _"]],
        biases: Sequence[Float[AnyArray, "*#batch _"]],
    ) -> "DBM":
        """The DBM whose energy, up to a constant, is $-\\sum_k s_k^\\top J_k s_{k+1} - \\sum_k
        f_k^\\top s_k$ on spins ±1.

        **Arguments:**

        - `weights`: the $J_k$, shaped as those of the model.
        - `biases`: the $f_k$, likewise.
        """
        return from_spins(cls(weights, biases))

    def to_spins(
        self,
    ) -> tuple[tuple[Float[Array, "_ _"], ...], tuple[Float[Array, "... _"], ...]]:
        """The couplings and the fields of the same distribution on spins ±1, as
        `DBM.from_spins` takes them.
        """
        spins = to_spins(self)
        return spins.weights, spins.biases

    def to_rbm(self) -> RBM:
        """Converts the model to an RBM. With two hidden layers, `[v, h2]` are its visible units and
        `h1` its hidden units; with one hidden layer, a DBM is an RBM.
        """
        depth = len(self.weights)
        if depth > 2:
            raise ValueError(f"`to_rbm` needs at most two hidden layers, this DBM has {depth}.")
        if depth == 1:
            return RBM(self.weights[0], *self.biases)
        lower, upper = self.weights
        shape = self.batch_shape
        outer = [jnp.broadcast_to(b, (*shape, b.shape[-1])) for b in self.biases[::2]]
        return RBM(
            jnp.concatenate([lower, upper.T]), jnp.concatenate(outer, axis=-1), self.biases[1]
        )

    @property
    def num_visible(self) -> int:
        return self.weights[0].shape[0]

    @property
    def num_hidden(self) -> tuple[int, ...]:
        """The numbers of units of the hidden layers, from the lowest up."""
        return tuple(w.shape[1] for w in self.weights)

    def energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Sequence[Shaped[AnyArray, "*#batch _"]],
    ) -> Float[Array, "*batch"]:
        """The energy of configurations; `hidden` is a tuple from the lowest layer up."""
        return energy_of(self, *self._layers(visible, hidden))

    def layer_given(
        self,
        layer: int,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Sequence[Shaped[AnyArray, "*#batch _"]],
    ) -> Float[Array, "*batch _"]:
        """The probability of 1 of each unit of one layer (0 is visible) given its neighbouring
        layers. The states given for the layer itself are ignored.
        """
        if not 0 <= layer < len(self.biases):
            raise ValueError(f"`layer` must lie in [0, {len(self.biases) - 1}], got {layer}.")
        return jax.nn.sigmoid(field_of(self, layer, *self._layers(visible, hidden)))

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        ends = zip(self.names[:-1], self.names[1:], self.weights, strict=True)
        return tuple(Dense(low, high, w) for low, high, w in ends)

    @property
    def names(self) -> tuple[str, ...]:
        return "visible", *(f"hidden_{k}" for k in range(1, len(self.biases)))

    @property
    def layers(self) -> Kinds:
        return tuple(binary(bias.shape[-1]) for bias in self.biases)

    def unary(self) -> Arrays:
        return self.biases

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "DBM":
        return eqx.tree_at(lambda m: (m.weights, m.biases), self, (parameters, unary))

    def _layers(self, visible: Any, hidden: Any) -> list[Float[Array, "..."]]:
        if not isinstance(hidden, (tuple, list)) or len(hidden) != len(self.weights):
            raise ValueError(
                f"`hidden` must be a tuple of {len(self.weights)} arrays, one per hidden layer, got"
                f" {_checks.describe(hidden)}."
            )
        dtype = self.weights[0].dtype
        out = [states("visible", visible, self.num_visible, dtype)]
        for k, x in enumerate(hidden):
            out.append(states(f"hidden[{k}]", x, self.num_hidden[k], dtype))
        return out
