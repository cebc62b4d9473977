import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, PRNGKeyArray, Shaped

from .. import _checks
from .._types import AnyArray
from ._base import (
    AbstractLayeredModel,
    as_edges,
    gaussian,
    instancewise,
    Kind,
    scaled,
    states,
    symmetrised,
    Units,
)
from ._copositive import copositivity
from ._rectified import rectified
from ._view import Block


# How far from singular `project` leaves the couplings, as a part of their mean diagonal.
_FLOOR = 1e-3


class TruncatedNormal(NamedTuple):
    """Normal distributions of mean `location` and standard deviation `scale`, cut off below 0."""

    location: Float[Array, "..."]
    scale: Float[Array, "..."]

    @property
    def mean(self) -> Float[Array, "..."]:
        """The mean of what is left."""
        return rectified(self.location / self.scale**2, 1 / self.scale**2).mean

    @property
    def variance(self) -> Float[Array, "..."]:
        """The variance of what is left."""
        return rectified(self.location / self.scale**2, 1 / self.scale**2).variance


class NNBM(AbstractLayeredModel):
    """A nonnegative Boltzmann machine (Yasuda 2015, eq. (1)):

    $E(x) = \\tfrac12 x^\\top W x - b^\\top x$ with $x \\ge 0$,

    where $W$ is symmetric with positive diagonal. It is a distribution if $W$ is strictly
    copositive, that is $x^\\top W x > 0$ wherever $x \\ge 0$ is not zero; beside positive definite
    matrices, that allows some whose density has many peaks.

    Copositivity is checked: exactly up to 12 units; for more by two certificates ($W$ is positive
    definite, or is so without its positive couplings) and by a search for a direction against it.
    Where neither is found, there is a warning.

    !!! example

        ```python
        nnbm = NNBM(couplings=jnp.eye(3) + 0.5, bias=jnp.ones(3))
        ```
    """

    couplings: Float[Array, "n n"]
    bias: Float[Array, " n"]
    edges: tuple[tuple[int, int], ...] | None = eqx.field(static=True)

    def __init__(
        self,
        couplings: Float[AnyArray, "n n"],
        bias: Float[AnyArray, " n"],
        edges: Bool[AnyArray, "n n"] | None = None,
    ):
        """**Arguments:**

        - `couplings`: $W$, of shape `[n, n]`, symmetric, strictly copositive.
        - `bias`: $b$, of shape `[n]`.
        - `edges`: a symmetric mask of booleans `[n, n]`, which units are joined; of its diagonal
          nothing is said. Learning keeps all other couplings at zero, and units that are not joined
          are drawn together. Without it all are joined. The model keeps it as pairs of units.
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
    def init(
        cls,
        units: int,
        *,
        key: PRNGKeyArray,
        scale: float = 0.01,
        edges: Bool[AnyArray, "n n"] | None = None,
        dtype: DTypeLike | None = None,
    ) -> "NNBM":
        """A random nonnegative Boltzmann machine, close to independent units of $W_{ii} = 1$.

        **Arguments:**

        - `units`: the number of units.
        - `key`: a typed key, from `jax.random.key(seed)`.
        - `scale`: standard deviation of the couplings off the diagonal. Biases are zero.
        - `edges`: which units are joined, as for the class itself.
        - `dtype`: float32 or float64; the default dtype of JAX if not given.
        """
        _checks.count("units", units)
        upper = jnp.triu(gaussian((units, units), scale, dtype, key), 1)
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

        @instancewise
        def energy(x):
            return x @ self.couplings @ x / 2 - x @ self.bias

        return energy(states("x", x, self.num_units, self.couplings.dtype))

    def unit_given(self, x: Shaped[AnyArray, "*batch n"]) -> TruncatedNormal:
        """$p(x_i \\mid x_j, j \\ne i)$ for every unit: a normal distribution of location
        $(b_i - \\sum_{j \\ne i} W_{ij} x_j) / W_{ii}$ and scale $W_{ii}^{-1/2}$, cut off below 0.
        """

        @instancewise
        def location(x):
            return (self.bias - self.off_diagonal @ x) / self.diagonal

        where = location(states("x", x, self.num_units, self.couplings.dtype))
        return TruncatedNormal(where, jnp.broadcast_to(self.diagonal**-0.5, where.shape))

    def project(self) -> "NNBM":
        """The model with its couplings made symmetric, zero between units that are not joined, and
        strictly copositive, for use after an update that may have broken any of it.

        As much is added to the diagonal as one of the two certificates of copositivity needs, and
        nothing where it holds.
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

    def tempered(self, beta: float | Float[Array, ""]) -> "NNBM":
        """The model of $p(x)^\\beta$, for a positive $\\beta$: every parameter times `beta`."""
        _checks.number("beta", beta, 0, float("inf"), "(0, inf)")
        return scaled(self, beta)

    def expected_energy(self, units: Units, pairwise: Float[Array, "n n"]) -> Float[Array, ""]:
        """The mean energy under expected statistics: `units.x` of each instance, and the mean of
        $x x^\\top$.

        An edge counts as one parameter, so that its gradient stands whole at both places.
        """
        mean = units.x.reshape(-1, self.num_units).mean(0)
        squares = self.diagonal @ jnp.diagonal(pairwise)
        pairs = (as_edges(self.off_diagonal) * pairwise).sum()
        return (squares + pairs) / 2 - self.bias @ mean

    def blocks(self) -> tuple[Block, ...]:
        return (Block(0, 0, -self.off_diagonal),)

    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        return (self.bias,)

    def with_unary(self, unary: tuple[Float[Array, "... _"], ...]) -> "NNBM":
        """The model with other biases, as `unary` gives them."""
        return eqx.tree_at(lambda model: (model.bias,), self, unary)

    def kinds(self) -> tuple[Kind, ...]:
        return ("nonnegative",)

    def units(self, layers: tuple[Any, ...]) -> Units:
        return Units(*layers)

    def factors(self, blocks: tuple[Any, ...]) -> Any:
        return blocks[0]


def check_couplings(couplings: Array) -> None:
    """Raises `ValueError` unless `couplings` is square and, if its values are known, symmetric with
    positive diagonal.
    """
    outside, least = couplings, float("inf")
    square = couplings.ndim == 2 and couplings.shape[0] == couplings.shape[1]
    if square and _checks.is_concrete(couplings):
        # In NumPy, which compiles nothing for a new size.
        diagonal = np.diagonal(np.asarray(couplings))
        least = float(diagonal.min(initial=np.inf))
        with jax.ensure_compile_time_eval():
            outside = jnp.asarray(np.asarray(couplings) - np.diag(diagonal))
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
