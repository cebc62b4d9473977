from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._base import AbstractPairwiseModel, gaussian, instancewise, Kind, Layers, states
from ._view import Block


class RBM(AbstractPairwiseModel):
    """A restricted Boltzmann machine: binary visible units $v$ joined to binary hidden units $h$,

    $E(v, h) = -v^\\top W h - b^\\top v - c^\\top h$  (Ping & Ihler 2017, eq. (1)),

    with weights $W$, visible biases $b$ and hidden biases $c$. The biases may carry leading batch
    axes: one model per instance with shared weights, as [`ebmlearn.CRBM`][]`.condition` gives them.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(visible=784, hidden=500, key=jax.random.key(0))
        ```
    """

    weights: Float[Array, "visible hidden"]
    visible_bias: Float[Array, "*batch visible"]
    hidden_bias: Float[Array, "*batch hidden"]

    def __init__(
        self,
        weights: Float[AnyArray, "visible hidden"],
        visible_bias: Float[AnyArray, "*#batch visible"],
        hidden_bias: Float[AnyArray, "*#batch hidden"],
    ):
        """**Arguments:**

        - `weights`: array of shape `[visible, hidden]`.
        - `visible_bias`: array of shape `[*batch, visible]`.
        - `hidden_bias`: array of shape `[*batch, hidden]`.
        """
        self.weights = _checks.parameter("weights", weights)
        self.visible_bias = _checks.parameter("visible_bias", visible_bias)
        self.hidden_bias = _checks.parameter("hidden_bias", hidden_bias)

    def __check_init__(self):
        _checks.rank("weights", self.weights, 2, "[visible, hidden]")
        visible, hidden = self.weights.shape
        _checks.trailing("visible_bias", self.visible_bias, (visible,), "as `weights` has rows")
        _checks.trailing("hidden_bias", self.hidden_bias, (hidden,), "as `weights` has columns")
        _checks.broadcastable(
            visible_bias=self.visible_bias.shape[:-1], hidden_bias=self.hidden_bias.shape[:-1]
        )
        _checks.one_dtype(**vars(self))
        _checks.finite(**vars(self))

    @classmethod
    def init(
        cls,
        visible: int,
        hidden: int,
        *,
        key: PRNGKeyArray,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "RBM":
        """A random RBM.

        **Arguments:**

        - `visible`, `hidden`: the numbers of units.
        - `key`: a typed key, from `jax.random.key(seed)`.
        - `scale`: standard deviation of the weights. Biases are zero.
        - `dtype`: float32 or float64; the default dtype of JAX if not given.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden, 0)
        weights = gaussian((visible, hidden), scale, dtype, key)
        return cls(weights, jnp.zeros(visible, weights.dtype), jnp.zeros(hidden, weights.dtype))

    @classmethod
    def from_spins(
        cls,
        couplings: Float[AnyArray, "visible hidden"],
        visible_field: Float[AnyArray, "*#batch visible"],
        hidden_field: Float[AnyArray, "*#batch hidden"],
    ) -> "RBM":
        """The RBM whose energy, up to a constant, is $-s^\\top J t - f^\\top s - g^\\top t$ on
        spins $s, t \\in \\lbrace -1, 1 \\rbrace$.

        **Arguments:**

        - `couplings`: $J$, of shape `[visible, hidden]`.
        - `visible_field`, `hidden_field`: $f$ and $g$.
        """
        couplings = _checks.parameter("couplings", couplings)
        visible_field = _checks.parameter("visible_field", visible_field)
        hidden_field = _checks.parameter("hidden_field", hidden_field)
        _checks.rank("couplings", couplings, 2, "[visible, hidden]")
        rows, columns = couplings.shape
        _checks.trailing("visible_field", visible_field, (rows,), "as `couplings` has rows")
        _checks.trailing("hidden_field", hidden_field, (columns,), "as `couplings` has columns")
        _checks.finite(couplings=couplings, visible_field=visible_field, hidden_field=hidden_field)
        return cls(
            4 * couplings,
            2 * (visible_field - jnp.broadcast_to(couplings.sum(1), visible_field.shape)),
            2 * (hidden_field - jnp.broadcast_to(couplings.sum(0), hidden_field.shape)),
        )

    def to_spins(
        self,
    ) -> tuple[
        Float[Array, "visible hidden"],
        Float[Array, "... visible"],
        Float[Array, "... hidden"],
    ]:
        """The couplings and the fields of the same distribution on spins ±1, as
        `RBM.from_spins` takes them.
        """
        visible = jnp.broadcast_to(self.weights.sum(1), self.visible_bias.shape)
        hidden = jnp.broadcast_to(self.weights.sum(0), self.hidden_bias.shape)
        return (
            self.weights / 4,
            self.visible_bias / 2 + visible / 4,
            self.hidden_bias / 2 + hidden / 4,
        )

    @property
    def num_visible(self) -> int:
        return self.weights.shape[0]

    @property
    def num_hidden(self) -> int:
        return self.weights.shape[1]

    def energy(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
    ) -> Float[Array, "*batch"]:
        """The energy $E(v, h)$ of configurations; leading axes broadcast."""

        @instancewise
        def energy(visible, hidden, visible_bias, hidden_bias):
            pairs = visible @ self.weights @ hidden
            return -pairs - visible @ visible_bias - hidden @ hidden_bias

        v, h = self._visible(visible), self._hidden(hidden)
        return energy(v, h, self.visible_bias, self.hidden_bias)

    def free_energy(self, visible: Shaped[AnyArray, "*#batch visible"]) -> Float[Array, "*batch"]:
        """$F(v) = -\\log \\sum_h e^{-E(v, h)}$, so that $p(v) \\propto e^{-F(v)}$ (eq. (4))."""

        @instancewise
        def free_energy(visible, visible_bias, hidden_bias):
            fields = visible @ self.weights + hidden_bias
            return -(visible @ visible_bias) - jax.nn.softplus(fields).sum()

        return free_energy(self._visible(visible), self.visible_bias, self.hidden_bias)

    def hidden_given(
        self, visible: Shaped[AnyArray, "*#batch visible"]
    ) -> Float[Array, "*batch hidden"]:
        """$p(h_j = 1 \\mid v)$ for every hidden unit (eq. (3))."""

        @instancewise
        def conditional(visible, hidden_bias):
            return jax.nn.sigmoid(visible @ self.weights + hidden_bias)

        return conditional(self._visible(visible), self.hidden_bias)

    def visible_given(
        self, hidden: Shaped[AnyArray, "*#batch hidden"]
    ) -> Float[Array, "*batch visible"]:
        """$p(v_i = 1 \\mid h)$ for every visible unit (eq. (3))."""

        @instancewise
        def conditional(hidden, visible_bias):
            return jax.nn.sigmoid(self.weights @ hidden + visible_bias)

        return conditional(self._hidden(hidden), self.visible_bias)

    def blocks(self) -> tuple[Block, ...]:
        return (Block(0, 1, self.weights),)

    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        return self.visible_bias, self.hidden_bias

    def with_unary(self, unary: tuple[Float[Array, "... _"], ...]) -> "RBM":
        """The model with other biases, as `unary` gives them."""
        return eqx.tree_at(lambda model: (model.visible_bias, model.hidden_bias), self, unary)

    def kinds(self) -> tuple[Kind, ...]:
        return ("binary", "binary")

    def units(self, layers: tuple[Any, ...]) -> Layers:
        return Layers(*layers)

    def factors(self, blocks: tuple[Any, ...]) -> Any:
        return blocks[0]

    def _visible(self, x: Shaped[AnyArray, "..."]) -> Float[Array, "..."]:
        return states("visible", x, self.num_visible, self.weights.dtype)

    def _hidden(self, x: Shaped[AnyArray, "..."]) -> Float[Array, "..."]:
        return states("hidden", x, self.num_hidden, self.weights.dtype)
