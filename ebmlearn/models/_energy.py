from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _checks
from .._types import AnyArray
from ..factors import AbstractFactor, Function
from ..units import AbstractUnits
from ._base import AbstractPlainModel, Arrays, Kinds
from ._turns import AbstractTurns, taken, unless_held
from ._variables import by_layer, check_names


class EnergyModel(AbstractPlainModel):
    """Any energy of binary or categorical units: $p(x) \\propto e^{-E(x)}$.

    `energy` is a function of one configuration, or an Equinox network: any callable pytree, whose
    arrays are the parameters. It is called with the states as floating-point numbers, binary units
    of shape `[size]`, categorical ones one-hot of shape `[size, states]`, and returns a number.
    Samplers, annealed importance sampling, [`ebmlearn.SAP`][] and NumPyro work on it.

    Gibbs sampling evaluates the energy for each state of each unit in every sweep.
    [`ebmlearn.GibbsWithGradients`][], [`ebmlearn.DMALA`][] and [`ebmlearn.PAS`][] use the gradient
    to choose which units to change, and need only a few evaluations in every step.

    !!! example

        ```python
        import equinox

        def energy(x):  # neighbours on a ring tend to agree
            return -jnp.sum(x * jnp.roll(x, 1))

        model = ebmlearn.EnergyModel(energy, ebmlearn.Binary(5))
        data = ebmlearn.sample(model, ebmlearn.Gibbs(), 1000, key=0).x

        network = equinox.nn.MLP(5, "scalar", 16, 2, key=jax.random.key(0))
        model = ebmlearn.EnergyModel(network, ebmlearn.Binary(5))
        fitted = ebmlearn.fit(model, ebmlearn.SAP(ebmlearn.DMALA()), data, epochs=2)
        fitted.model.function  # the network that was learned
        ```

    With several kinds of units, the energy gets a dictionary:

        ```python
        table = jnp.ones((5, 3))
        ebmlearn.EnergyModel(
            lambda states: -jnp.sum(states["visible"] @ table @ states["label"][0]),
            {"visible": ebmlearn.Binary(5), "label": ebmlearn.Categorical(1, 3)},
        )
        ```
    """

    parameters: PyTree
    units_of: tuple[AbstractUnits, ...]
    layer_names: tuple[str, ...] = eqx.field(static=True)
    fixed: tuple[Any, tuple[Any, ...]] = eqx.field(static=True)
    alone: bool = eqx.field(static=True)
    exact: ClassVar[bool] = False
    hint: ClassVar[str] = "use a sampler, such as `Gibbs()` or `DMALA()`, and `SAP` to train it"

    def __init__(
        self,
        energy: Callable[[Any], Float[Array, ""]],
        units: AbstractUnits | Mapping[str, AbstractUnits],
    ):
        """**Arguments:**

        - `energy`: a function from one configuration to a number.
        - `units`: one kind of units, whose states are then named `x`, or a dictionary from names to
          kinds.
        """
        if not callable(energy):
            got = _checks.describe(energy)
            raise TypeError(f"`energy` must be a function of one configuration, got {got}.")
        self.alone = not isinstance(units, Mapping)
        named: Any = {"x": units} if self.alone else units
        for name, kind in named.items():
            if not isinstance(kind, AbstractUnits) or not kind.numbered:
                where = "" if self.alone else f" for {name!r}"
                raise TypeError(
                    "`units` must be binary or categorical units such as `Binary(5)`, or a"
                    f" dictionary from names to them, got {_checks.describe(kind)}{where}."
                )
        self.layer_names, self.units_of = tuple(named), tuple(named.values())
        check_names(self.layer_names)
        arrays, others = eqx.partition(energy, lambda x: isinstance(x, Array | np.ndarray))
        self.parameters = jax.tree.map(jnp.asarray, arrays)
        leaves, structure = jax.tree.flatten(others)
        self.fixed = structure, tuple(leaves)

    def __check_init__(self):
        try:
            hash(self.fixed)
        except TypeError as error:
            raise TypeError(
                "`energy` must hold arrays and things that can be hashed, as functions can, got"
                f" {error}."
            ) from None
        if not self.layer_names:
            raise ValueError("`units` must hold at least one kind of units, got none.")
        layers = [jax.ShapeDtypeStruct((u.width,), self.dtype) for u in self.units_of]
        # A function of its own: JAX compares those it knows, and a method holds arrays.
        found = jax.eval_shape(lambda x: self._returned(x), layers)
        if getattr(found, "shape", None) != () or not jnp.issubdtype(found.dtype, jnp.floating):
            raise ValueError(
                "`energy` must return one floating-point number for one configuration, got"
                f" {_checks.describe(found)}."
            )

    @property
    def function(self) -> Callable[[Any], Float[Array, ""]]:
        """The energy with its parameters as they are now: after training, what was learned."""
        structure, leaves = self.fixed
        return eqx.combine(self.parameters, jax.tree.unflatten(structure, leaves))

    def energy(self, states: PyTree) -> Float[Array, " rows"]:
        """The energy of configurations, named as samples are: `[rows, size]` for each kind of
        units. Of one kind, the array alone will do.
        """
        if self.alone and hasattr(states, "shape"):
            states = self.named([states])
        parts = by_layer("states", self.names, states)
        for units, x in zip(self.layers, parts, strict=True):
            units.check("states", x)
        return self.energies(
            [units.encode(x, self.dtype) for units, x in zip(self.layers, parts, strict=True)]
        )

    @property
    def names(self) -> tuple[str, ...]:
        return self.layer_names

    @property
    def layers(self) -> Kinds:
        return self.units_of

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters; the default one of JAX if there are none."""
        for x in jax.tree.leaves(self.parameters):
            if jnp.issubdtype(x.dtype, jnp.floating):
                return x.dtype
        return jnp.zeros(()).dtype

    @property
    def turns(self) -> AbstractTurns:
        """One unit after the other."""
        units = len(self.variables.counts)
        return _OneByOne(self, np.arange(units, dtype=np.int32)[:, None])

    def unary(self) -> Arrays:
        """Zeros: all is in the energy."""
        return tuple(jnp.zeros(units.width, self.dtype) for units in self.layers)

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        """The energy itself."""
        return (Function(_Inside(self), self.names),)

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "EnergyModel":
        inexact = eqx.filter(self.parameters, eqx.is_inexact_array)
        own = jax.tree.unflatten(jax.tree.structure(inexact), parameters)
        model = eqx.tree_at(lambda m: m.parameters, self, eqx.combine(own, self.parameters))
        return model._biased(unary, jnp.ones((), self.dtype))

    def trained(self) -> "EnergyModel":
        """True in the place of each array of floating-point numbers."""
        return jax.tree.map(lambda x: bool(jnp.issubdtype(x.dtype, jnp.floating)), self)

    def tempered(self, beta: float | Float[Array, ""]) -> "EnergyModel":
        """The model of $p(x)^\\beta$."""
        return self._biased(self.unary(), jnp.asarray(beta, self.dtype))

    def _biased(
        self, biases: tuple[Float[Array, " _"], ...], beta: Float[Array, ""]
    ) -> "EnergyModel":
        units = self.units_of[0] if self.alone else dict(zip(self.names, self.layers, strict=True))
        return EnergyModel(_Biased(self.function, biases, beta), units)

    def _of_one(self, layers: list[Float[Array, " _"]]) -> Float[Array, ""]:
        """The energy of one configuration, inside."""
        return jnp.asarray(self._returned(layers)).astype(self.dtype)

    def _returned(self, layers: list[Float[Array, " _"]]) -> Any:
        """What the function of a user makes of one configuration, inside."""
        kinds: Any = self.layers
        shaped = [x.reshape(u.shape) for u, x in zip(kinds, layers, strict=True)]
        return self.function(
            shaped[0] if self.alone else dict(zip(self.names, shaped, strict=True))
        )


class _Inside(eqx.Module):
    """The energy as a function of internal states with leading axes."""

    model: EnergyModel

    def __call__(self, states: Any) -> Float[Array, "..."]:
        return jnp.vectorize(
            lambda *x: self.model._of_one(list(x)),
            signature=",".join(f"(n{k})" for k in range(len(states))) + "->()",
        )(*(states[name] for name in self.model.names))


class _Biased(eqx.Module):
    """$\\beta E(x)$ less what biases say of the units."""

    function: Callable[[Any], Float[Array, ""]]
    biases: tuple[Float[AnyArray, " _"], ...]
    beta: Float[AnyArray, ""]

    def __call__(self, states: Any) -> Float[Array, ""]:
        parts = list(states.values()) if isinstance(states, dict) else [states]
        met = [(x.reshape(-1) * b).sum() for x, b in zip(parts, self.biases, strict=True)]
        return jnp.asarray(self.beta) * self.function(states) - jnp.stack(met).sum()


class _OneByOne(AbstractTurns):
    """Scores are energies of all states of a unit."""

    model: EnergyModel
    order: Int[AnyArray, "units 1"]

    def scores(
        self,
        rows: Int[Array, "rows units"],
        members: Int[Array, " width"],
        held: Bool[Array, "rows units"] | None,
    ) -> Float[Array, "rows width most"]:
        (unit,) = members
        counts = self.site_states

        def with_state(state: Int[Array, ""]) -> Float[Array, " rows"]:
            return -self.model.energies(self.layers(rows.at[:, unit].set(state)))

        states = jnp.arange(counts.max(), dtype=rows.dtype)
        found = jax.vmap(with_state, out_axes=1)(states)
        there = jnp.broadcast_to(states, found.shape) < jnp.asarray(counts, rows.dtype)[unit]
        found = jnp.where(there, found, -jnp.inf)[:, None]
        free = None if held is None else taken(held, members)
        return unless_held(found, taken(rows, members), free)
