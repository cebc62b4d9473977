from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks
from .._types import AnyArray
from ..factors import AbstractFactor, inner
from ..units import AbstractUnits
from ._as_tables import stacks_of
from ._base import AbstractPlainModel, Arrays, Kinds
from ._grouped import AbstractGrouped, where_there
from ._turns import AbstractTurns, Alone, in_order
from ._variables import Groups


class FactorModel(AbstractGrouped, AbstractPlainModel):
    """Any groups of binary or categorical units, joined by any factors:

    $E(x) = -\\sum_g b_g \\cdot x_g + \\sum_f E_f(x)$.

    Data, evidence and beliefs are told by the names of groups. Any group may be observed or
    hidden: data say which.

    !!! example

        ```python
        # An RBM whose label is tied to a coarser one by a table.
        kinds = {
            "visible": ebmlearn.Binary(16),
            "hidden": ebmlearn.Binary(8),
            "label": ebmlearn.Categorical(1, 4),
            "kind": ebmlearn.Categorical(1, 2),
        }
        factors = [
            ebmlearn.Dense("visible", "hidden", np.zeros((16, 8))),
            ebmlearn.Dense("label", "hidden", np.zeros((4, 8))),
            ebmlearn.Tables(("label", "kind"), np.kron(np.eye(2), np.ones((2, 1)))),
        ]
        model = ebmlearn.FactorModel(kinds, factors)
        beliefs = ebmlearn.BP(20)(model, {"visible": np.zeros((5, 16), int)})
        beliefs["kind"]  # [5, 1, 2]
        ```
    """

    units_of: tuple[AbstractUnits, ...]
    parts: tuple[AbstractFactor, ...]
    biases: tuple[Float[Array, " _"], ...]
    colours: Int[AnyArray, "colours width"]
    group_names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        variables: Mapping[str, AbstractUnits],
        factors: Sequence[AbstractFactor],
        unary: Mapping[str, Float[AnyArray, " _"]] | None = None,
    ):
        """**Arguments:**

        - `variables`: a dictionary from names of groups to units, such as `Binary(5)`.
        - `factors`: what joins them, such as `Dense("visible", "hidden", weights)`.
        - `unary`: a dictionary from names of groups to biases, one number for each of their
          internal states; zero by default.
        """
        if not isinstance(variables, Mapping) or not variables:
            got = _checks.describe(variables)
            raise TypeError(f"`variables` must be a dictionary from names to units, got {got}.")
        for name, units in variables.items():
            if not isinstance(name, str) or not isinstance(units, AbstractUnits):
                raise TypeError(
                    "`variables` must be a dictionary from names to units such as `Binary(5)`, got"
                    f" {_checks.describe(units)} for {name!r}."
                )
            if not units.numbered:
                raise TypeError(
                    f"`variables[{name!r}]` must be binary or categorical units, got"
                    f" {type(units).__name__}: take a `LayeredModel` for real units."
                )
        if isinstance(factors, AbstractFactor):
            factors = [factors]
        for k, factor in enumerate(factors):
            if not isinstance(factor, AbstractFactor):
                got = _checks.describe(factor)
                raise TypeError(f"`factors[{k}]` must be a factor such as `Dense(...)`, got {got}.")
            for group in factor.groups:
                _named(group, variables, f"factors[{k}]")
        self.parts = tuple(factor.bound(variables) for factor in factors)
        self.group_names, self.units_of = tuple(variables), tuple(variables.values())
        given = {} if unary is None else unary
        for name in given:
            _named(name, variables, "unary")
        dtypes = [x.dtype for factor in self.parts for x in factor.parameters]
        dtype = dtypes[0] if dtypes else jnp.result_type(float)
        self.biases = tuple(
            _checks.parameter(f"unary[{name!r}]", given.get(name, jnp.zeros(u.width, dtype)))
            for name, u in variables.items()
        )
        tables = [x for x in stacks_of(self) or () if _checks.is_concrete(x[0])]
        self.colours = in_order(tuple(tables), sum(units.size for units in self.units_of))

    def __check_init__(self):
        arrays = {}
        for name, units, bias in zip(self.names, self.units_of, self.biases, strict=True):
            label = f"unary[{name!r}]"
            _checks.exact_shape(label, bias, (units.width,), "as the group is wide")
            arrays[label] = bias
        _checks.finite(**arrays)
        for k, factor in enumerate(self.parts):
            arrays |= {f"factors[{k}]": x for x in factor.parameters}
        _checks.one_dtype(**arrays)

    @property
    def names(self) -> tuple[str, ...]:
        return self.group_names

    @property
    def layers(self) -> Kinds:
        """The units of each group."""
        return self.units_of

    @property
    def log_potentials(self) -> tuple[PyTree, ...]:
        """The parameters of each factor."""
        return tuple(x for factor in self.parts for x in factor.parameters)

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        """What joins the groups."""
        return self.parts

    def unary(self) -> Arrays:
        """The biases."""
        pairs = zip(self.units_of, self.biases, strict=True)
        return tuple(where_there(units, bias) for units, bias in pairs)

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "FactorModel":
        found = iter(parameters)
        parts = tuple(
            eqx.tree_at(lambda f: f.parameters, factor, tuple(next(found) for _ in own))
            if (own := factor.parameters)
            else factor
            for factor in self.parts
        )
        return eqx.tree_at(lambda m: (m.parts, m.biases), self, (parts, tuple(unary)))

    @property
    def turns(self) -> AbstractTurns:
        """Units that share no factor are drawn at once."""
        return Alone(self, self.colours)

    def project(self) -> "FactorModel":
        """The model with its couplings inside groups made symmetric, and zero within each unit."""
        units = self.variables.by_name
        own = [f.projected(units[f.first]).weights for f in inner(self.parts)]
        return eqx.tree_at(lambda m: m.inside(), self, own) if own else self

    def inside(self) -> tuple[PyTree, ...]:
        """The couplings inside groups."""
        return tuple(f.weights for f in inner(self.parts))

    def by_factor(self, values: tuple[Float[Array, "..."], ...]) -> Groups:
        """One value for each parameter of a factor, by the number of the factor."""
        return Groups(tuple(values), tuple(range(len(self.parts))))


def _named(name: Any, variables: Mapping[str, Any], argument: str) -> None:
    if name not in variables:
        wanted = ", ".join(map(repr, variables))
        raise ValueError(f"`{argument}` must name groups, {wanted}, got {name!r}.")
