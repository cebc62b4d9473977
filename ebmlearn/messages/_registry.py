import abc
from collections.abc import Hashable
from typing import Any, ClassVar, TypeAlias

from jaxtyping import Array, Bool, Float, Int

from .._types import AnyArray
from ..models import AbstractModel
from ..models._require import require
from ._types import Form, Product, Schedule
from ._view import AbstractView, Expected, Told


# Tables of one shape: the variables of each, and its log-potentials.
Stacks: TypeAlias = tuple[tuple[Int[AnyArray, "_ _"], Float[Array, "..."]], ...]


class AbstractMaker(abc.ABC):
    """Makes the message-passing views of one kind of model, and answers questions about them."""

    of_graphs: ClassVar[bool] = False

    @abc.abstractmethod
    def instances(self, problem: Any) -> Any:
        """The instances of a model with evidence, along one leading axis."""

    @abc.abstractmethod
    def perturbed(
        self, model: Any, units: Any, clamped: Any, noise: tuple[Float[Array, "rows _"], ...]
    ) -> tuple[Any, tuple[Float[Array, "rows _"], ...]]:
        """The instances of a model with noise on its unary terms, some units being held at their
        states; and the noise, of which these have none.
        """

    @abc.abstractmethod
    def noise_in(
        self, model: Any, noise: tuple[Float[Array, "rows _"], ...], groups: tuple[Hashable, ...]
    ) -> tuple[Float[Array, "rows _"], ...]:
        """The noise of some layers, or groups of variables, alone: zero for all others."""

    @abc.abstractmethod
    def told(
        self, problem: Any, beliefs: tuple[Array, ...], temperature: Float[AnyArray, ""]
    ) -> Told:
        """Converts the beliefs of a view to beliefs about the units of a model, for a batch."""

    @abc.abstractmethod
    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> AbstractView:
        """The view of a model, its weights or log-potentials times `beta`."""

    @abc.abstractmethod
    def check(self, model: Any, product: Product, temperature: float | Float[AnyArray, ""]) -> None:
        """Raises `ValueError` for settings that these messages do not support."""

    @abc.abstractmethod
    def check_mixed(self, model: Any, argument: str) -> None:
        """Raises `ValueError` if messages cannot be mixed, which this argument of `BP` asks for."""

    @abc.abstractmethod
    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        """Whether the fast form of messages, `"odds"`, is accurate enough for sum-product."""

    @abc.abstractmethod
    def takes_turns(self, model: Any) -> bool:
        """Whether the units form two sides that can send in turn."""

    @abc.abstractmethod
    def tables(self, model: Any) -> Stacks:
        """All factors of a model as stacks of tables of one shape: the variables of each, all units
        being numbered on, and its log-potentials. Raises if some are no tables.
        """

    @abc.abstractmethod
    def rows(
        self, model: Any, instance: Any
    ) -> tuple[Float[Array, "variables most"], Bool[Array, "variables most"]]:
        """The unary scores of one instance, a row of states for each variable, and which states it
        has and may have.
        """

    @abc.abstractmethod
    def scored(
        self, scores: Float[Array, "variables most"], instance: Any
    ) -> tuple[Float[Array, "..."], ...]:
        """Scores of all states in the form of the beliefs of a view."""

    @abc.abstractmethod
    def expected(
        self,
        model: Any,
        members: tuple[Int[AnyArray, "_ _"], ...],
        p: Float[Array, "variables most"],
        joint: tuple[Float[Array, "..."], ...],
    ) -> Expected:
        """Expected statistics from the probabilities of states and of the entries of `tables`,
        whose variables are `members`.
        """

    @abc.abstractmethod
    def mended(self, model: Any, states: Any, instance: Any) -> Any:
        """Decoded states of one instance, in which units that others determine are computed from
        these, unless they are held.
        """

    @abc.abstractmethod
    def size(self, model: Any, schedule: Schedule) -> int:
        """The size of the messages of an instance."""


# What is known for each kind of model.
MAKERS: dict[str, AbstractMaker] = {}


def register(kind: str, maker: AbstractMaker) -> None:
    """Registers the maker of views for models of a `kind`. It replaces an earlier maker."""
    MAKERS[kind] = maker


def graph_kinds() -> tuple[str, ...]:
    """The kinds of models that are graphs of variables."""
    return tuple(kind for kind, maker in MAKERS.items() if maker.of_graphs)


def maker(model: AbstractModel) -> AbstractMaker:
    """The maker that is registered for the kind of a model."""
    require(model, tuple(MAKERS), "messages")
    return MAKERS[model.kind]


def instances(problem: Any) -> Any:
    """The instances of a model with evidence, along one leading axis."""
    return maker(problem.model).instances(problem)


def view(
    model: AbstractModel,
    *,
    product: Product = "sum",
    form: Form = "log-odds",
    schedule: Schedule = "flooding",
    damping: Float[AnyArray, ""] | None = None,
    beta: Float[AnyArray, ""],
) -> AbstractView:
    """The message-passing view of a model, its weights or log-potentials times `beta`."""
    return maker(model).view(model, product, form, schedule, damping, beta)
