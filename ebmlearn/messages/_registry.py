import abc
from collections.abc import Hashable
from typing import Any

from jaxtyping import Array, Bool, Float

from .._types import AnyArray
from ..models import AbstractModel
from ..models._base import require
from ._types import Form, Product, Schedule
from ._view import AbstractView, Told


class AbstractMaker(abc.ABC):
    """What is known of message passing on one kind of model, before any message is passed."""

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
        """What the beliefs of a view say of the units of a model, for a batch of instances."""

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
        """Raises `ValueError` for what these messages cannot do."""

    @abc.abstractmethod
    def fits(
        self, model: Any, temperature: Float[AnyArray, ""], damped: bool
    ) -> bool | Bool[AnyArray, ""]:
        """Whether sum-product may run in the fast form of the messages, `"odds"`, as exactly as in
        the general one.
        """

    @abc.abstractmethod
    def takes_turns(self, model: Any) -> bool:
        """Whether the units fall into two sides that can take turns in sending."""

    @abc.abstractmethod
    def size(self, model: Any, schedule: Schedule) -> int:
        """How many numbers the messages of an instance are."""


# What is known for each kind of model.
MAKERS: dict[str, AbstractMaker] = {}


def register(kind: str, maker: AbstractMaker) -> None:
    """Says how messages are passed on the models whose `kind` is this. To register a kind again
    replaces its maker.
    """
    MAKERS[kind] = maker


def maker(model: AbstractModel) -> AbstractMaker:
    """What was registered for the kind of a model."""
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
