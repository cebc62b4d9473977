from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Key
from ..factors import AbstractFactor, Dense
from ..units import AbstractUnits
from ._arrays import gaussian
from ._base import AbstractPlainModel, Arrays, Kinds, parameters_of
from ._conditional import complete_energies, is_closed
from ._observed import seen_states
from ._variables import by_layer, check_names


class LayeredModel(AbstractPlainModel):
    """Any layers of units, joined by any blocks of weights:

    $E(x) = \\sum_k E_0(x_k) - \\sum_k b_k \\cdot x_k - \\sum_{kl} x_k^\\top W_{kl} x_l$,

    where a block inside a layer is symmetric, zero within each unit, and counts each edge once.
    Samplers, annealed importance sampling, stochastic learners and NumPyro work with it. Layers
    named `hidden`, or `hidden_1`, `hidden_2` and so on, are hidden; all others are visible.

    !!! example

        ```python
        model = ebmlearn.LayeredModel.init(
            {"visible": ebmlearn.Categorical(53, 21), "hidden": ebmlearn.Nonnegative(20)},
            joined=[("visible", "hidden")],
            key=0,
        )
        ```
    """

    units_of: tuple[AbstractUnits, ...]
    weights: tuple[Float[Array, "_ _"], ...]
    biases: tuple[Float[Array, "... _"], ...]
    layer_names: tuple[str, ...] = eqx.field(static=True)
    joined: tuple[tuple[int, int], ...] = eqx.field(static=True)
    hint: ClassVar[str] = "use a sampler, such as `Gibbs()`, and `SAP` to train it"
    example: ClassVar[str] = (
        '{"visible": Binary(784), "hidden": Binary(500)}, [("visible", "hidden")], key=0'
    )

    def __init__(
        self,
        layers: Mapping[str, AbstractUnits],
        blocks: Mapping[tuple[str, str], Float[AnyArray, "_ _"]],
        unary: Mapping[str, Float[AnyArray, "... _"]] | None = None,
    ):
        """**Arguments:**

        - `layers`: a dictionary from names to units. The first layer must be visible.
        - `blocks`: a dictionary from pairs of names to weights, of shape `[width, width]` of the
          two layers. `(a, b)` and `(b, a)` are added up to one block, that of the first of them.
        - `unary`: a dictionary from names to biases, of shape `[..., width]`; zero by default.
        """
        if not isinstance(layers, Mapping) or not layers:
            got = _checks.describe(layers)
            raise TypeError(f"`layers` must be a dictionary from names to units, got {got}.")
        for name, units in layers.items():
            if not isinstance(units, AbstractUnits):
                got = _checks.describe(units)
                raise TypeError(f"`layers[{name!r}]` must be units such as `Binary(5)`, got {got}.")
        names, widths = tuple(layers), [units.width for units in layers.values()]
        check_names(names)
        joined = [_pair(pair, names) for pair in blocks]
        arrays = {f"blocks[{k}]": _checks.parameter(f"blocks[{k}]", w) for k, w in blocks.items()}
        weights: dict[tuple[int, int], Any] = {}
        given = {} if unary is None else unary
        for name in given:
            _place(name, names, "unary")
        dtype = next((w.dtype for w in arrays.values()), jnp.result_type(float))
        biases = {}
        for name, width in zip(names, widths, strict=True):
            label = f"unary[{name!r}]"
            biases[label] = _checks.parameter(label, given.get(name, jnp.zeros(width, dtype)))
            _checks.trailing(label, biases[label], (width,), "as the layer is wide")
        _checks.broadcastable(**{label: bias.shape[:-1] for label, bias in biases.items()})
        _checks.one_dtype(**arrays, **biases)
        _checks.finite(**arrays, **biases)
        for (first, second), (label, w) in zip(joined, arrays.items(), strict=True):
            _checks.exact_shape(label, w, (widths[first], widths[second]), "as the layers are wide")
            if first == second:
                _checks.symmetric(label, w)
            # Two blocks between the same layers are one: a pair of units is joined once.
            if first != second and (second, first) in weights:
                weights[second, first] = weights[second, first] + w.T
            else:
                weights[first, second] = w
        self.layer_names, self.units_of = names, tuple(layers.values())
        self.joined, self.weights = tuple(weights), tuple(weights.values())
        self.biases = tuple(biases.values())

    @classmethod
    def init(
        cls,
        layers: Mapping[str, AbstractUnits],
        joined: list[tuple[str, str]],
        *,
        key: Key = 0,
        scale: float = 0.01,
    ) -> "LayeredModel":
        """A random model.

        **Arguments:**

        - `layers`: a dictionary from names to units.
        - `joined`: pairs of names of layers to join.
        - `key`: a seed, or a key such as `jax.random.key(0)`.
        - `scale`: standard deviation of the weights. Biases are zero.
        """
        keys = jax.random.split(_checks.as_key(key), len(joined))
        blocks = {}
        for pair, own in zip(joined, keys, strict=True):
            first, second = _pair(pair, tuple(layers))
            widths = [list(layers.values())[k].width for k in (first, second)]
            weights = gaussian((widths[0], widths[1]), scale, None, own)
            inside = first == second
            factor = Dense(*pair, weights)
            own = factor.projected(list(layers.values())[first]) if inside else factor
            blocks[pair] = own.weights
        return cls(layers, blocks)

    @property
    def names(self) -> tuple[str, ...]:
        return self.layer_names

    @property
    def layers(self) -> Kinds:
        return self.units_of

    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        names, out = self.layer_names, []
        for (first, second), w in zip(self.joined, self.weights, strict=True):
            factor = Dense(names[first], names[second], w)
            out.append(factor.projected(self.units_of[first]) if first == second else factor)
        return tuple(out)

    def inside(self) -> tuple[PyTree, ...]:
        pairs = zip(self.joined, self.weights, strict=True)
        return tuple(w for (first, second), w in pairs if first == second)

    def unary(self) -> Arrays:
        return self.biases

    def remade(self, layers: Kinds, parameters: Arrays, unary: Arrays) -> "LayeredModel":
        parts = (layers, parameters, unary)
        return eqx.tree_at(lambda m: (m.units_of, m.weights, m.biases), self, parts)

    def energy(self, states: PyTree) -> Float[Array, " rows"]:
        """The energy of configurations, named as samples are: `[rows, size]` for each layer."""
        parts = by_layer("states", self.names, states)
        return self.energies(
            [units.encode(x, self.dtype) for units, x in zip(self.layers, parts, strict=True)]
        )

    def free_energy(self, visible: Shaped[AnyArray, "rows _"]) -> Float[Array, " rows"]:
        """Minus the log-potential of visible units, with hidden units summed out. It needs exactly
        one visible layer, and no two hidden layers may be joined.
        """
        if not is_closed(self):
            raise ValueError("`free_energy` needs hidden layers that are not joined, got others.")
        return complete_energies(self, seen_states(self, visible, "visible"))

    def project(self) -> "LayeredModel":
        """The model with its couplings inside layers made symmetric, and zero within each unit."""
        return self.remade(self.layers, parameters_of(self.factors()), self.unary())


def _place(name: Any, names: tuple[str, ...], argument: str) -> int:
    if name not in names:
        wanted = ", ".join(map(repr, names))
        raise ValueError(f"`{argument}` must name layers, {wanted}, got {name!r}.")
    return names.index(name)


def _pair(pair: Any, names: tuple[str, ...]) -> tuple[int, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        got = _checks.describe(pair)
        raise TypeError(f"`blocks` must have pairs of names of layers as keys, got {got}.")
    first, second = (_place(name, names, "blocks") for name in pair)
    return first, second
