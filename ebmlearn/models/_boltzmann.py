import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..factors import AbstractFactor, Dense
from ..units._binary import binary
from ._arrays import gaussian, parameter, symmetrised
from ._base import AbstractPlainModel, Arrays, energy_of, field_of, from_spins, Kinds, to_spins


class BoltzmannMachine(AbstractPlainModel):
    """A fully visible Boltzmann machine, also known as an Ising model, on binary units:

    $E(x) = -\\tfrac12 x^\\top W x - b^\\top x$ with $x \\in \\lbrace 0, 1 \\rbrace^n$,

    where $W$ is symmetric with zero diagonal. `from_spins` takes the parameters of the ±1 form.

    !!! example

        ```python
        chain = np.eye(5, k=1) + np.eye(5, k=-1)
        ising = ebmlearn.BoltzmannMachine.from_spins(couplings=chain, field=np.zeros(5))
        ```

    **Arguments:**

    - `couplings`: $W$, of shape `[n, n]`, symmetric, zero on the diagonal.
    - `bias`: $b$, of shape `[*batch, n]`.
    """

    couplings: Float[Array, "n n"] = eqx.field(converter=parameter("couplings"))
    bias: Float[Array, "*batch n"] = eqx.field(converter=parameter("bias"))

    def __check_init__(self):
        _checks.finite(**vars(self))
        _checks.symmetric("couplings", self.couplings)
        _checks.trailing("bias", self.bias, self.couplings.shape[:1], "as `couplings` has rows")
        _checks.one_dtype(**vars(self))

    @classmethod
    @_checks.usage("BoltzmannMachine.init(units=10, key=0)")
    def init(
        cls,
        units: int,
        *,
        key: Key = 0,
        scale: float = 0.01,
        dtype: DTypeLike | None = None,
    ) -> "BoltzmannMachine":
        """A random Boltzmann machine.

        **Arguments:**

        - `units`: the number of units.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the couplings. Biases are zero.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("units", units)
        upper = jnp.triu(gaussian((units, units), scale, dtype, _checks.as_key(key)), 1)
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
        couplings = _checks.parameter("couplings", couplings)
        field = _checks.parameter("field", field)
        _checks.finite(couplings=couplings, field=field)
        _checks.symmetric("couplings", couplings)
        _checks.trailing("field", field, couplings.shape[:1], "as `couplings` has rows")
        return from_spins(cls(couplings, field))

    def to_spins(self) -> tuple[Float[Array, "n n"], Float[Array, "*batch n"]]:
        """The couplings and the field of the same distribution on spins ±1, as
        `BoltzmannMachine.from_spins` takes them.
        """
        spins = to_spins(self)
        return spins.couplings, spins.bias

    @property
    def num_units(self) -> int:
        return self.couplings.shape[0]

    def energy(self, x: Shaped[AnyArray, "*#batch n"]) -> Float[Array, "*batch"]:
        """The energy $E(x)$ of configurations; leading axes broadcast."""
        return energy_of(self, x)

    def unit_given(self, x: Shaped[AnyArray, "*#batch n"]) -> Float[Array, "*batch n"]:
        """$p(x_i = 1 \\mid x_j, j \\ne i)$ for every unit."""
        return jax.nn.sigmoid(field_of(self, 0, x))

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        return (Dense("x", "x", symmetrised(self.couplings)),)

    @property
    def names(self) -> tuple[str]:
        return ("x",)

    @property
    def layers(self) -> Kinds:
        return (binary(self.num_units),)

    def inside(self) -> tuple[PyTree, ...]:
        return (self.couplings,)

    def unary(self) -> Arrays:
        return (self.bias,)

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "BoltzmannMachine":
        return eqx.tree_at(lambda m: (m.couplings, m.bias), self, (*parameters, *unary))

    def by_factor(self, values: tuple[PyTree, ...]) -> PyTree:
        return values[0]
