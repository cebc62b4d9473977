import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ._types import Start


# How much a random message may say, in log-odds or scores. Odds stay inside their range.
LEANING = 4.0


class Expected(NamedTuple):
    """Expected statistics of one instance.

    - `units`: the mean of each unit, by layer: a probability where units are binary, one for each
      state where they are variables.
    - `pairs`: the mean of what each weight, or each log-potential, is multiplied by; by block.
    - `squares`: what the units' own energy needs, by layer: the means of the squares of Gaussian
      units. None where there is nothing.
    """

    units: tuple[Float[Array, "..."], ...]
    pairs: tuple[Float[Array, "..."], ...]
    squares: tuple[Float[Array, "..."] | None, ...]


class Told(NamedTuple):
    """What messages say of the units of a model, by the names of its layers or groups.

    - `log_odds`: of binary units, or scores of the states of variables; None for real units.
    - `normal`: the means and the variances of real units, if there are any.
    - `guarded`: the share of units whose precision had to be replaced, if that may happen.
    """

    log_odds: Any
    normal: tuple[Float[Array, "..."], Float[Array, "..."]] | None = None
    guarded: Float[Array, "..."] | None = None


class AbstractView(eqx.Module):
    """Message passing on one kind of model, written for one instance. It is all that
    [`ebmlearn.BP`][], [`ebmlearn.PMP`][] and PGMax's inferer know of messages.

    An instance is what may differ between rows of a batch; `instance.tempered(T)` is that of the
    model of $p^{1/T}$. A state is a NamedTuple with `fields`, what the messages add up to; `change`
    looks at these alone.
    """

    @abc.abstractmethod
    def start(self, instance: Any, start: Start) -> Any:
        """The state before any sweep."""

    @abc.abstractmethod
    def leaning(self, instance: Any, key: PRNGKeyArray, sign: Float[Array, ""]) -> Any:
        """Another state before any sweep: all messages to a unit say the same, which is random. For
        a `sign` of -1 they say the opposite.
        """

    @abc.abstractmethod
    def update(self, state: Any, instance: Any) -> Any:
        """One sweep: every message is sent once."""

    @abc.abstractmethod
    def sweeps(
        self, state: Any, instance: Any, number: Int[Array, ""], rows: int = 1
    ) -> tuple[Any, Any]:
        """So many sweeps: the last state, and the fields before the last of them. `rows` is how
        many instances are swept together.
        """

    @abc.abstractmethod
    def resume(self, state: Any, instance: Any) -> Any:
        """Messages of another instance, with what they add up to here."""

    @abc.abstractmethod
    def change(self, old: Any, new: Any, instance: Any) -> Float[Array, ""]:
        """The largest change of a probability between two states."""

    @abc.abstractmethod
    def beliefs(self, state: Any, instance: Any) -> tuple[Float[Array, "..."], ...]:
        """What the messages say of all units."""

    @abc.abstractmethod
    def mixture(
        self, beliefs: tuple[Float[Array, "parts ..."], ...], log_weights: Float[Array, " parts"]
    ) -> tuple[Float[Array, "..."], ...]:
        """What is to be said of all units if each part is right with its probability."""

    @abc.abstractmethod
    def statistics(self, state: Any, instance: Any) -> Expected:
        """The gradient of `log_partition` at a fixed point, if the view `tells_statistics`."""

    @property
    @abc.abstractmethod
    def tells_statistics(self) -> bool:
        """Whether it does so in its form of messages; in log-odds it does."""

    @abc.abstractmethod
    def pairwise(
        self, state: Any, instance: Any, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "..."], ...]:
        """The expected statistic of each weight or log-potential, at a temperature of which the
        view is that at 1. In log-odds form only.
        """

    @abc.abstractmethod
    def log_partition(self, state: Any, instance: Any) -> Float[Array, ""]:
        """The Bethe approximation of log Z, or of the largest log-potential for max-product, over
        the configurations that agree with what is held. In log-odds form only.
        """

    @abc.abstractmethod
    def is_possible(self, state: Any, instance: Any) -> Bool[Array, ""]:
        """Whether messages leave a configuration; on a tree, whether there is one."""

    @abc.abstractmethod
    def decode(self, beliefs: Any) -> Any:
        """The likeliest state of each unit."""

    @abc.abstractmethod
    def given(self, states: Any, instance: Any) -> Any:
        """What `beliefs` are if all other units are known: their log-odds or scores. In log-odds
        form, and of graphs of max-product, only.
        """

    @abc.abstractmethod
    def linear(self, states: Any, unary: Any) -> Float[Array, ""]:
        """The sum of the unary terms that states meet."""

    @abc.abstractmethod
    def score(self, states: Any, instance: Any) -> Float[Array, ""]:
        """The log-potential of one configuration with its unary terms, minus infinity where it
        breaks a factor. In log-odds form only.
        """

    @abc.abstractmethod
    def is_peak(self, states: Any, instance: Any) -> Bool[Array, ""]:
        """Whether no change of one unit raises the log-potential. In log-odds form only."""


def cannot(view: AbstractView, what: str) -> NotImplementedError:
    """The error of a view that has no answer to a question."""
    kind = type(view).__name__.removesuffix("View")
    return NotImplementedError(f"`{what}` is not known of {kind} messages; `Exact` may give it.")


def one_by_one(
    view: AbstractView, state: Any, instance: Any, number: Int[Array, ""]
) -> tuple[Any, Any]:
    """So many sweeps one after the other, as `AbstractView.sweeps` has them."""

    def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return view.update(carry[0], instance), carry[0].fields

    return jax.lax.fori_loop(0, number, step, (state, state.fields))
