import abc
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, NoReturn, TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from .._types import AnyArray, Batch, Evidence, Observed
from ..factors import AbstractFactor
from ..units import AbstractUnits
from ._arrays import symmetrised, without_diagonal
from ._block import Block
from ._problem import AbstractProblem
from ._statistics import Statistics


Model = TypeVar("Model", bound="AbstractModel")
Plain = TypeVar("Plain", bound="AbstractPlainModel")
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

    def blocks(self) -> tuple[Block, ...]:
        """The blocks of weights, each between two layers or inside one, if there are layers."""
        return ()

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
        """The parameters that weight decay shrinks, and zeros for all others."""
        return self._no_penalty("weight_decay")

    def uncentred(self: Model, offsets: PyTree, batch: Batch) -> Model:
        """The model whose energy is, up to a constant, this one's with $x - \\mu$ in place of $x$
        in all products of two units, `offsets` being the $\\mu$ of all units.
        """
        return self._no_penalty("centred")

    @abc.abstractmethod
    def as_batch(self, batch: Batch) -> PyTree:
        """A batch as arrays only, so that compiled code keeps nothing else alive."""

    @abc.abstractmethod
    def problem(self, evidence: Evidence, observed: Observed) -> AbstractProblem:
        """The model with checked evidence, on which inferences work."""

    @property
    def query_defaults(self) -> tuple[float, Strength] | None:
        """The initial scale and strength of a [`ebmlearn.QueryModel`][] of this model; None if
        there can be none.
        """
        return None

    def configuration(self, states: PyTree) -> PyTree:
        """The states of chains, with the names that users see."""
        return states

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
    def is_seen(self) -> bool:
        """Whether nothing is hidden."""
        return True

    @abc.abstractmethod
    def unary(self) -> tuple[Float[Array, "... _"], ...]:
        """The biases of each layer; for a graph, the scores of all states."""

    @abc.abstractmethod
    def units(self, layers: Sequence[PyTree]) -> PyTree:
        """Names the values of layers or of groups of variables."""

    @abc.abstractmethod
    def factors(self, product: str = "sum") -> tuple[AbstractFactor, ...]:
        """What joins the units: their energies add up to that of the model without its biases and
        the units' own energies. To be maximised over, rather than summed, quantised units have no
        weights.
        """

    @abc.abstractmethod
    def by_factor(self, blocks: tuple[PyTree, ...]) -> PyTree:
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

    @property
    def finite(self) -> bool:
        """Whether all units have finitely many states."""
        return all(layer.finite for layer in self.layers)

    def batched(self: Plain, shape: tuple[int, ...]) -> Plain:
        """The model with an instance for each row of a batch of this shape, along one axis; itself
        if it is a single one.
        """
        return self

    @abc.abstractmethod
    def fields(self, layers: States) -> list[Float[Array, "rows _"]]:
        """What all other units send to those of each layer: for a small change of a state, what it
        adds to the log-potential.
        """

    @abc.abstractmethod
    def energies(self, layers: States) -> Float[Array, " rows"]:
        """The energy of states of all layers, as they are inside."""

    def marginal_energies(self, layers: States) -> Float[Array, " rows"]:
        """Minus the log-potential of states, the layers `summed` being summed out."""
        return self.energies(layers)

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

    def unnamed(self, configuration: PyTree) -> PyTree:
        """The reverse of `configuration`: what samples are, as chains take their start."""
        return configuration

    @abc.abstractmethod
    def masks(self, clamped: PyTree) -> Sequence[Bool[Array, "rows _"] | None] | None:
        """Which units of each layer are held, from what chains keep of it; None if none are."""

    def told(self, num_chains: int, start: PyTree, clamped: PyTree) -> PyTree:
        """Which units keep their start while others are drawn from what is possible; None if every
        start is possible. Raises `ValueError` if a unit is held that never moves by itself.
        """
        return None

    @abc.abstractmethod
    def near(self, units: PyTree, key: PRNGKeyArray) -> list[Float[Array, "rows _"]]:
        """States as they are inside for chains that start from means given data, as `complete` and
        inferences give them.
        """

    def has_gaps(self, observed: PyTree) -> bool:
        """Whether data lack values that they should have."""
        return observed is not None

    def no_chains(self) -> str | None:
        """Why chains that change a unit at a time would not reach all configurations; None if they
        do.
        """
        return None

    def no_moves(self) -> str | None:
        """The same of chains that follow fields."""
        return self.no_chains()

    def mended(self, states: tuple[Array, ...], clamp: tuple[Any, ...]) -> tuple[Array, ...]:
        """Decoded states of one instance by group, in which units that others determine are
        computed from these, unless they are held.
        """
        return states

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

    def centred_form(self: Model) -> Model:
        """The parameters for units ±1, if the units are binary."""
        return self

    def plain_form(self: Model) -> Model:
        """The reverse of `centred_form`."""
        return self
