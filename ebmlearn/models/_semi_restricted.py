from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._base import AbstractPairwiseModel, gaussian, instancewise, Layers, states, symmetrised
from ._rbm import RBM
from ._view import Block


class SemiRestrictedBM(AbstractPairwiseModel):
    """A semi-restricted Boltzmann machine: an RBM with couplings between its visible units,

    $E(v, h) = -v^\\top W h - \\tfrac12 v^\\top L v - b^\\top v - c^\\top h$

    (Salakhutdinov 2009), with $L$ symmetric and zero on its diagonal.
    """

    weights: Float[Array, "visible hidden"]
    couplings: Float[Array, "visible visible"]
    visible_bias: Float[Array, "*batch visible"]
    hidden_bias: Float[Array, "*batch hidden"]

    def __init__(
        self,
        weights: Float[AnyArray, "visible hidden"],
        couplings: Float[AnyArray, "visible visible"],
        visible_bias: Float[AnyArray, "*#batch visible"],
        hidden_bias: Float[AnyArray, "*#batch hidden"],
    ):
        """**Arguments:**

        - `weights`: $W$, of shape `[visible, hidden]`.
        - `couplings`: $L$, of shape `[visible, visible]`, symmetric, zero on the diagonal.
        - `visible_bias`: array of shape `[*batch, visible]`.
        - `hidden_bias`: array of shape `[*batch, hidden]`.
        """
        self.weights = _checks.parameter("weights", weights)
        self.couplings = _checks.parameter("couplings", couplings)
        self.visible_bias = _checks.parameter("visible_bias", visible_bias)
        self.hidden_bias = _checks.parameter("hidden_bias", hidden_bias)

    def __check_init__(self):
        _checks.rank("weights", self.weights, 2, "[visible, hidden]")
        visible, hidden = self.weights.shape
        _checks.finite(**vars(self))
        _checks.symmetric("couplings", self.couplings)
        rows = "as `weights` has rows"
        _checks.exact_shape("couplings", self.couplings, (visible, visible), rows)
        _checks.trailing("visible_bias", self.visible_bias, (visible,), rows)
        _checks.trailing("hidden_bias", self.hidden_bias, (hidden,), "as `weights` has columns")
        _checks.broadcastable(
            visible_bias=self.visible_bias.shape[:-1], hidden_bias=self.hidden_bias.shape[:-1]
        )
        _checks.one_dtype(**vars(self))

    @classmethod
    def init(
        cls,
        visible: int,
        hidden: int,
        *,
        key: PRNGKeyArray,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "SemiRestrictedBM":
        """A random semi-restricted Boltzmann machine.

        **Arguments:**

        - `visible`, `hidden`: the numbers of units.
        - `key`: a typed key, from `jax.random.key(seed)`.
        - `scale`: standard deviation of weights and couplings. Biases are zero.
        - `dtype`: float32 or float64; the default dtype of JAX if not given.
        """
        _checks.count("visible", visible)
        _checks.count("hidden", hidden)
        _checks.typed_key(key)
        one, two = jax.random.split(key)
        weights = gaussian((visible, hidden), scale, dtype, one)
        upper = jnp.triu(gaussian((visible, visible), scale, dtype, two), 1)
        zeros = jnp.zeros(visible, upper.dtype), jnp.zeros(hidden, upper.dtype)
        return cls(weights, upper + upper.T, *zeros)

    @classmethod
    def from_spins(
        cls,
        weights: Float[AnyArray, "visible hidden"],
        couplings: Float[AnyArray, "visible visible"],
        visible_bias: Float[AnyArray, "*#batch visible"],
        hidden_bias: Float[AnyArray, "*#batch hidden"],
    ) -> "SemiRestrictedBM":
        """The model whose energy, up to a constant, is $-s^\\top J t - \\tfrac12 s^\\top K s -
        f^\\top s - g^\\top t$ on spins ±1.

        **Arguments:**

        - `weights`: $J$, of shape `[visible, hidden]`.
        - `couplings`: $K$, of shape `[visible, visible]`, symmetric, zero on the diagonal.
        - `visible_bias`, `hidden_bias`: $f$ and $g$.
        """
        spins = cls(weights, couplings, visible_bias, hidden_bias)
        visible, hidden = spins._weight_sums()
        return cls(
            4 * spins.weights,
            4 * spins.couplings,
            2 * (spins.visible_bias - visible),
            2 * (spins.hidden_bias - hidden),
        )

    def to_spins(
        self,
    ) -> tuple[
        Float[Array, "visible hidden"],
        Float[Array, "visible visible"],
        Float[Array, "... visible"],
        Float[Array, "... hidden"],
    ]:
        """The parameters of the same distribution on spins ±1, as `SemiRestrictedBM.from_spins`
        takes them.
        """
        visible, hidden = self._weight_sums()
        return (
            self.weights / 4,
            symmetrised(self.couplings) / 4,
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
        energy = self._rbm().energy(visible, hidden)
        return energy - jnp.broadcast_to(self._lateral(visible), energy.shape)

    def free_energy(self, visible: Shaped[AnyArray, "*#batch visible"]) -> Float[Array, "*batch"]:
        """$F(v) = -\\log \\sum_h e^{-E(v, h)}$, so that $p(v) \\propto e^{-F(v)}$."""
        energy = self._rbm().free_energy(visible)
        return energy - jnp.broadcast_to(self._lateral(visible), energy.shape)

    def hidden_given(
        self, visible: Shaped[AnyArray, "*#batch visible"]
    ) -> Float[Array, "*batch hidden"]:
        """$p(h_j = 1 \\mid v)$ for every hidden unit."""
        return self._rbm().hidden_given(visible)

    def visible_given(
        self,
        visible: Shaped[AnyArray, "*#batch visible"],
        hidden: Shaped[AnyArray, "*#batch hidden"],
    ) -> Float[Array, "*batch visible"]:
        """$p(v_i = 1 \\mid h, v_j, j \\ne i)$ for every visible unit."""

        @instancewise
        def conditional(visible, hidden, visible_bias):
            lateral = symmetrised(self.couplings) @ visible
            return jax.nn.sigmoid(self.weights @ hidden + lateral + visible_bias)

        dtype = self.weights.dtype
        v = states("visible", visible, self.num_visible, dtype)
        h = states("hidden", hidden, self.num_hidden, dtype)
        return conditional(v, h, self.visible_bias)

    def project(self) -> "SemiRestrictedBM":
        """The model with its couplings made symmetric and zero on the diagonal, for use after an
        update that may have broken either.
        """
        return eqx.tree_at(lambda model: model.couplings, self, symmetrised(self.couplings))

    def blocks(self) -> tuple[Block, ...]:
        return Block(0, 1, self.weights), Block(0, 0, symmetrised(self.couplings))

    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        return self.visible_bias, self.hidden_bias

    def with_unary(self, unary: tuple[Float[Array, "... _"], ...]) -> "SemiRestrictedBM":
        """The model with other biases, as `unary` gives them."""
        return eqx.tree_at(lambda model: (model.visible_bias, model.hidden_bias), self, unary)

    def units(self, layers: tuple[Any, ...]) -> Layers:
        return Layers(*layers)

    def factors(self, blocks: tuple[Any, ...]) -> Any:
        return tuple(blocks)

    def _weight_sums(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """The sum of all weights at each unit, shaped as the biases."""
        visible = self.weights.sum(1) + symmetrised(self.couplings).sum(1)
        return (
            jnp.broadcast_to(visible, self.visible_bias.shape),
            jnp.broadcast_to(self.weights.sum(0), self.hidden_bias.shape),
        )

    def _rbm(self) -> RBM:
        """The model without its lateral couplings."""
        return RBM(self.weights, self.visible_bias, self.hidden_bias)

    def _lateral(self, visible: Shaped[AnyArray, "*batch visible"]) -> Float[Array, "*batch"]:
        """What the lateral couplings take from the energy."""
        v = states("visible", visible, self.num_visible, self.weights.dtype)
        return ((v @ symmetrised(self.couplings)) * v).sum(-1) / 2
