import abc
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NoReturn, TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Num, PRNGKeyArray, PyTree, Shaped

from .. import _checks
from .._types import AnyArray, Batch, Evidence, Observed
from ..units import _random, AbstractUnits
from ._alone import by_frequency, by_normal
from ._block import Block
from ._chains import chains
from ._names import by_layer, HIDDEN, named, TUPLES
from ._problem import (
    AbstractProblem,
    apart,
    check_inside,
    marked,
    observed_evidence,
    Partial,
    Problem,
)
from ._statistics import Statistics


Model = TypeVar("Model", bound="AbstractModel")
Plain = TypeVar("Plain", bound="AbstractPlainModel")
Named = TypeVar("Named", bound="AbstractNamedModel")
Layered = TypeVar("Layered", bound="AbstractLayeredModel")
Result = TypeVar("Result")
States = Sequence[Float[Array, "rows _"]]
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
# How far evidence moves log-odds: of 0 and of 1, one number for both, or not at all.
Strength = float | tuple[float, float] | None


class AbstractModel(eqx.Module):
    """The interface of all models: layered models, graphs, and models that make or wrap one.

    `hint` tells users what to do if a function refuses a model of this class. `example` shows
    arguments of `init`, if these are not just numbers of units.
    """

    hint: ClassVar[str] = ""
    example: ClassVar[str] = ""

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
    @abc.abstractmethod
    def kind(self) -> str:
        """The kind of the units in a word or two; inferences list the kinds that they take."""

    @property
    @abc.abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the biases: `()` for a single model."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""

    @abc.abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of weights, each between two layers or inside one."""

    @abc.abstractmethod
    def check(self, batch: Batch, name: str = "batch") -> None:
        """Raises an error if a batch does not fit this model. Values are checked if known."""

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

    @abc.abstractmethod
    def project(self: Model) -> Model:
        """The model with its parameters mapped to allowed ones, for use after an update. It returns
        the model itself if any numbers are allowed.
        """

    @abc.abstractmethod
    def trained(self: Model) -> Model:
        """A boolean in the place of each array: whether it is trained."""

    @abc.abstractmethod
    def tempered(self: Model, beta: float | Float[Array, ""]) -> Model:
        """The model of $p(x)^\\beta$."""

    @abc.abstractmethod
    def inside(self) -> tuple[PyTree, ...]:
        """The parameters that are symmetric matrices, which hold each edge twice."""

    @abc.abstractmethod
    def decayed(self: Model) -> Model:
        """The parameters that weight decay shrinks, and zeros for all others."""

    @abc.abstractmethod
    def uncentred(self: Model, offsets: PyTree, batch: Batch) -> Model:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units, `offsets` being the $\\mu$ of all units.
        """

    @abc.abstractmethod
    def as_batch(self, batch: Batch) -> PyTree:
        """A batch as arrays only, so that compiled code keeps nothing else alive."""

    @abc.abstractmethod
    def problem(self, evidence: Evidence, observed: Observed) -> AbstractProblem:
        """The model with checked evidence, on which inferences work."""

    @property
    @abc.abstractmethod
    def query_defaults(self) -> tuple[float, Strength] | None:
        """The initial scale and strength of a [`ebmlearn.QueryModel`][] of this model; None if
        there can be none.
        """

    @abc.abstractmethod
    def configuration(self, states: PyTree) -> PyTree:
        """The states of chains, with the names that users see."""

    @abc.abstractmethod
    def given_features(self, features: AnyArray | None) -> "AbstractModel":
        """The model given its features; the model itself if it has none."""

    @abc.abstractmethod
    def bare(self) -> "AbstractModel":
        """The model without its features; the model itself if it has none."""

    def by_entries(self: Model) -> Model:
        """A gradient of a learner, in which that of an edge inside a layer stands whole at both its
        places, by the entries of the matrix: half at each. This is what can be pulled back.
        """
        return with_inside(self, lambda x: x - without_diagonal(x) / 2)

    def by_edges(self: Model) -> Model:
        """The reverse of `by_entries`."""
        return with_inside(self, lambda x: x + without_diagonal(x))


def _are_numbers(x: Any) -> bool:
    """Whether this is a number, or numbers, and not an array."""
    if isinstance(x, (tuple, list)):
        return bool(x) and all(map(_are_numbers, x))
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def matrices_of(model: Model) -> Model:
    """A model with its matrices alone, these without diagonals if they are symmetric."""
    out = jax.tree.map(lambda x: x if x.ndim == 2 else jnp.zeros_like(x), model)
    return with_inside(out, without_diagonal)


def with_inside(model: Model, change: Callable[[Array], Array]) -> Model:
    """The model with its symmetric matrices changed."""
    # `tree_at` calls `inside` on a model of placeholders: its annotation says no more than PyTree.
    found = model.inside()
    return eqx.tree_at(lambda m: m.inside(), model, tuple(map(change, found))) if found else model


class AbstractPlainModel(AbstractModel):
    """The interface of models without features, or conditioned on them: layered models and graphs.

    `seen` is what a batch tells, and `observed` which of it, as `observe` gives them.

    For samplers, states of all units, as they are inside, are a list with an array `[rows, width]`
    for each layer. A model that is `layerwise` says what `field` a layer is in, so that a layer can
    be drawn at once; of others, units are drawn in turns. Fields that are `exact` say what a change
    of one unit adds to the log-potential; others say it to first order.
    """

    layerwise: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def layers(self) -> tuple[AbstractUnits, ...]:
        """The units of each layer, or the variables of each group."""

    @property
    @abc.abstractmethod
    def num_asked(self) -> int:
        """The number of units that queries are about."""

    @property
    @abc.abstractmethod
    def query_defaults(self) -> tuple[float, Strength] | None:
        """The initial scale and strength of a [`ebmlearn.QueryModel`][] of this model; None if
        there can be none.
        """

    @property
    @abc.abstractmethod
    def is_seen(self) -> bool:
        """Whether nothing is hidden."""

    @abc.abstractmethod
    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        """The biases of each layer; for a graph, the scores of all states."""

    @abc.abstractmethod
    def units(self, layers: Sequence[PyTree]) -> PyTree:
        """Names the values of layers or of groups of variables."""

    @abc.abstractmethod
    def factors(self, blocks: tuple[PyTree, ...]) -> PyTree:
        """Names the values of blocks, or of factors."""

    @abc.abstractmethod
    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        """The mean energy under expected statistics. Its gradient with the statistics held fixed is
        what learning needs.
        """

    @abc.abstractmethod
    def holding(self, seen: PyTree, observed: PyTree) -> AbstractProblem:
        """The problem in which the observed states are fixed."""

    @abc.abstractmethod
    def if_complete(
        self,
        seen: PyTree,
        observed: PyTree,
        formula: Callable[[], Result],
        infer: Callable[[], Result],
    ) -> Result:
        """The result of `formula` if nothing must be inferred, else that of `infer`."""

    @abc.abstractmethod
    def complete(self, seen: PyTree, mode: bool = False) -> Statistics:
        """The statistics given the visible states, by formula; `mode` takes the likeliest rest."""

    @abc.abstractmethod
    def complete_energies(self, seen: PyTree) -> Float[Array, " rows"]:
        """Minus the log-potential of the visible states, with the rest summed out, by formula."""

    @abc.abstractmethod
    def sampled_statistics(self, units: PyTree, means: bool) -> Statistics:
        """The statistics of samples; with `means`, hidden units are summed out if possible."""

    @abc.abstractmethod
    def held_states(self, seen: PyTree, observed: PyTree) -> tuple[PyTree, PyTree]:
        """States for samplers to start from, and booleans for those that the data fix."""

    @abc.abstractmethod
    def chains(
        self, num_chains: int, key: PRNGKeyArray, start: PyTree, clamped: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Checked states for chains to start from, by name, and which are fixed, or None."""

    @abc.abstractmethod
    def chains_of(self, units: PyTree, clamped: PyTree) -> tuple[PyTree, PyTree]:
        """The same for states that have been checked."""

    @abc.abstractmethod
    def from_view(self, states: PyTree) -> PyTree:
        """Converts states that messages decode to states of samplers."""

    @abc.abstractmethod
    def perturbation(self, number: int, key: PRNGKeyArray) -> tuple[Float[Array, "rows _"], ...]:
        """Noise for every unary term, for perturbed maxima."""

    @abc.abstractmethod
    def noise_centre(self, noise: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """The constant that makes the noise of the states of a unit symmetric."""

    @abc.abstractmethod
    def chosen_noise(
        self, number: int, share: float | Float[Array, ""], key: PRNGKeyArray
    ) -> tuple[Bool[Array, "rows _"], ...]:
        """A random share of the units, as booleans in the places of `perturbation`."""

    @property
    @abc.abstractmethod
    def finite(self) -> bool:
        """Whether all units have finitely many states."""

    @abc.abstractmethod
    def batched(self: Plain, shape: tuple[int, ...]) -> Plain:
        """The model with an instance for each row of a batch of this shape, along one axis; itself
        if it is a single one.
        """

    @abc.abstractmethod
    def fields(self, layers: States) -> list[Float[Array, "rows _"]]:
        """What all other units send to those of each layer: for a small change of a state, what it
        adds to the log-potential.
        """

    @abc.abstractmethod
    def energies(self, layers: States) -> Float[Array, " rows"]:
        """The energy of states of all layers, as they are inside."""

    @abc.abstractmethod
    def marginal_energies(self, layers: States) -> Float[Array, " rows"]:
        """Minus the log-potential of states, the layers `summed` being summed out."""

    @abc.abstractmethod
    def between(self: Plain, base: tuple[Float[Array, " _"], ...], beta: Float[Array, ""]) -> Plain:
        """The model of $p_0^{1-\\beta} p^\\beta$, where the units of $p_0$ are independent and in
        the fields `base`.
        """

    @abc.abstractmethod
    def independent(self: Plain, seen: PyTree, observed: PyTree) -> Plain:
        """A model of the same shape that is easy to sample, for a trajectory to start from: its
        units are independent and those that data tell have their means, if parameters say so.
        """

    @abc.abstractmethod
    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """Log Z of independent units in the fields `base`: that of `between` at $\\beta = 0$."""

    @abc.abstractmethod
    def encode(self, units: PyTree) -> list[Float[Array, "... _"]]:
        """States of chains as they are inside, by number of their layer."""

    @abc.abstractmethod
    def decode(self, layers: Sequence[Float[Array, "... _"]]) -> PyTree:
        """The reverse of `encode`."""

    @abc.abstractmethod
    def unnamed(self, configuration: PyTree) -> PyTree:
        """The reverse of `configuration`: what samples are, as chains take their start."""

    @abc.abstractmethod
    def masks(self, clamped: PyTree) -> Sequence[Bool[Array, "rows _"] | None] | None:
        """Which units of each layer are held, from what chains keep of it; None if none are."""

    @abc.abstractmethod
    def with_cost(self, seen: PyTree, cost: Callable[..., AnyArray]) -> AbstractProblem:
        """The problem whose log-potential is higher by what visible units cost that differ from
        those that are seen; `cost` is a function of states and the truth.
        """

    @abc.abstractmethod
    def rival(self, units: PyTree, seen: PyTree) -> PyTree:
        """The visible states that an inference decided for, from the means of its statistics, in
        the form of `seen`.
        """

    @abc.abstractmethod
    def cost_of(
        self, rival: PyTree, seen: PyTree, cost: Callable[..., AnyArray]
    ) -> Float[AnyArray, " rows"]:
        """What visible states cost where those of `seen` are true."""

    @abc.abstractmethod
    def told(self, num_chains: int, start: PyTree, clamped: PyTree) -> PyTree:
        """Which units keep their start while others are drawn from what is possible; None if every
        start is possible. Raises `ValueError` if a unit is held that never moves by itself.
        """

    @abc.abstractmethod
    def near(self, units: PyTree, key: PRNGKeyArray) -> list[Float[Array, "rows _"]]:
        """States as they are inside for chains that start from means given data, as `complete` and
        inferences give them.
        """

    @abc.abstractmethod
    def has_gaps(self, observed: PyTree) -> bool:
        """Whether data lack values that they should have."""

    @abc.abstractmethod
    def no_chains(self) -> str | None:
        """Why chains that change a unit at a time would not reach all configurations; None if they
        do.
        """

    @abc.abstractmethod
    def no_moves(self) -> str | None:
        """The same of chains that follow fields."""

    @property
    def numbered(self) -> bool:
        """Whether all units have a few states that can be listed."""
        return all(layer.numbered for layer in self.layers)

    @abc.abstractmethod
    def asked_rows(self, data: Batch, name: str) -> Array:
        """Checked rows of data that queries are about."""

    @abc.abstractmethod
    def told_in(self, rows: Array) -> Bool[Array, "..."]:
        """Which values of rows are not missing."""

    @abc.abstractmethod
    def row_problem(self, rows: Array, observed: Array) -> AbstractProblem:
        """The model with evidence that has been checked."""

    @abc.abstractmethod
    def surprise_alone(self, train: Array, rows: Array) -> Float[Array, "rows units"]:
        """Minus the log-probability of each value of rows, in nats, if units were independent and
        distributed as in the rows of `train`. The number for a missing value means nothing.
        """

    @abc.abstractmethod
    def places(self, group: Hashable, name: str) -> Int[np.ndarray, "..."]:
        """The indices of the variables of a group of a graph."""

    @abc.abstractmethod
    def centred_form(self: Model) -> Model:
        """The parameters for units ±1, if the units are binary."""

    @abc.abstractmethod
    def plain_form(self: Model) -> Model:
        """The reverse of `centred_form`."""


class AbstractFree(AbstractModel):
    """A model whose parameters may be any numbers, and are all trained."""

    def project(self: Model) -> Model:
        """The model itself: its parameters may be any numbers."""
        return self

    def trained(self: Model) -> Model:
        """True in the place of each array."""
        return jax.tree.map(lambda _: True, self)

    def inside(self) -> tuple[PyTree, ...]:
        """None."""
        return ()


class AbstractSymmetric(AbstractModel):
    """A model with couplings that must be symmetric and zero on the diagonal."""

    def project(self: Model) -> Model:
        """The model with its couplings made symmetric and zero on the diagonal, for use after an
        update that may have broken either.
        """
        return with_inside(self, symmetrised)

    def trained(self: Model) -> Model:
        """True in the place of each array."""
        return jax.tree.map(lambda _: True, self)


class AbstractNamedModel(AbstractPlainModel):
    """Layers of units that have names, whatever their energy is. Layers named `hidden`, or
    `hidden_1`, `hidden_2` and so on, are hidden: data tell all others.
    """

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the layers: `visible` and `hidden`, or `x`."""

    @property
    @abc.abstractmethod
    def summed(self) -> tuple[int, ...]:
        """Layers other than the first that are independent of each other given the rest, so that
        they can be summed out.
        """

    @property
    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether hidden units are independent given what data tell."""

    def units(self, layers: Sequence[PyTree]) -> PyTree:
        """Names the layers: [`ebmlearn.Layers`][], [`ebmlearn.Units`][], or a tuple like them."""
        usual = TUPLES.get(self.names)
        return named(self.names, layers) if usual is None else usual(*layers)

    def encode(self, units: PyTree) -> list[Float[Array, "... _"]]:
        """Converts states of all units, by name, to a list of internal states of layers."""
        pairs = zip(self.layers, jax.tree.leaves(units), strict=True)
        return [layer.encode(x, self.dtype) for layer, x in pairs]

    def decode(self, layers: Sequence[Float[Array, "... _"]]) -> PyTree:
        """The reverse of `encode`."""
        return self.units([u.decode(x) for u, x in zip(self.layers, layers, strict=True)])

    def masks(self, clamped: PyTree) -> Sequence[Bool[Array, "rows _"] | None] | None:
        """Which units of each layer are held, from what chains keep of it; None if none are."""
        if clamped is None:
            return None
        return jax.tree.leaves(clamped, is_leaf=lambda x: x is None)

    def told(self, num_chains: int, start: PyTree, clamped: PyTree) -> None:
        """Nothing: every configuration is possible."""
        return

    def has_gaps(self, observed: PyTree) -> bool:
        """Whether values of data are missing."""
        return observed is not None

    def no_chains(self) -> str | None:
        """Nothing: every configuration is possible."""
        return

    def no_moves(self) -> str | None:
        """Nothing: every configuration is possible."""
        return

    def base_log_partition(self, base: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """The sum of the logarithms of the units' own normalisers."""
        pairs = zip(self.layers, base, strict=True)
        return jnp.stack([units.log_normaliser(bias) for units, bias in pairs]).sum()

    @property
    def finite(self) -> bool:
        """Whether all units have finitely many states."""
        return all(layer.finite for layer in self.layers)

    @property
    def seen(self) -> tuple[int, ...]:
        """The visible layers."""
        return tuple(k for k, name in enumerate(self.names) if not HIDDEN.fullmatch(name))

    def as_batch(self, batch: Batch) -> PyTree:
        """The batch, with a mask of missing values if there are any."""
        if isinstance(batch, (tuple, list)) and not isinstance(batch, Partial):
            return type(batch)(map(marked, batch))
        return marked(batch)

    def configuration(self, states: PyTree) -> PyTree:
        """The states themselves."""
        return states

    def unnamed(self, configuration: PyTree) -> PyTree:
        """States as they are."""
        return configuration

    def problem(self, evidence: Evidence, observed: Observed) -> Problem:
        """The model with evidence on its first layer, checked. NaN is a unit that is not
        observed.
        """
        return Problem(self, *observed_evidence(evidence, observed))

    def holding(
        self,
        seen: Sequence[Float[Array, "rows _"]],
        observed: Bool[Array, "rows _"] | None,
    ) -> Problem:
        """The problem in which all visible units that are not missing are fixed."""
        held = jnp.ones(seen[0].shape, bool) if observed is None else observed
        return Problem(self, seen[0], held, trusted=True)

    def given_features(self: Named, features: AnyArray | None) -> Named:
        """The model itself: it has no features."""
        no_features(self, features)
        return self

    def bare(self: Named) -> Named:
        """The model itself: it has no features."""
        return self

    @property
    def num_asked(self) -> int:
        """The number of units that queries are about."""
        return self.layers[0].size

    def places(self, group: Hashable, name: str) -> NoReturn:
        """Raises `TypeError`: there are no groups of variables."""
        named = repr(group) if isinstance(group, str) else type(group).__name__
        wanted = "not be given" if name == "groups" else "be booleans, one per unit,"
        raise TypeError(
            f"`{name}` must {wanted} for a model that is no graph, of type {type(self).__name__},"
            f" got the group {named}."
        )

    def asked_rows(self, data: Batch, name: str) -> Float[Array, "rows units"]:
        """Checked rows of data that queries are about: any evidence that inferences take."""
        units, (x, there) = self.layers[0], apart(data)
        x = array_of(name, x, "[rows, visible]")
        _checks.rank(name, x, 2, "[rows, visible]")
        _checks.trailing(name, x, (units.size,), "one value a unit")
        _checks.finite_rows(name, x)
        check_inside(name, x, units.evidence)
        x = jnp.asarray(x).astype(self.dtype)
        return x if there is None else jnp.where(there, x, jnp.full_like(x, jnp.nan))

    def told_in(self, rows: Float[Array, "rows units"]) -> Bool[Array, "rows units"]:
        """Which values of rows are not missing."""
        return ~jnp.isnan(rows)

    def row_problem(self, rows: Float[Array, "rows units"], observed: Array) -> Problem:
        """The model with evidence that has been checked."""
        return Problem(self, rows, observed, trusted=True)

    def chains(
        self, num_chains: int, key: PRNGKeyArray, start: PyTree, clamped: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Checked states for chains to start from, by name, and which are fixed, or None."""
        return chains(self, num_chains, key, start, clamped)

    def chains_of(self, units: PyTree, clamped: PyTree) -> tuple[PyTree, PyTree]:
        """The same for states that have been checked; missing ones become zeros."""
        states = by_layer("units", self.names, units)
        rows = next(x.shape[0] for x in states if x is not None)
        zeros = [u.decode(jnp.zeros((rows, u.width), self.dtype)) for u in self.layers]
        filled = [z if x is None else x for x, z in zip(states, zeros, strict=True)]
        return self.units(filled), clamped

    def from_view(self, states: Sequence[Float[Array, "rows _"]]) -> PyTree:
        """Converts states that messages decode to states of samplers."""
        return self.decode(states)

    @property
    def is_seen(self) -> bool:
        """Whether all layers are visible."""
        return len(self.seen) == len(self.names)

    def held_states(
        self,
        seen: Sequence[Float[Array, "rows _"]],
        observed: Bool[Array, "rows _"] | None,
    ) -> tuple[PyTree, PyTree]:
        """States for samplers to start from, and booleans for those that the data fix."""
        given = dict(zip(self.seen, seen, strict=True))
        states = [self.layers[k].decode(given[k]) if k in given else None for k in self._places]
        masks = [None if x is None else jnp.ones(x.shape, bool) for x in states]
        if observed is not None:
            masks[self.seen[0]] = observed
        return self.units(states), self.units(masks)

    @property
    def _places(self) -> range:
        return range(len(self.names))

    def observe(
        self, batch: Batch, name: str = "batch"
    ) -> tuple[
        "AbstractNamedModel",
        tuple[Float[Array, "rows _"], ...],
        Bool[Array, "rows _"] | None,
    ]:
        """Checks a batch of data. Returns the model itself, the states of all visible layers, and
        booleans for the first layer if some of its values are missing.
        """
        if self.batch_shape != ():
            raise ValueError(
                "`model` must be a single model to be trained, got biases with batch axes of shape"
                f" {self.batch_shape}: train the CRBM that they come from."
            )
        return self, *self._told(batch, name)

    def check(self, batch: Batch, name: str = "batch") -> None:
        """Raises an error if a batch does not fit this model. Values are checked if known."""
        self.observe(batch, name)

    def seen_states(self, batch: Batch, name: str) -> tuple[Float[Array, "rows _"], ...]:
        """The checked states of all visible layers, in their internal form."""
        states, observed = self._told(batch, name)
        if observed is not None:
            raise ValueError(f"`{name}` must hold no missing values here, got NaN.")
        return states

    def _told(
        self, batch: Batch, name: str
    ) -> tuple[tuple[Float[Array, "rows _"], ...], Bool[Array, "rows _"] | None]:
        """The checked states of all visible layers, in their internal form, and booleans for the
        first layer if some of its values are missing.
        """
        seen = self.seen
        several = isinstance(batch, (tuple, list)) and not isinstance(batch, Partial)
        parts: Any = batch if several else (batch,)
        if len(parts) != len(seen):
            what = " and ".join(f"`{self.names[k]}`" for k in seen)
            wanted = (
                f"{len(seen)} arrays, {what}," if len(seen) > 1 else "one array of visible units"
            )
            kind = type(self).__name__
            raise ValueError(f"`{name}` must be {wanted} for a {kind}, got {len(parts)}.")
        # Units that take no evidence must all be there.
        gaps = [self.layers[k].evidence is not None for k in seen]
        found = [apart(x) if gap else (x, None) for x, gap in zip(parts, gaps, strict=True)]
        out, (first, *others) = [], found
        for at, (k, (x, there)) in enumerate(zip(seen, [first, *others], strict=True)):
            label = f"{name}[{at}]" if len(seen) > 1 else name
            if there is not None and others:
                raise ValueError(
                    f"`{label}` must hold no missing values if there are labels, got NaN."
                )
            out.append(states_of(self.layers[k], label, x, self.dtype))
        rows = [x.shape[0] for x in out]
        if len(set(rows)) > 1:
            got = " and ".join(map(str, rows))
            raise ValueError(f"`{name}` must hold arrays with the same number of rows, got {got}.")
        return tuple(out), None if first[1] is None else jnp.asarray(first[1])

    def filled(self, seen: Sequence[Float[Array, "rows _"]]) -> list[Float[Array, "rows _"]]:
        """States of all layers, with zeros for hidden ones."""
        given = dict(zip(self.seen, seen, strict=True))
        shape = seen[0].shape[:-1]
        return [
            given[k] if k in given else jnp.zeros((*shape, units.width), self.dtype)
            for k, units in enumerate(self.layers)
        ]


class AbstractLayeredModel(AbstractNamedModel):
    """Layers of units, whose energy holds products of one or two units:

    $E(x) = \\sum_k E_0(x_k) - \\sum_k b_k \\cdot x_k - \\sum_{kl} x_k^\\top W_{kl} x_l$.

    Subclasses say what their layers, biases and blocks of weights are.
    """

    @abc.abstractmethod
    def remade(
        self: Layered,
        layers: tuple[AbstractUnits, ...],
        blocks: tuple[Float[Array, "_ _"], ...],
        unary: tuple[Float[Array, "... _"], ...],
    ) -> Layered:
        """The model with other units of the same kinds, other weights and other biases."""

    def with_unary(self: Layered, unary: tuple[Float[Array, "... _"], ...]) -> Layered:
        """The model with other biases, as `unary` gives them."""
        return self.remade(self.layers, tuple(b.weights for b in self.blocks()), tuple(unary))

    def tempered(self: Layered, beta: float | Float[Array, ""]) -> Layered:
        """The model of $p(x)^\\beta$, for a positive $\\beta$ where units are real."""
        if not self.finite:
            _checks.number("beta", beta, 0, float("inf"), "(0, inf)")
        beta = jnp.asarray(beta, self.dtype)
        return self.remade(
            tuple(layer.tempered(beta) for layer in self.layers),
            tuple(beta * block.weights for block in self.blocks()),
            tuple(beta * bias for bias in self.unary()),
        )

    def batched(self: Layered, shape: tuple[int, ...]) -> Layered:
        """The model with an instance for each row of a batch of this shape, along one axis; itself
        if it is a single one.
        """
        if self.batch_shape == ():
            return self
        size = math.prod(shape)
        biases = [
            b if b.ndim == 1 else jnp.broadcast_to(b, (*shape, b.shape[-1])).reshape(size, -1)
            for b in self.unary()
        ]
        return self.with_unary(tuple(biases))

    def uncentred(self: Layered, offsets: PyTree, batch: Batch | None = None) -> Layered:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units: biases less what the weights send from the offsets $\\mu$ of
        the units they join.
        """
        biases = list(self.unary())
        means = jax.tree.leaves(offsets)
        for first, second, weights, _ in self.blocks():
            ends = {first: weights @ means[second], second: means[first] @ weights}
            for layer, sent in ends.items():
                biases[layer] = biases[layer] - jnp.broadcast_to(sent, biases[layer].shape)
        return self.with_unary(tuple(biases))

    @property
    def kind(self) -> str:
        """`"binary"`, or else the families of all layers in order."""
        families = [layer.family for layer in self.layers]
        return families[0] if set(families) == {"binary"} else " ".join(families)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes of the biases: `()` for a single model."""
        return np.broadcast_shapes(*(bias.shape[:-1] for bias in type(self).unary(self)))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parameters."""
        return type(self).unary(self)[0].dtype

    @property
    def is_bipartite(self) -> bool:
        """Whether units of even layers are joined to units of odd layers only."""
        return all((block.first - block.second) % 2 for block in type(self).blocks(self))

    @property
    def summed(self) -> tuple[int, ...]:
        """Layers other than the first that are independent of each other given the rest, so that
        they can be summed out: the odd ones of a DBM.
        """
        joined = {frozenset((block.first, block.second)) for block in self.blocks()}
        out: list[int] = []
        for k in range(1, len(self.names)):
            if not any(frozenset((k, other)) in joined for other in (*out, k)):
                out.append(k)
        return tuple(out)

    @property
    def is_closed(self) -> bool:
        """Whether hidden units are independent given what data tell: each edge then ends there."""
        return all(b.first in self.seen or b.second in self.seen for b in self.blocks())

    def decayed(self: Layered) -> Layered:
        """What weight decay pulls on: all weights, without what lies on the diagonals of couplings
        inside a layer.
        """
        return matrices_of(self)

    def if_complete(
        self,
        seen: PyTree,
        observed: Bool[Array, "rows _"] | None,
        formula: Callable[[], Result],
        infer: Callable[[], Result],
    ) -> Result:
        """What `formula` gives where hidden units are independent given what is seen and nothing
        is missing, else what `infer` gives.
        """
        return formula() if self.is_closed and observed is None else infer()

    def complete(self, seen: Sequence[Float[Array, "rows _"]], mode: bool = False) -> Statistics:
        """The statistics given what is seen, by formula; or those of the most likely hidden
        units.
        """
        hidden = tuple(k for k in range(len(self.names)) if k not in self.seen)
        return self.conditional_statistics(self.filled(seen), hidden, mode=mode)

    def complete_energies(self, seen: Sequence[Float[Array, "rows _"]]) -> Float[Array, " rows"]:
        """Minus the log-potential of what is seen, hidden units summed out, by formula."""
        return self.marginal_energies(self.filled(seen))

    @property
    def query_defaults(self) -> tuple[float, Strength] | None:
        """Of a [`ebmlearn.QueryModel`][], where the scale of answers and the strength of evidence
        start; None if it can be of no such model.
        """
        return {"binary": (5.0, (1000.0, 9.21)), "gaussian binary": (1.0, None)}.get(self.kind)

    def surprise_alone(
        self, train: Float[Array, "_ units"], rows: Float[Array, "rows units"]
    ) -> Float[Array, "rows units"]:
        """By the frequencies of binary units, or the means and variances of Gaussian ones."""
        return {"binary": by_frequency, "gaussian binary": by_normal}[self.kind](train, rows)

    def centred_form(self: Layered) -> Layered:
        """Its parameters in the form of units ±1, in a model of the same class, if its units are
        binary.
        """
        if self.kind != "binary":
            return self
        offsets = [jnp.full_like(bias, -0.5) for bias in self.unary()]
        return times_weights(self.uncentred(offsets), 0.5)

    def plain_form(self: Layered) -> Layered:
        """The reverse of `centred_form`."""
        if self.kind != "binary":
            return self
        plain = times_weights(self, 2.0)
        return plain.uncentred([jnp.full_like(bias, 0.5) for bias in plain.unary()])

    def perturbation(self, number: int, key: PRNGKeyArray) -> tuple[Float[Array, "rows _"], ...]:
        """Noise for the log-odds of binary units, for perturbed maxima: logistic numbers, which
        are differences of the Gumbel numbers of both states.
        """
        keys = jax.random.split(key, len(self.names))
        return tuple(
            _random.logistics(own, (number, units.width), self.dtype)
            for units, own in zip(self.layers, keys, strict=True)
        )

    def noise_centre(self, noise: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
        """What makes the noise of both states of a binary unit symmetric: it has mean zero, and
        without it the perturbed maximum spreads less.
        """
        return jnp.stack([x.sum() for x in noise]).sum() / 2

    def chosen_noise(
        self, number: int, share: float | Float[Array, ""], key: PRNGKeyArray
    ) -> tuple[Bool[Array, "rows _"], ...]:
        """A share of the units, drawn at random, in the places of `perturbation`."""
        keys = jax.random.split(key, len(self.names))
        return tuple(
            jax.random.bernoulli(own, share, (number, units.width))
            for units, own in zip(self.layers, keys, strict=True)
        )

    def sampled_statistics(self, units: PyTree, means: bool) -> Statistics:
        """The statistics of samples; with `means`, layers that can be summed out are replaced by
        their means given the others.
        """
        return self.conditional_statistics(self.encode(units), self.summed if means else ())

    def field(self, layers: States, layer: int, inside: bool = True) -> Float[Array, "rows _"]:
        """The field of a layer: the biases and what all other units send, with or without the
        couplings inside the layer. States are in their internal form.
        """
        out = jnp.broadcast_to(self.unary()[layer], layers[layer].shape)
        for first, second, weights, _ in self.blocks():
            if second == layer and (inside or first != layer):
                out = out + layers[first] @ weights
            elif first == layer and second != layer:
                out = out + layers[second] @ weights.T
        return out

    def with_cost(self, seen: PyTree, cost: Callable[..., AnyArray]) -> Problem:
        """The model whose log-potential is higher by the cost of the visible units: for the Hamming
        loss, $b_i$ plus $1 - 2 v_i$ (Ping & Ihler 2017, eq. (7)).
        """
        (truth,) = seen
        extra = cost(jnp.ones_like(truth), truth) - cost(jnp.zeros_like(truth), truth)
        _checks.exact_shape("cost", extra, truth.shape, "one number a visible unit")
        bias = jnp.broadcast_to(self.unary()[0], truth.shape) + extra.astype(truth.dtype)
        return self.with_unary((bias, *self.unary()[1:])).problem(None, None)

    def rival(self, units: PyTree, seen: PyTree) -> tuple[Float[Array, "rows visible"]]:
        """Those of the first layer."""
        return (jax.tree.leaves(units)[0],)

    def cost_of(
        self, rival: PyTree, seen: PyTree, cost: Callable[..., AnyArray]
    ) -> Float[AnyArray, " rows"]:
        """The sum over the visible units."""
        return cost(rival[0], seen[0]).sum(-1)

    def near(self, units: PyTree, key: PRNGKeyArray) -> list[Float[Array, "rows _"]]:
        """The states that data tell. Of hidden layers, those that a sweep begins with need no
        states; the others are drawn.
        """
        layers = jax.tree.leaves(units)
        for k, own in enumerate(jax.random.split(key, len(layers))):
            if k not in self.seen and k not in self.summed:
                layers[k] = self.layers[k].sample(self.field(layers, k), own)
        return layers

    def fields(self, layers: States) -> list[Float[Array, "rows _"]]:
        """What all other units send to those of each layer, and their biases."""
        return [self.field(layers, k) for k in range(len(layers))]

    def between(
        self: Layered, base: tuple[Float[Array, " _"], ...], beta: Float[Array, ""]
    ) -> Layered:
        """The model of $p_0^{1-\\beta} p^\\beta$, where the units of $p_0$ are independent and in
        the fields `base`.
        """
        biases = [
            (1 - beta) * start + beta * end for start, end in zip(base, self.unary(), strict=True)
        ]
        return self.tempered(beta).with_unary(tuple(biases))

    def independent(
        self: Layered,
        seen: Sequence[Float[Array, "rows _"]],
        observed: Bool[Array, "rows _"] | None,
    ) -> Layered:
        """The model without weights whose visible units have the means of the data, to which two
        rows at the mean of units in no field are added.
        """
        biases = list(self.unary())
        for k, x in zip(self.seen, seen, strict=True):
            units = self.layers[k]
            there = jnp.ones(x.shape, bool)
            if observed is not None and k == self.seen[0]:
                there = jnp.repeat(observed, x.shape[-1] // units.size, axis=-1)
            total = jnp.where(there, x, jnp.zeros_like(x)).sum(0)
            rows = there.sum(0).astype(x.dtype)
            biases[k] = units.natural_of(total, rows)
        weights = tuple(jnp.zeros_like(block.weights) for block in self.blocks())
        return self.remade(self.layers, weights, tuple(biases))

    def energies(self, layers: States) -> Float[Array, " rows"]:
        """The energy of internal states of all layers."""
        out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
        for bias, x in zip(self.unary(), layers, strict=True):
            out = out - (jnp.broadcast_to(bias, x.shape) * x).sum(-1)
        for first, second, weights, _ in self.blocks():
            share = 0.5 if first == second else 1.0
            out = out - share * ((layers[first] @ weights) * layers[second]).sum(-1)
        return self._with_base(out, layers, range(len(layers)))

    def marginal_energies(
        self, layers: States, beta: Float[Array, "rows 1"] | None = None
    ) -> Float[Array, " rows"]:
        """Minus the log-potential of states, with the layers `summed` summed out; at inverse
        temperature `beta`, if given, which may differ from row to row.
        """
        out = jnp.zeros(layers[0].shape[0], layers[0].dtype)
        normalisers = jnp.zeros_like(out)
        summed = self.summed
        for k, x in enumerate(layers):
            if k in summed:
                units, field = self.layers[k], self.field(layers, k)
                if beta is not None:
                    units, field = units.tempered(beta), jnp.broadcast_to(beta, x.shape) * field
                normalisers = normalisers + units.log_normaliser(field)
            else:
                out = out - (jnp.broadcast_to(self.unary()[k], x.shape) * x).sum(-1)
        for first, second, weights, _ in self.blocks():
            if first not in summed and second not in summed:
                share = 0.5 if first == second else 1.0
                out = out - share * ((layers[first] @ weights) * layers[second]).sum(-1)
        out = self._with_base(out, layers, [k for k in range(len(layers)) if k not in summed])
        return (out if beta is None else beta[:, 0] * out) - normalisers

    def _with_base(self, out: Array, layers: States, which: Sequence[int]) -> Array:
        for k in which:
            if not self.layers[k].linear:
                out = out + self.layers[k].base_energy(layers[k])
        return out

    def conditional_statistics(
        self,
        layers: States,
        free: tuple[int, ...],
        weights: Float[Array, " rows"] | None = None,
        mode: bool = False,
    ) -> Statistics:
        """The statistics of states in which the units of some layers, of which no two are joined,
        are replaced by their means given the others, or by their most likely states. Rows may have
        weights that sum to 1.
        """
        size = layers[0].shape[0]
        means, squares = list(layers), []
        for k, units in enumerate(self.layers):
            field = self.field(layers, k) if k in free else None
            if field is not None:
                means[k] = units.mode(field) if mode else units.mean(field)
            if units.linear:
                squares.append(None)
            elif field is None or mode:
                squares.append(units.statistics(means[k]))
            else:
                squares.append(units.mean_statistics(field))
        heavy = means
        if weights is not None:
            shares = size * weights[:, None]
            heavy = [x * jnp.broadcast_to(shares, x.shape) for x in means]
            squares = [
                None if x is None else x * jnp.broadcast_to(shares, x.shape) for x in squares
            ]
        pairs = tuple(heavy[b.first].T @ means[b.second] / size for b in self.blocks())
        return Statistics(
            units=self.units(heavy),
            pairwise=self.factors(pairs),
            squares=tuple(squares),
            converged=jnp.ones(size, bool),
            iterations=jnp.zeros(size, jnp.int32),
            residual=jnp.zeros(size, layers[0].dtype),
        )

    def expected_energy(self, statistics: Statistics) -> Float[Array, ""]:
        """The mean energy under expected statistics. Its gradient with the statistics held fixed is
        minus the statistics, which is all that learning needs. Couplings inside a layer hold each
        edge twice; an edge counts as one parameter, so that its gradient stands whole at both
        places.
        """
        out = jnp.zeros((), self.dtype)
        for bias, x in zip(self.unary(), jax.tree.leaves(statistics.units), strict=True):
            if bias.ndim == 1:
                out = out - bias @ x.mean(tuple(range(x.ndim - 1)))
            else:
                shape = jnp.broadcast_shapes(bias.shape, x.shape)
                both = jnp.broadcast_to(bias, shape) * jnp.broadcast_to(x, shape)
                out = out - both.sum(-1).mean()
        pairs = jax.tree.leaves(statistics.pairwise)
        for block, pair in zip(self.blocks(), pairs, strict=True):
            if block.first == block.second:
                out = out - (as_edges(block.weights) * pair).sum() / 2
            else:
                out = out - (block.weights * pair).sum()
        for layer, x in zip(self.layers, statistics.squares, strict=True):
            if x is not None:
                out = out + layer.own_energy(x).mean()
        return out


def no_features(model: AbstractModel, features: Any) -> None:
    """Raises `ValueError` if features are given to a model that has none."""
    if features is not None:
        raise ValueError(f"`features` must be None for a {type(model).__name__}, got an array.")


def times_weights(model: Model, factor: float) -> Model:
    """The model with its matrices times a number."""
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype) if x.ndim == 2 else x, model)


def states_of(units: AbstractUnits, name: str, x: Any, dtype: DTypeLike) -> Float[Array, "rows _"]:
    """Rows of states as they are inside, checked."""
    if getattr(x, "ndim", None) == 1 and units.size == 1:
        x = x[:, None]
    x = rows_of(name, x, units.size, "[rows, units]")
    units.check(name, x)
    return units.encode(x, dtype)


def rows_of(name: str, x: Any, columns: int, meaning: str) -> AnyArray:
    """Rows of real numbers, checked."""
    x = array_of(name, x, meaning)
    _checks.rank(name, x, 2, meaning)
    _checks.trailing(name, x, (columns,), "one value per unit")
    if x.shape[0] == 0:
        raise ValueError(f"`{name}` must contain at least one row, got {_checks.describe(x)}.")
    _checks.real_numbers(name, x)
    return x


def array_of(name: str, x: Any, meaning: str) -> AnyArray:
    """What has the shape and the dtype of an array, or `TypeError`."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(f"`{name}` must be an array {meaning}, got {_checks.describe(x)}.")
    return x


def as_edges(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Symmetric couplings in which the gradient of an edge stands whole at both its places, rather
    than half at each.
    """
    return 2 * couplings - jax.lax.stop_gradient(couplings)


def scaled(model: Model, beta: float | Float[Array, ""]) -> Model:
    """Multiplies every array of a pytree by a scalar, keeping dtypes."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(beta, leaf.dtype), model)


def states(name: str, x: Shaped[AnyArray, "..."], size: int, dtype: DTypeLike) -> Num[Array, "..."]:
    """Checks the last axis of an array of states and casts it to the dtype of the model."""
    x = jnp.asarray(x)
    if x.ndim == 0 or x.shape[-1] != size:
        raise ValueError(
            f"`{name}` must have shape (..., {size}), one per unit, got {_checks.describe(x)}."
        )
    return x.astype(dtype)


def instancewise(fn: Callable) -> Callable:
    """Lifts a function of vectors to arrays of vectors, whose leading axes broadcast."""
    names = list(inspect.signature(fn).parameters)

    @functools.wraps(fn)
    def lifted(*args: Array) -> PyTree:
        labels = names if len(names) == len(args) else [f"layer {k}" for k in range(len(args))]
        shapes = {k: x.shape[:-1] for k, x in zip(labels, args, strict=True)}
        shape = _checks.broadcastable(**shapes)
        if shape == ():
            return fn(*args)
        axes = tuple(None if x.ndim == 1 else 0 for x in args)
        size = math.prod(shape)
        flat = tuple(
            x
            if x.ndim == 1
            else jnp.broadcast_to(x, (*shape, x.shape[-1])).reshape(size, x.shape[-1])
            for x in args
        )
        out = jax.vmap(fn, axes)(*flat)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)

    return lifted


def parameter(name: str) -> Callable[[ArrayLike], Array]:
    """What makes a field hold a parameter: an array of float32 or float64."""

    def convert(x: ArrayLike) -> Array:
        return _checks.parameter(name, x)

    return convert


def optional(name: str) -> Callable[[ArrayLike | None], Array | None]:
    """The same for a parameter that may be left out."""

    def convert(x: ArrayLike | None) -> Array | None:
        return None if x is None else _checks.parameter(name, x)

    return convert


def gaussian(
    shape: tuple[int, ...], scale: float, dtype: DTypeLike | None, key: PRNGKeyArray
) -> Float[Array, "..."]:
    """Normal random weights of standard deviation `scale`."""
    _checks.number("scale", scale, 0, float("inf"), "[0, inf)")
    dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
    return jnp.asarray(scale, dtype) * jax.random.normal(key, shape, dtype)


@jax.jit
def without_diagonal(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """A matrix with zeros on its diagonal."""
    own = jnp.eye(couplings.shape[0], dtype=bool)
    return jnp.where(own, jnp.zeros((), couplings.dtype), couplings)


@jax.jit
def symmetrised(couplings: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part without its diagonal: what the energy means, also after an update that
    broke the symmetry or while differentiating.
    """
    return without_diagonal((couplings + couplings.T) / 2)
