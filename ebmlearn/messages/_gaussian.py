"""Belief propagation on Gaussian RBMs with Gaussian messages, that is, expectation propagation
(Lázaro-Gredilla et al. 2021, "Query training", appendix D.3).

All is in standard units, of precision 1 without messages, see `GaussianInstance`. A message from a
hidden to a visible unit is $e^{\\eta z - \\Lambda z^2 / 2}$; $\\theta_1 = \\eta$ and
$\\theta_2 = -\\Lambda / 2$ in the paper.
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .. import _checks
from .._types import AnyArray
from ..models import AbstractLayeredModel
from ..models._require import refuse
from ._registry import AbstractMaker
from ._types import Form, Product, Schedule, Start
from ._view import AbstractView, cannot, Expected, one_by_one, Told


# A precision is called guarded if it lies below what is possible by more than rounding explains.
_ROUNDING = 0.99


class GaussianInstance(NamedTuple):
    """One instance in standard units $z = (v - b) / \\sigma$, of energy
    $\\frac12 \\|z\\|^2 - z^\\top W h - c^\\top h$.

    - `bias`: that $c$, which is the model's with $W^\\top b / \\sigma$ added.
    - `value`: the observed $z$, 0 where there is none.
    - `free`: 1 where nothing was observed, 0 elsewhere.
    - `origin`: $b / \\sigma$, so that $v = 0$ is at minus this.
    """

    bias: Float[Array, "*rows hidden"]
    value: Float[Array, "*rows visible"]
    free: Float[Array, "*rows visible"]
    origin: Float[Array, "*rows visible"]

    def tempered(self, temperature: Float[AnyArray, ""]) -> "GaussianInstance":
        """The same: Gaussian messages know temperature 1 only."""
        return self


class GaussianFields(NamedTuple):
    """What the messages add up to.

    - `precision`, `linear`: of the visible units.
    - `log_odds`: of the hidden units.
    - `place`: the means of the visible units a sweep ago, from which a guarded precision says how
      far to go; 0 where they are observed.
    """

    precision: Float[Array, " visible"]
    linear: Float[Array, " visible"]
    log_odds: Float[Array, " hidden"]
    place: Float[Array, " visible"]


class GaussianState(NamedTuple):
    """The messages, and what they add up to.

    - `precisions`, `linears`: $\\Lambda$ and $\\eta$ of the messages to the visible units.
    - `sent`: log-odds of the messages to the hidden units, kept by flooding only.
    - `guarded`: the share of the visible units whose precision is guarded, now or a sweep ago.
    """

    precisions: Float[Array, "visible hidden"]
    linears: Float[Array, "visible hidden"]
    sent: Float[Array, "visible hidden"] | None
    fields: GaussianFields
    guarded: Float[Array, ""]


class GaussianView(AbstractView):
    """Passes Gaussian messages of one instance. `least` is the lowest precision a visible unit can
    have: given the hidden units it is 1, and they move its mean within a range of
    $\\sum_j |W_{ij}|$, to which they can add a quarter of the square of that as variance.
    """

    weights: Float[Array, "visible hidden"]
    sigma: Float[Array, " visible"]
    least: Float[Array, " visible"]
    damping: Float[AnyArray, ""] | None
    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)

    def __init__(
        self,
        model: AbstractLayeredModel,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
    ):
        self.weights, self.sigma = standard(model)
        self.least = 1 / (1 + jnp.abs(self.weights).sum(1) ** 2 / 4)
        self.edges = tuple((block.first, block.second) for block in model.blocks())
        self.schedule, self.damping = schedule, damping

    def start(self, instance: GaussianInstance, start: Start) -> GaussianState:
        if start == "plain":
            # As printed: every message has precision 1 and its mean at v = 0.
            precisions = jnp.ones_like(self.weights)
            linears = -jnp.broadcast_to(instance.origin[:, None], self.weights.shape)
        else:
            # No message in the ±1 form of the hidden units.
            precisions, linears = jnp.zeros_like(self.weights), self.weights / 2
        state = self._summed(precisions, linears, None, instance.bias, instance, None)
        if self.schedule == "layers":
            return state
        if start == "plain":
            sent = linears * self.weights
        else:
            sent = self._sent(*self._cavities(state, instance))
        fields = state.fields._replace(log_odds=instance.bias + sent.sum(0))
        return state._replace(sent=sent, fields=fields)

    def leaning(
        self, instance: GaussianInstance, key: PRNGKeyArray, sign: Float[Array, ""]
    ) -> GaussianState:
        raise cannot(self, "starts")

    def update(self, state: GaussianState, instance: GaussianInstance) -> GaussianState:
        mean, variance = self._cavities(state, instance)
        sent = self._sent(mean, variance)
        log_odds = instance.bias + sent.sum(0)
        if state.sent is None:
            # A hidden unit's belief is the same whichever of its visible neighbours it is seen
            # from, for they have all just sent what they are now combined with.
            tilted, kept = log_odds[None, :], None
        else:
            tilted = state.fields.log_odds[None, :] - state.sent + sent
            kept = self._damped(sent, state.sent)
            log_odds = instance.bias + kept.sum(0)
        precisions, linears = self._answers(tilted, mean, variance)
        precisions = self._damped(precisions, state.precisions)
        linears = self._damped(linears, state.linears)
        return self._summed(precisions, linears, kept, log_odds, instance, state.fields)

    def sweeps(
        self, state: Any, instance: Any, number: Int[Array, ""], rows: int = 1
    ) -> tuple[Any, Any]:
        """So many sweeps, one after the other."""
        return one_by_one(self, state, instance, number)

    def resume(self, state: GaussianState, instance: GaussianInstance) -> GaussianState:
        raise cannot(self, "resume")

    def change(
        self, old: GaussianState, new: GaussianState, instance: GaussianInstance
    ) -> Float[Array, ""]:
        """The largest change of a probability of a hidden unit, of a mean in standard deviations,
        or of a variance relative to itself.
        """
        (m, s), (n, t) = (self._moments(state.fields, instance) for state in (old, new))
        # Observed units have no variance and do not change.
        safe = jnp.where(instance.free > 0, t, jnp.ones_like(t))
        hidden = jax.nn.sigmoid(new.fields.log_odds) - jax.nn.sigmoid(old.fields.log_odds)
        parts = [hidden, (n - m) / jnp.sqrt(safe), (t - s) / safe]
        return jnp.abs(jax.lax.stop_gradient(jnp.concatenate(parts))).max()

    def beliefs(
        self, state: GaussianState, instance: GaussianInstance
    ) -> tuple[Float[Array, "..."], ...]:
        """Mean and variance of the visible units in standard units, log-odds of the hidden ones,
        and the share of guarded precisions.
        """
        moments = self._moments(state.fields, instance)
        return *moments, state.fields.log_odds, state.guarded

    def mixture(
        self, beliefs: tuple[Float[Array, "parts ..."], ...], log_weights: Float[Array, " parts"]
    ) -> tuple[Float[Array, "..."], ...]:
        raise cannot(self, "starts")

    @property
    def tells_statistics(self) -> bool:
        return True

    def statistics(self, state: GaussianState, instance: GaussianInstance) -> Expected:
        """Means of $v$, $h$, $v h^\\top$ and $v^2$, in the units of the model."""
        mean, variance = self._moments(state.fields, instance)
        visible = self.sigma * (mean + instance.origin)
        hidden = jax.nn.sigmoid(state.fields.log_odds)
        one = jnp.ones((), mean.dtype)
        own = self.sigma**2 * variance + visible**2
        return Expected((visible, hidden), self.pairwise(state, instance, one), (own, None))

    def pairwise(
        self, state: GaussianState, instance: GaussianInstance, temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "_ _"], ...]:
        """The mean of $v_i h_j$. In the belief of their edge, $h_j$ is 1 with its probability, and
        then $z_i$ has the mean $\\mu + \\sigma^2 w$ of its cavity.
        """
        mean, variance = self._cavities(state, instance)
        shifted = mean + variance * self.weights
        hidden = jax.nn.sigmoid(state.fields.log_odds)
        visible = self.sigma[:, None] * (shifted + instance.origin[:, None])
        return in_blocks(self.edges, visible * hidden[None, :])

    def log_partition(self, state: GaussianState, instance: GaussianInstance) -> Float[Array, ""]:
        raise cannot(self, "log_partition")

    def is_possible(self, state: Any, instance: Any) -> Bool[Array, ""]:
        """Always: these models exclude nothing."""
        return jnp.ones((), bool)

    def decode(self, beliefs: tuple[Float[Array, "..."], ...]) -> tuple[Float[Array, " _"], ...]:
        """The means of the visible units, in standard units, and the likelier states of the hidden
        ones.
        """
        mean, _, log_odds, _ = beliefs
        return mean, (log_odds > 0).astype(log_odds.dtype)

    def given(self, states: Any, instance: GaussianInstance) -> Any:
        raise cannot(self, "given")

    def linear(self, states: Any, unary: Any) -> Float[Array, ""]:
        raise cannot(self, "linear")

    def score(self, states: Any, instance: GaussianInstance) -> Float[Array, ""]:
        raise cannot(self, "score")

    def is_peak(self, states: Any, instance: GaussianInstance) -> Bool[Array, ""]:
        raise cannot(self, "is_peak")

    def _moments(
        self, fields: GaussianFields, at: GaussianInstance
    ) -> tuple[Float[Array, " visible"], Float[Array, " visible"]]:
        """Mean and variance of the visible units."""
        variance = at.free / _guard(fields.precision, self.least)
        return _mean(fields.place, fields.linear, fields.precision, variance) + at.value, variance

    def _cavities(
        self, state: GaussianState, at: GaussianInstance
    ) -> tuple[Float[Array, "visible hidden"], Float[Array, "visible hidden"]]:
        """Mean and variance of each visible unit without the message of each hidden one. An
        observed unit has its value and no variance, the limit of $\\epsilon = 0$ in the paper.
        """
        precision = state.fields.precision[:, None] - state.precisions
        linear = state.fields.linear[:, None] - state.linears
        variance = at.free[:, None] / _guard(precision, self.least[:, None])
        mean = _mean(state.fields.place[:, None], linear, precision, variance)
        return mean + at.value[:, None], variance

    def _sent(
        self, mean: Float[Array, "visible hidden"], variance: Float[Array, "visible hidden"]
    ) -> Float[Array, "visible hidden"]:
        """The messages to the hidden units, $f_w$: $\\log E e^{wz}$ of the cavities."""
        return self.weights * (mean + self.weights * variance / 2)

    def _answers(
        self,
        log_odds: Float[Array, "_ hidden"],
        mean: Float[Array, "visible hidden"],
        variance: Float[Array, "visible hidden"],
    ) -> tuple[Float[Array, "visible hidden"], Float[Array, "visible hidden"]]:
        """The messages to the visible units, $g_w$. With probability $p$, of these log-odds, $z$
        has the mean $\\mu + \\sigma^2 w$ in place of $\\mu$, so that eq. (6) is
        $\\mu_B = \\mu + p \\sigma^2 w$ and $\\sigma_B^2 = \\sigma^2 D$ with
        $D = 1 + p (1 - p) \\sigma^2 w^2$. Less the cavity, the precision of that is never positive.
        """
        p = jax.nn.sigmoid(log_odds)
        strength = p * jax.nn.sigmoid(-log_odds) * self.weights**2
        d = 1 + strength * variance
        precision = -strength / d
        return precision, p * self.weights / d + mean * precision

    def _damped(
        self, new: Float[Array, "visible hidden"], old: Float[Array, "visible hidden"]
    ) -> Float[Array, "visible hidden"]:
        if self.damping is None:
            return new
        return new + jnp.asarray(self.damping) * (old - new)

    def _summed(
        self,
        precisions: Float[Array, "visible hidden"],
        linears: Float[Array, "visible hidden"],
        sent: Float[Array, "visible hidden"] | None,
        log_odds: Float[Array, " hidden"],
        at: GaussianInstance,
        old: GaussianFields | None,
    ) -> GaussianState:
        precision = 1 + precisions.sum(1)
        low = precision < _ROUNDING * self.least
        if old is None:
            place = self.weights.sum(1) / 2
        else:
            place, _ = self._moments(old, at)
            low = low | (old.precision < _ROUNDING * self.least)
        share = (low.astype(at.free.dtype) @ at.free) / jnp.maximum(at.free.sum(), 1)
        fields = GaussianFields(precision, linears.sum(1), log_odds, at.free * place)
        return GaussianState(precisions, linears, sent, fields, share)


def _guard(
    precision: Float[Array, "visible _"] | Float[Array, " visible"],
    least: Float[Array, "visible _"] | Float[Array, " visible"],
) -> Float[Array, "visible _"] | Float[Array, " visible"]:
    """The precision where it is possible; below the least that is, a number that falls with it from
    the least to half of that. Its derivative is continuous.
    """
    half = least / 2
    below = jnp.minimum(precision, least)
    return jnp.maximum(precision, least) - half + half**2 / (3 * half - below)


def _mean(
    place: Float[Array, "visible _"] | Float[Array, " visible"],
    linear: Float[Array, "visible _"] | Float[Array, " visible"],
    precision: Float[Array, "visible _"] | Float[Array, " visible"],
    variance: Float[Array, "visible _"] | Float[Array, " visible"],
) -> Float[Array, "visible _"] | Float[Array, " visible"]:
    """The mean of a Gaussian: `linear * variance`, where `variance` is the inverse of `precision`.
    Where that was guarded, it is a step from `place` along the slope there.
    """
    return place + (linear - precision * place) * variance


class GaussianMaker(AbstractMaker):
    """Messages between Gaussian visible and binary hidden units: sum-product at temperature 1."""

    def instances(self, problem: Any) -> GaussianInstance:
        """All in standard units."""
        model, given = problem.model, problem.given()
        weights, sigma = standard(model)
        unary, bias = model.unary()
        spread = jnp.broadcast_to(sigma, unary.shape)
        origin = unary * spread
        sent = jnp.matmul(origin, weights, precision="highest")
        bias = problem.flat(bias) + problem.flat(sent)
        origin, place, sigma = (problem.flat(x) for x in (origin, origin * spread, sigma))
        value, free = jnp.zeros_like(place), jnp.ones_like(place)
        if given is not None:
            evidence, observed = (problem.flat(x) for x in given)
            value = jnp.where(observed, (jnp.where(observed, evidence, 0) - place) / sigma, 0)
            free = (~observed).astype(place.dtype)
        return GaussianInstance(bias, value, free, origin)

    def perturbed(
        self, model: Any, units: Any, clamped: Any, noise: tuple[Float[Array, "rows _"], ...]
    ) -> NoReturn:
        """Raises: these messages do not maximise."""
        return refuse(model, "have units that can be maximised over")

    def noise_in(
        self, model: Any, noise: tuple[Float[Array, "rows _"], ...], groups: tuple[Hashable, ...]
    ) -> NoReturn:
        """Raises: these messages do not maximise."""
        return refuse(model, "have units that can be maximised over")

    def mended(self, model: Any, states: Any, instance: GaussianInstance) -> NoReturn:
        """Raises: these messages do not maximise."""
        return refuse(model, "have units that can be maximised over")

    def told(
        self, problem: Any, beliefs: tuple[Array, ...], temperature: Float[AnyArray, ""]
    ) -> Told:
        mean, variance, log_odds, guarded = beliefs
        return told(problem, mean, variance, log_odds, guarded)

    def view(
        self,
        model: Any,
        product: Product,
        form: Form,
        schedule: Schedule,
        damping: Float[AnyArray, ""] | None,
        beta: Float[AnyArray, ""],
    ) -> GaussianView:
        return GaussianView(model, schedule, damping)

    def check(self, model: Any, product: Product, temperature: float | Float[AnyArray, ""]) -> None:
        name = _checks.article(type(model).__name__)
        if product != "sum":
            raise ValueError(f'`product` must be "sum" for {name}, got {product!r}.')
        if not _checks.is_concrete(temperature) or float(temperature) != 1:
            raise ValueError(f"`temperature` must be 1 for {name}, got {temperature}.")

    def check_mixed(self, model: Any, argument: str) -> None:
        name = _checks.article(type(model).__name__)
        raise ValueError(
            f"`{argument}` must be left out for {name}: its messages are Gaussians, which cannot"
            " be mixed."
        )

    def fits(self, model: Any, temperature: Float[AnyArray, ""], damped: bool) -> bool:
        """There is one form only."""
        return False

    def tables(self, model: Any) -> NoReturn:
        """Raises: real units have no tables."""
        return refuse(model, "have units of finitely many states")

    def rows(self, model: Any, instance: GaussianInstance) -> NoReturn:
        """Raises: real units have no tables."""
        return refuse(model, "have units of finitely many states")

    def scored(self, scores: Any, instance: GaussianInstance) -> NoReturn:
        """Raises: real units have no tables."""
        raise TypeError("`model` must have units of finitely many states, got real units.")

    def expected(self, model: Any, members: Any, p: Any, joint: Any) -> NoReturn:
        """Raises: real units have no tables."""
        return refuse(model, "have units of finitely many states")

    def takes_turns(self, model: Any) -> bool:
        return True

    def size(self, model: Any, schedule: Schedule) -> int:
        visible, hidden = model.layers
        return (2 if schedule == "layers" else 3) * visible.size * hidden.size


def standard(
    model: AbstractLayeredModel,
) -> tuple[Float[Array, "visible hidden"], Float[Array, " visible"]]:
    """The weights in standard units, and the scales of the visible units."""
    blocks, (visible, hidden) = model.blocks(), model.layers
    if any(block.first == block.second for block in blocks):
        refuse(model, "have one block of weights, between its layers, for Gaussian messages")
    turned = [block.weights.T if block.first else block.weights for block in blocks]
    weights = sum(turned, jnp.zeros((visible.size, hidden.size), model.dtype))
    sigma = jnp.exp(visible.log_scale)  # pyright: ignore
    return sigma[:, None] * weights, sigma


def in_blocks(
    edges: Iterable[tuple[int, int]], products: Float[Array, "*batch visible hidden"]
) -> tuple[Float[Array, "*batch _ _"], ...]:
    """The means of $v h^\\top$ as the blocks between the layers are turned."""
    return tuple(products.mT if first else products for first, _ in edges)


def told(problem: Any, mean: Array, variance: Array, log_odds: Array, guarded: Array) -> Told:
    """Beliefs from the moments of the visible units in standard units."""
    model, given = problem.model, problem.given()
    _, sigma = standard(model)
    sigma = jnp.broadcast_to(sigma, mean.shape)
    place = jnp.broadcast_to(model.unary()[0], mean.shape) * sigma**2
    mean = place + sigma * mean
    if given is not None:
        evidence, observed = given
        mean = jnp.where(observed, evidence, mean)
    return Told(model.units([None, log_odds]), (mean, sigma**2 * variance), guarded)
