from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._base import AbstractPairwiseModel, gaussian, instancewise, Kind, states, symmetrised, Units
from ._view import Block


class BoltzmannMachine(AbstractPairwiseModel):
    """A fully visible Boltzmann machine, that is an Ising model on binary units:

    $E(x) = -\\tfrac12 x^\\top W x - b^\\top x$ with $x \\in \\lbrace 0, 1 \\rbrace^n$,

    where $W$ is symmetric with zero diagonal. `from_spins` takes the parameters of the ±1 form.

    !!! example

        ```python
        ising = ebmlearn.BoltzmannMachine.from_spins(couplings=J, field=h)
        ```
    """

    couplings: Float[Array, "n n"]
    bias: Float[Array, "*batch n"]

    def __init__(self, couplings: Float[AnyArray, "n n"], bias: Float[AnyArray, "*batch n"]):
        """**Arguments:**

        - `couplings`: $W$, of shape `[n, n]`, symmetric, zero on the diagonal.
        - `bias`: $b$, of shape `[*batch, n]`.
        """
        self.couplings = _checks.parameter("couplings", couplings)
        self.bias = _checks.parameter("bias", bias)

    def __check_init__(self):
        _checks.finite(**vars(self))
        _checks.symmetric("couplings", self.couplings)
        _checks.trailing("bias", self.bias, self.couplings.shape[:1], "as `couplings` has rows")
        _checks.one_dtype(**vars(self))

    @classmethod
    def init(
        cls,
        units: int,
        *,
        key: PRNGKeyArray,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "BoltzmannMachine":
        """A random Boltzmann machine.

        **Arguments:**

        - `units`: the number of units.
        - `key`: a typed key, from `jax.random.key(seed)`.
        - `scale`: standard deviation of the couplings. Biases are zero.
        - `dtype`: float32 or float64; the default dtype of JAX if not given.
        """
        _checks.count("units", units)
        upper = jnp.triu(gaussian((units, units), scale, dtype, key), 1)
        return cls(upper + upper.T, jnp.zeros(units, upper.dtype))

    @classmethod
    def from_spins(
        cls, couplings: Float[AnyArray, "n n"], field: Float[AnyArray, "*batch n"]
    ) -> "BoltzmannMachine":
        """The model whose energy, up to a constant, is $-\\tfrac12 s^\\top J s - f^\\top s$ on
        spins $s \\in \\lbrace -1, 1 \\rbrace^n$.

        **Arguments:**

        - `couplings`: $J$, symmetric, zero on the diagonal.
        - `field`: $f$.
        """
        couplings, field = (
            _checks.parameter("couplings", couplings),
            _checks.parameter("field", field),
        )
        _checks.finite(couplings=couplings, field=field)
        _checks.symmetric("couplings", couplings)
        _checks.trailing("field", field, couplings.shape[:1], "as `couplings` has rows")
        return cls(4 * couplings, 2 * (field - jnp.broadcast_to(couplings.sum(1), field.shape)))

    def to_spins(self) -> tuple[Float[Array, "n n"], Float[Array, "*batch n"]]:
        """The couplings and the field of the same distribution on spins ±1, as
        `BoltzmannMachine.from_spins` takes them.
        """
        couplings = symmetrised(self.couplings)
        total = jnp.broadcast_to(couplings.sum(1), self.bias.shape)
        return couplings / 4, self.bias / 2 + total / 4

    @property
    def num_units(self) -> int:
        return self.couplings.shape[0]

    def energy(self, x: Shaped[AnyArray, "*#batch n"]) -> Float[Array, "*batch"]:
        """The energy $E(x)$ of configurations; leading axes broadcast."""

        @instancewise
        def energy(x, bias):
            return -(x @ symmetrised(self.couplings) @ x) / 2 - x @ bias

        return energy(self._states(x), self.bias)

    def unit_given(self, x: Shaped[AnyArray, "*#batch n"]) -> Float[Array, "*batch n"]:
        """$p(x_i = 1 \\mid x_j, j \\ne i)$ for every unit."""

        @instancewise
        def conditional(x, bias):
            return jax.nn.sigmoid(symmetrised(self.couplings) @ x + bias)

        return conditional(self._states(x), self.bias)

    def project(self) -> "BoltzmannMachine":
        """The model with its couplings made symmetric and zero on the diagonal, for use after an
        update that may have broken either.
        """
        return eqx.tree_at(lambda model: model.couplings, self, symmetrised(self.couplings))

    def blocks(self) -> tuple[Block, ...]:
        return (Block(0, 0, symmetrised(self.couplings)),)

    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        return (self.bias,)

    def with_unary(self, unary: tuple[Float[Array, "... _"], ...]) -> "BoltzmannMachine":
        """The model with other biases, as `unary` gives them."""
        return eqx.tree_at(lambda model: (model.bias,), self, unary)

    def kinds(self) -> tuple[Kind, ...]:
        return ("binary",)

    def units(self, layers: tuple[Any, ...]) -> Units:
        return Units(*layers)

    def factors(self, blocks: tuple[Any, ...]) -> Any:
        return blocks[0]

    def _states(self, x: Shaped[AnyArray, "..."]) -> Float[Array, "..."]:
        return states("x", x, self.num_units, self.couplings.dtype)
