import warnings
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..factors import AbstractFactor, Dense
from ..units import Nonnegative, TruncatedNormal
from ._arrays import gaussian, symmetrised
from ._base import AbstractPlainModel, Arrays, energy_of, field_of, Kinds
from ._copositive import copositivity


# How far from singular `project` leaves the couplings, as a part of their mean diagonal.
_FLOOR = 1e-3


class NNBM(AbstractPlainModel):
    """A nonnegative Boltzmann machine (Yasuda 2015, eq. (1)):

    $E(x) = \\tfrac12 x^\\top W x - b^\\top x$ with $x \\ge 0$,

    where $W$ is symmetric with positive diagonal. It is a distribution if $W$ is strictly
    copositive: $x^\\top W x > 0$ for all nonzero $x \\ge 0$. All positive definite matrices are
    copositive, and so are some matrices whose density has many peaks.

    The constructor checks copositivity. Up to 12 units the check is exact. Beyond that it tries two
    certificates ($W$ is positive definite, or is so without its positive couplings) and searches
    for a counterexample; it warns if it finds neither.

    !!! example

        ```python
        nnbm = ebmlearn.NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        ```
    """

    couplings: Float[Array, "n n"]
    bias: Float[Array, " n"]
    edges: tuple[tuple[int, int], ...] | None = eqx.field(static=True)

    hint: ClassVar[str] = "use `NaiveMeanField`, `TAP`, `SusP`, `ISusP`, `Exact` or a sampler"

    def __init__(
        self,
        couplings: Float[AnyArray, "n n"],
        bias: Float[AnyArray, " n"],
        edges: Bool[AnyArray, "n n"] | None = None,
    ):
        """**Arguments:**

        - `couplings`: $W$, of shape `[n, n]`, symmetric, strictly copositive.
        - `bias`: $b$, of shape `[n]`.
        - `edges`: a symmetric mask of booleans `[n, n]`, the pairs of units that are joined; all by
          default. The diagonal is ignored. Learning keeps all other couplings at zero, and samplers
          draw unjoined units at the same time. The model stores the mask as pairs of units.
        """
        self.couplings = _checks.parameter("couplings", couplings)
        self.bias = _checks.parameter("bias", bias)
        self.edges = None if edges is None else _pairs(edges, self.couplings)

    def __check_init__(self):
        parameters = {"couplings": self.couplings, "bias": self.bias}
        _checks.finite(**parameters)
        check_couplings(self.couplings)
        _checks.exact_shape("bias", self.bias, self.couplings.shape[:1], "as `couplings` has rows")
        _checks.one_dtype(**parameters)
        if _checks.is_concrete(self.couplings):
            self._check_values(np.asarray(self.couplings))

    def _check_values(self, couplings: np.ndarray) -> None:
        if self.edges is not None:
            outside = np.where(self.mask | np.eye(len(couplings), dtype=bool), 0, couplings)
            if outside.any():
                i, j = np.argwhere(outside)[0]
                raise ValueError(
                    "`couplings` must be zero between units that `edges` does not join, got"
                    f" {couplings[i, j]:.3g} between {i} and {j}."
                )
        answer = copositivity(couplings)
        if answer.holds is None:
            warnings.warn(
                f"`couplings` of {len(couplings)} units are not known to be copositive:"
                f" {answer.reason}. If they are not, there is no distribution.",
                stacklevel=3,
            )
        elif not answer.holds:
            assert answer.direction is not None
            x = answer.direction
            shown = ", ".join(f"{i}: {x[i]:.3g}" for i in np.argsort(-x)[:8] if x[i] > 0)
            dots = ", ..." if np.count_nonzero(x) > 8 else ""
            raise ValueError(
                "`couplings` must be strictly copositive, x'Wx > 0 for all x >= 0 but zero, got"
                f" x'Wx = {x @ couplings @ x:.3g} for x = {{{shown}{dots}}}, zero elsewhere."
            )

    @classmethod
    @_checks.usage("NNBM.init(units=10, key=0)")
    def init(
        cls,
        units: int,
        *,
        key: Key = 0,
        scale: float = 0.01,
        edges: Bool[AnyArray, "n n"] | None = None,
        dtype: DTypeLike | None = None,
    ) -> "NNBM":
        """A random nonnegative Boltzmann machine, close to independent units of $W_{ii} = 1$.

        **Arguments:**

        - `units`: the number of units.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the couplings off the diagonal. Biases are zero.
        - `edges`: which units are joined, as for the class itself.
        - `dtype`: float32 or float64; by default the default dtype of JAX.
        """
        _checks.count("units", units)
        upper = jnp.triu(gaussian((units, units), scale, dtype, _checks.as_key(key)), 1)
        couplings = jnp.eye(units, dtype=upper.dtype) + upper + upper.T
        if edges is not None:
            keep = jnp.asarray(edges) | jnp.eye(units, dtype=bool)
            couplings = jnp.where(keep, couplings, jnp.zeros_like(couplings))
        return cls(couplings, jnp.zeros(units, upper.dtype), edges)

    @property
    def num_units(self) -> int:
        return self.couplings.shape[0]

    @property
    def mask(self) -> Bool[np.ndarray, "n n"]:
        """Which units are joined."""
        n = self.num_units
        if self.edges is None:
            return ~np.eye(n, dtype=bool)
        out = np.zeros((n, n), bool)
        first, second = self.pairs
        out[first, second] = out[second, first] = True
        return out

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The two ends of each edge, the smaller number first."""
        if self.edges is None:
            first, second = np.triu_indices(self.num_units, 1)
            return first.astype(np.int32), second.astype(np.int32)
        ends = np.array(self.edges, np.int32).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]

    @property
    def diagonal(self) -> Float[Array, " n"]:
        """$W_{ii}$."""
        return jnp.diagonal(self.couplings)

    @property
    def off_diagonal(self) -> Float[Array, "n n"]:
        """$W$ without its diagonal, symmetric, and zero where units are not joined."""
        couplings = symmetrised(self.couplings)
        if self.edges is None:
            return couplings
        return jnp.where(self.mask, couplings, jnp.zeros_like(couplings))

    def energy(self, x: Shaped[AnyArray, "*batch n"]) -> Float[Array, "*batch"]:
        """The energy $E(x)$ of nonnegative configurations; any leading axes."""
        return energy_of(self, x)

    def unit_given(self, x: Shaped[AnyArray, "*batch n"]) -> TruncatedNormal:
        """$p(x_i \\mid x_j, j \\ne i)$ for every unit: a normal distribution of location
        $(b_i - \\sum_{j \\ne i} W_{ij} x_j) / W_{ii}$ and scale $W_{ii}^{-1/2}$, cut off below 0.
        """
        field = field_of(self, 0, x)
        diagonal = jnp.broadcast_to(self.diagonal, field.shape)
        return TruncatedNormal(field / diagonal, diagonal**-0.5)

    def project(self) -> "NNBM":
        """The model with its couplings made symmetric, zero between units that are not joined, and
        strictly copositive, for use after an update that may have broken any of it.

        It adds to the diagonal what one of the two certificates of copositivity needs, and nothing
        if the certificate holds already.
        """
        couplings = self.off_diagonal
        scale = jnp.abs(self.diagonal).mean() + jnp.finfo(couplings.dtype).tiny
        diagonal = jnp.maximum(self.diagonal, _FLOOR * scale)
        whole, without = couplings, jnp.minimum(couplings, jnp.zeros_like(couplings))
        least = jnp.stack(
            [jnp.linalg.eigvalsh(c + jnp.diag(diagonal))[0] for c in (whole, without)]
        ).max()
        diagonal = diagonal + jnp.maximum(_FLOOR * scale - least, 0)
        return eqx.tree_at(lambda model: model.couplings, self, couplings + jnp.diag(diagonal))

    @property
    def names(self) -> tuple[str]:
        return ("x",)

    @property
    def layers(self) -> Kinds:
        return (Nonnegative(self.num_units, self.diagonal),)

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        return (Dense("x", "x", -self.off_diagonal, self.edges),)

    def inside(self) -> tuple[PyTree, ...]:
        return (self.couplings,)

    def unary(self) -> Arrays:
        return (self.bias,)

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "NNBM":
        couplings = jnp.diag(layers[0].precision) - parameters[0]  # pyright: ignore
        return eqx.tree_at(lambda m: (m.couplings, m.bias), self, (couplings, *unary))

    def by_factor(self, values: tuple[PyTree, ...]) -> PyTree:
        return values[0]


def check_couplings(couplings: Array) -> None:
    """Raises `ValueError` unless `couplings` is square and, if its values are known, symmetric with
    positive diagonal.
    """
    outside, least = couplings, float("inf")
    square = couplings.ndim == 2 and couplings.shape[0] == couplings.shape[1]
    if square and _checks.is_concrete(couplings):
        # In NumPy, which needs no compilation for a new size.
        diagonal = np.diagonal(np.asarray(couplings))
        least = float(diagonal.min(initial=np.inf))
        outside = np.asarray(couplings) - np.diag(diagonal)
    _checks.symmetric("couplings", outside)
    if least <= 0:
        raise ValueError(
            "`couplings` must have a positive diagonal, got"
            f" {_checks.describe(couplings)} with a diagonal entry of {least:.3g}."
        )


def _pairs(edges: Any, couplings: Array) -> tuple[tuple[int, int], ...]:
    """A mask as pairs of units."""
    if not hasattr(edges, "dtype") or edges.dtype != np.bool_ or not _checks.is_concrete(edges):
        raise TypeError(
            f"`edges` must be a mask of booleans whose values are known, got"
            f" {_checks.describe(edges)}."
        )
    _checks.exact_shape("edges", edges, couplings.shape, "as `couplings`")
    mask = np.asarray(edges)
    if (mask != mask.T).any():
        i, j = np.argwhere(mask != mask.T)[0]
        raise ValueError(f"`edges` must be symmetric, got {mask[i, j]} at ({i}, {j}) alone.")
    return tuple((int(i), int(j)) for i, j in np.argwhere(np.triu(mask, 1)))
