import abc
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .. import _checks
from .._types import AnyArray, Batch, Evidence, Observed
from ..factors import AbstractFactor, scaled_potentials
from ..units import AbstractUnits
from ._arrays import states, symmetrised, without_diagonal
from ._conditional import States, without
from ._observed import batch_of, evidence_of, Masks, Told, told_by
from ._problem import AbstractProblem, Problem
from ._turns import AbstractTurns
from ._variables import Variables


Model = TypeVar("Model", bound="AbstractModel")
Plain = TypeVar("Plain", bound="AbstractPlainModel")
Kinds = tuple[AbstractUnits, ...]
Arrays = tuple[Float[Array, "..."], ...]
# What models of other libraries have as methods.
_GUESSES = {
    "fit": "ebmlearn.fit(model, learner, data)",
    "train": "ebmlearn.fit(model, learner, data)",
    "sample": "ebmlearn.sample(model, ebmlearn.Gibbs(), 1000, key=0)",
    "gibbs": "ebmlearn.sample(model, ebmlearn.Gibbs(), 1000, key=0)",
    "predict": "ebmlearn.predict(model, features, inference=ebmlearn.BP(10))",
    "transform": "model.hidden_given(visible)",
    "log_prob": "ebmlearn.log_likelihood(model, data, log_partition)",
    "score_samples": "ebmlearn.pseudo_log_likelihood(model, data)",
    "save": "ebmlearn.save(path, model)",
    "load": "ebmlearn.load(path)",
    "parameters": "jax.tree.leaves(model)",
}


class AbstractModel(eqx.Module):
    """The interface of all models: layered models, graphs, and models that make or wrap one.

    `hint` tells users what to do if a function refuses a model of this class. `example` shows
    arguments of `init`, if these are not just numbers of units. `conditional` says whether its data
    are pairs of features and visible units.
    """

    hint: ClassVar[str] = ""
    example: ClassVar[str] = ""
    conditional: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raises an error that says what to write if numbers of units are given."""
        given = [*args, *kwargs.values()]
        if given and all(map(_are_numbers, given)) and hasattr(cls, "init"):
            init: Any = cls.init  # pyright: ignore
            wanted = inspect.signature(init).parameters.values()
            sizes = [p.name for p in wanted if p.kind is not p.KEYWORD_ONLY]
            named = dict(zip(sizes, args, strict=False)) | kwargs | {"key": 0}
            text = cls.example or ", ".join(f"{k}={x}" for k, x in named.items())
            raise TypeError(
                f"`{cls.__name__}` takes arrays of parameters, got numbers: write"
                f" `{cls.__name__}.init({text})`."
            )
        return super().__new__(cls)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raises an error that says what to write for methods that other libraries have."""
            hint = f": write `{_GUESSES[name]}`" if name in _GUESSES else ""
            raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`{hint}.")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the biases: `()` for a single model."""
        return ()

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""

    def check(self, batch: Batch, name: str = "batch") -> None:
        """Raises an error if a batch does not fit this model. Values are checked if known."""
        self.observe(batch, name)

    @abc.abstractmethod
    def observe(self, batch: Batch, name: str = "batch") -> tuple["AbstractModel", PyTree, PyTree]:
        """Checks a batch of data and splits it into its parts.

        **Arguments:**

        - `batch`: as [`ebmlearn.fit`][] takes it.
        - `name`: the name of the argument, for errors.

        **Returns:**

        The model given the features of the batch; the visible states in their internal form; and
        booleans for the observed ones, or None if all are observed.
        """

    def project(self: Model) -> Model:
        """The model with its parameters mapped to allowed ones, for use after an update: couplings
        inside a layer are made symmetric and zero on the diagonal. It returns the model itself if
        any numbers are allowed.
        """
        return with_inside(self, symmetrised)

    def trained(self: Model) -> Model:
        """A boolean in the place of each array: whether it is trained."""
        return jax.tree.map(lambda _: True, self)

    @abc.abstractmethod
    def tempered(self: Model, beta: float | Float[Array, ""]) -> Model:
        """The model of $p(x)^\\beta$."""

    def inside(self) -> tuple[PyTree, ...]:
        """The parameters that are symmetric matrices, which hold each edge twice."""
        return ()

    def decayed(self: Model) -> Model:
        """The parameters that weight decay shrinks, all weights, and zeros for all others, such as
        the diagonals of couplings inside a group.
        """
        if getattr(self, "turns", None) is not None:
            self._no_penalty("weight_decay")
        return matrices_of(self)

    def uncentred(self: Model, offsets: PyTree, batch: Batch | None = None) -> Model:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units, `offsets` being the $\\mu$ of all units.
        """
        return self._no_penalty("centred")

    def as_batch(self, batch: Batch) -> PyTree:
        """A batch as arrays only, so that compiled code keeps nothing else alive."""
        return batch

    @abc.abstractmethod
    def problem(self, evidence: Evidence, observed: Observed) -> AbstractProblem:
        """The model with checked evidence, on which inferences work."""

    def given_features(self, features: AnyArray | None) -> "AbstractModel":
        """The model given its features; the model itself if it has none."""
        if features is not None:
            kind = _checks.article(type(self).__name__)
            raise ValueError(f"`features` must be None for {kind}, got an array.")
        return self

    def bare(self) -> "AbstractModel":
        """The model of which messages are sent: without its features, if it has any."""
        return self

    def _no_penalty(self, name: str) -> NoReturn:
        raise ValueError(
            f"`{name}` must not be set for {_checks.article(type(self).__name__)}, whose parameters"
            " are of many kinds: use `optax.add_decayed_weights` with a mask."
        )

    def by_entries(self: Model) -> Model:
        """A gradient of a learner, in which that of an edge inside a layer stands whole at both its
        places, by the entries of the matrix: half at each. This is what can be pulled back.
        """
        return with_inside(self, lambda x: x - without_diagonal(x) / 2)

    def by_edges(self: Model) -> Model:
        """The reverse of `by_entries`."""
        return with_inside(self, lambda x: x + without_diagonal(x))


def _are_numbers(x: Any) -> bool:
    """Whether this is a number, or some numbers of units, and not an array or its nested lists."""
    if isinstance(x, (tuple, list)):
        return bool(x) and all(type(n) is int for n in x)
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def matrices_of(model: Model) -> Model:
    """A model with its matrices alone, these without diagonals if they are symmetric."""
    out = jax.tree.map(lambda x: x if x.ndim == 2 else jnp.zeros_like(x), model)
    return with_inside(out, without_diagonal)


def only_trained(model: Model) -> Model:
    """The model, of which no gradient reaches what is not trained."""
    trained = model.trained()
    if all(jax.tree.leaves(trained)):
        return model
    return jax.tree.map(
        lambda x, learned: x if learned else jax.lax.stop_gradient(x), model, trained
    )


def with_inside(model: Model, change: Callable[[Array], Array]) -> Model:
    """The model with its symmetric matrices changed."""
    # `tree_at` calls `inside` on a model of placeholders: its annotation says no more than PyTree.
    found = model.inside()
    return eqx.tree_at(lambda m: m.inside(), model, tuple(map(change, found))) if found else model


class AbstractPlainModel(AbstractModel):
    """Groups of units joined by factors, without features:

    $E(x) = \\sum_g E_0(x_g) - \\sum_g b_g \\cdot x_g + \\sum_f E_f(x)$.

    A subclass says what it consists of: the `names` and the units of its groups (`layers`), their
    biases (`unary`), its `factors` and the way back from these (`remade`). All else follows.

    States of all units, as they are inside, are a list with an array `[rows, width]` for each
    group. What data tell is a list of such arrays, None for groups that are hidden, with booleans
    `[rows, size]` for those that are observed, None for a group of which all are.

    - `grouped`: whether users name groups in dictionaries, and any group may be hidden; else data
      are arrays of the groups that are not named `hidden`.
    - `exact`: whether the energy is linear in the parameters and in the state of each unit. Fields
      of other models say what a change adds to the log-potential only to first order.
    """

    grouped: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the groups: `visible` and `hidden`, or `x`."""

    @property
    @abc.abstractmethod
    def layers(self) -> Kinds:
        """The units of each group."""

    @abc.abstractmethod
    def unary(self) -> Arrays:
        """The biases of each group, one number for each of its internal states."""

    @abc.abstractmethod
    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        """What joins the units: their energies add up to that of the model without its biases and
        the units' own energies. To be maximised over, rather than summed, quantised units have no
        weights.
        """

    @abc.abstractmethod
    def remade(self: Plain, layers: Kinds, parameters: Arrays, unary: Arrays) -> Plain:
        """The model with other units of the same kinds, other `parameters` of its factors and
        other biases.
        """

    def by_factor(self, values: tuple[PyTree, ...]) -> PyTree:
        """Names the values that belong to the parameters of factors: a tuple by default."""
        return tuple(values)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each group, as users see it."""
        return tuple((units.size,) for units in self.layers)

    @property
    def turns(self) -> AbstractTurns | None:
        """How units are drawn that take turns; None for a model whose groups are drawn one after
        the other, each by its field.
        """
        return None

    def named(self, values: Sequence[PyTree]) -> PyTree:
        """Names the values of groups."""
        return self.variables.named(values)

    def places(self, data: Mapping[Any, Any], name: str, soft: bool) -> dict[int, Any]:
        """What a dictionary says of groups, by the number of the group: states, or likelihoods of
        states if `soft`.
        """
        return {self.variables.place(group, f"`{name}`"): x for group, x in data.items()}

    @property
    def variables(self) -> Variables:
        """The names, the units and the shapes of its groups."""
        return Variables(self.names, self.layers, self.shapes, self.grouped)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the biases: `()` for a single model."""
        return np.broadcast_shapes(*(bias.shape[:-1] for bias in type(self).unary(self)))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""
        return type(self).unary(self)[0].dtype

    @property
    def finite(self) -> bool:
        """Whether all units have finitely many states."""
        return all(layer.finite for layer in self.layers)

    @property
    def numbered(self) -> bool:
        """Whether all units have a few states that can be listed."""
        return all(layer.numbered for layer in self.layers)

    def observe(
        self, batch: Batch, name: str = "batch"
    ) -> tuple["AbstractPlainModel", Told, Masks]:
        """Checks a batch of data and splits it into its parts: see `AbstractModel.observe`."""
        if self.batch_shape != ():
            raise ValueError(
                "`model` must be a single model to be trained, got biases with batch axes of shape"
                f" {self.batch_shape}: train the CRBM that they come from."
            )
        return self, *told_by(self, batch, name)

    def as_batch(self, batch: Batch) -> PyTree:
        """Arrays alone: one of all states, where groups are named, else the batch with a mask of
        missing values if there are any.
        """
        return batch_of(self, batch)

    def problem(self, evidence: Evidence, observed: Observed) -> Problem:
        """The model with evidence, checked. NaN is a unit that is not observed."""
        if evidence is None and observed is None:
            return Problem(self)
        return Problem(self, evidence_of(self, evidence, observed))

    def with_unary(self: Plain, unary: Arrays) -> Plain:
        """The model with other biases, as `unary` gives them."""
        return self.remade(self.layers, parameters_of(self.factors()), tuple(unary))

    def tempered(self: Plain, beta: float | Float[Array, ""]) -> Plain:
        """The model of $p(x)^\\beta$, for a positive $\\beta$ where units are real."""
        if not self.finite:
            _checks.number("beta", beta, 0, float("inf"), "(0, inf)")
        beta = jnp.asarray(beta, self.dtype)
        return self.remade(
            tuple(layer.tempered(beta) for layer in self.layers),
            parameters_of([factor.tempered(beta) for factor in self.factors()]),
            tuple(scaled_potentials(bias, beta) for bias in self.unary()),
        )

    def field(self, layers: States, group: int, inside: bool = True) -> Float[Array, "rows _"]:
        """The field of a group: its biases and what all other units send, with or without those of
        the group itself. For a small change of a state, it is what that adds to the log-potential.
        """
        name, states = self.names[group], self.variables.states(layers)
        out = jnp.broadcast_to(self.unary()[group], layers[group].shape)
        for factor in self.factors():
            if name in factor.groups and (inside or not factor.is_inside(name)):
                out = out + jnp.broadcast_to(factor.given(states, name), out.shape)
        return out

    def energies(self, layers: States) -> Float[Array, " rows"]:
        """The energy of internal states of all groups."""
        return without(self, (), layers)

    def encode(self, states: PyTree) -> list[Float[Array, "... _"]]:
        """The states of chains, by name, as they are inside."""
        pairs = zip(self.layers, self.variables.parts(states), strict=True)
        return [units.encode(x, self.dtype) for units, x in pairs]

    def decode(self, layers: Sequence[Float[Array, "... _"]]) -> PyTree:
        """The reverse of `encode`."""
        pairs = zip(self.layers, layers, strict=True)
        return self.variables.named([u.decode(x) for u, x in pairs])

    def uncentred(self: Plain, offsets: PyTree, batch: Batch | None = None) -> Plain:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units: biases less what factors send from the offsets $\\mu$.
        """
        if self.turns is not None:
            return self._no_penalty("centred")
        biases, means = list(self.unary()), jax.tree.leaves(offsets)
        sent = self.variables.states(means)
        for k, name in enumerate(self.names):
            for factor in self.factors():
                if name in factor.groups:
                    own = jnp.broadcast_to(factor.given(sent, name), biases[k].shape)
                    biases[k] = biases[k] - own
        return self.with_unary(tuple(biases))


def fields_of(model: AbstractPlainModel, layers: States) -> list[Float[Array, "rows _"]]:
    """The field of each group."""
    return [model.field(layers, k) for k in range(len(layers))]


def parameters_of(factors: Sequence[AbstractFactor]) -> Arrays:
    """The parameters of factors, one after the other."""
    return tuple(x for factor in factors for x in factor.parameters)


def scaled(model: Plain, weights: float, biases: float) -> Plain:
    """The model with its weights and its biases times these numbers."""
    parameters = tuple(weights * w for w in parameters_of(model.factors()))
    return model.remade(model.layers, parameters, tuple(biases * b for b in model.unary()))


def shifted(model: Plain, offset: float) -> Plain:
    """The model whose energy is, up to a constant, this one's with all units less a number in
    products of two.
    """
    with jax.default_matmul_precision("highest"):
        return model.uncentred([jnp.full(u.width, offset, model.dtype) for u in model.layers])


def from_spins(spins: Plain) -> Plain:
    """The model on units 0 and 1 whose energy is, up to a constant, that of `spins` on units ±1."""
    return shifted(scaled(spins, 4.0, 2.0), 0.5)


def to_spins(model: Plain) -> Plain:
    """The reverse of `from_spins`."""
    return scaled(shifted(model, -0.5), 1 / 4, 1 / 2)


def batched(model: Plain, shape: tuple[int, ...]) -> Plain:
    """The model with an instance for each row of a batch of this shape, along one axis; itself if
    it is a single one.
    """
    if model.batch_shape == ():
        return model
    size = math.prod(shape)
    biases = [
        b if b.ndim == 1 else jnp.broadcast_to(b, (*shape, b.shape[-1])).reshape(size, -1)
        for b in model.unary()
    ]
    return model.with_unary(tuple(biases))


def _rows(model: Plain, parts: Sequence[Any]) -> tuple[Plain, list[Array], tuple[int, ...]]:
    """The model and states of its groups with an instance a row, and the batch shape, which the
    leading axes broadcast to. Groups of which no states are given have zeros.
    """
    known = [
        None if x is None else states(name, x, units.width, model.dtype)
        for name, units, x in zip(model.names, model.layers, parts, strict=True)
    ]
    named = zip(model.names, known, strict=True)
    shapes = {name: x.shape[:-1] for name, x in named if x is not None}
    shape = _checks.broadcastable(**shapes, model=model.batch_shape)
    size, rows = math.prod(shape), []
    for units, x in zip(model.layers, known, strict=True):
        x = jnp.zeros(units.width, model.dtype) if x is None else x
        rows.append(jnp.broadcast_to(x, (*shape, units.width)).reshape(size, units.width))
    return batched(model, shape), rows, shape


def energy_of(model: AbstractPlainModel, *parts: Any) -> Float[Array, "*batch"]:
    """The energy of states of all groups, whose leading axes broadcast. Groups of which none are
    given are summed out: they must be independent given the others.
    """
    model, rows, shape = _rows(model, parts)
    summed = [k for k, x in enumerate(parts) if x is None]
    return without(model, summed, rows).reshape(shape)


def field_of(model: AbstractPlainModel, group: int, *parts: Any) -> Float[Array, "*batch _"]:
    """The field of one group in states of the others, whose leading axes broadcast."""
    model, rows, shape = _rows(model, parts)
    return model.field(rows, group).reshape(*shape, model.layers[group].width)


def families(model: AbstractModel) -> tuple[str, ...]:
    """The families of the units of a model, each once; none of a model that has no units itself,
    such as a CRBM without its features.
    """
    own = model.layers if isinstance(model, AbstractPlainModel) else ()
    return tuple(dict.fromkeys(units.family for units in own))


def is_binary(model: AbstractModel) -> bool:
    """Whether all units are binary and drawn by their fields: in layers that weights join."""
    return families(model) == ("binary",) and model.turns is None  # pyright: ignore


def is_nonnegative(model: AbstractModel) -> bool:
    """Whether it is one group of nonnegative units."""
    return families(model) == ("nonnegative",) and len(model.layers) == 1  # pyright: ignore


class Refused(TypeError):
    """A function does not take a model of this class, or with these units."""


def require_model(model: object) -> AbstractModel:
    """The model, or `TypeError` if this is none."""
    if not isinstance(model, AbstractModel):
        hint = ": write `fitted.model`" if hasattr(model, "model") else ""
        got = _checks.describe(model)
        raise TypeError(f"`model` must be a model such as an RBM, got {got}{hint}.")
    return model


def require_plain(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of groups of units."""
    found = require_model(model)
    if not isinstance(found, AbstractPlainModel):
        refuse(found, f"be one of layers of units, or a graph, for {what}")
    return found


def require_layers(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of layers."""
    found = require_model(model)
    if not isinstance(found, AbstractPlainModel) or found.grouped:
        refuse(found, f"be one of layers of units for {what}")
    return found


def require_fields(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of layers, each of which is in a field."""
    found = require_model(model)
    if not isinstance(found, AbstractPlainModel) or found.turns is not None:
        refuse(found, f"be one of layers of units joined by weights for {what}")
    return found


def require_binary(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless it is one of layers of binary units."""
    found = require_model(model)
    if not isinstance(found, AbstractPlainModel) or not is_binary(found):
        refuse(found, f"be of a kind that {what} takes, layers of binary units")
    return found


def _reached(model: Plain, what: str, reason: str | None) -> Plain:
    """The model, or `TypeError` if there is a reason why chains do not reach all of it."""
    if reason is not None:
        refuse(model, f"let {what} reach all configurations", reason)
    return model


def require_chains(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless chains reach all its configurations."""
    found = require_plain(model, what)
    return _reached(found, what, None if found.turns is None else found.turns.no_chains())


def require_numbered(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless chains that follow fields reach all its configurations."""
    found = require_plain(model, what)
    if not found.numbered:
        refuse(found, f"have binary or categorical units for {what}")
    return _reached(found, what, None if found.turns is None else found.turns.no_moves())


def require_discrete(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless its units are binary, or it is a graph of variables."""
    found = require_plain(model, what)
    if not found.grouped and not is_binary(found):
        refuse(found, f"have binary units, or be a graph, for {what}")
    return found


def require_possible(model: object, what: str) -> AbstractPlainModel:
    """The model, or `TypeError` unless all configurations of its units are possible."""
    found = require_plain(model, what)
    if found.turns is not None and found.turns.no_moves() is not None:
        reason = "some of its factors exclude configurations; take `BP` or `Exact`"
        refuse(found, f"let all configurations be possible for {what}", reason)
    return found


def require_single(model: AbstractModel) -> None:
    """Raises `ValueError` if a model has batch axes."""
    if model.batch_shape != ():
        raise ValueError(
            f"`model` must be a single model, got a batch of shape {model.batch_shape}."
        )


def refuse(model: AbstractModel, wanted: str, hint: str | None = None) -> NoReturn:
    """Raises an error for a model that is not taken, and says why or what to do."""
    hint = model.hint if hint is None else hint
    hint = f": {hint}" if hint else ""
    own = families(model)
    units = f" of {' and '.join(own)} units" if own else ""
    raise Refused(
        f"`model` must {wanted}, got {_checks.article(type(model).__name__)}{units}{hint}."
    )
