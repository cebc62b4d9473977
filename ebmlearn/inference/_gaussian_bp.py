"""Belief propagation on Gaussian RBMs by Gaussian messages, that is by expectation propagation
(Lázaro-Gredilla et al. 2021, "Query training", appendix D.3).

All is in standard units, of precision 1 without messages, see `GaussianInstance`. A message from a
hidden to a visible unit is $e^{\\eta z - \\Lambda z^2 / 2}$; $\\theta_1 = \\eta$ and
$\\theta_2 = -\\Lambda / 2$ in the paper.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import AnyArray
from ..models._view import Schedule, Start
from ._gaussian import GaussianBeliefs, GaussianInstance, GaussianProblem
from ._instances import each
from ._iterate import Limits


# A precision is called guarded if it lies below what is possible by more than rounding explains.
_ROUNDING = 0.99


class GaussianSettings(eqx.Module):
    """What is asked of belief propagation, its numbers as arrays so that new values compile
    nothing.
    """

    limits: Limits
    damping: Float[AnyArray, ""] | None
    start: Start = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True)


class _State(NamedTuple):
    """The messages, and what they add up to.

    - `precisions`, `linears`: $\\Lambda$ and $\\eta$ of the messages to the visible units.
    - `sent`: log-odds of the messages to the hidden units, kept by flooding only.
    - `precision`, `linear`: of the visible units, all messages taken together.
    - `log_odds`: of the hidden units.
    - `place`: the means of the visible units a sweep ago, from which a guarded precision says how
      far to go; 0 where they are observed.
    - `guarded`: the share of them whose precision is guarded, now or a sweep ago.
    """

    precisions: Float[Array, "visible hidden"]
    linears: Float[Array, "visible hidden"]
    sent: Float[Array, "visible hidden"] | None
    precision: Float[Array, " visible"]
    linear: Float[Array, " visible"]
    log_odds: Float[Array, " hidden"]
    place: Float[Array, " visible"]
    guarded: Float[Array, ""]


class _View(eqx.Module):
    """Passes messages of one instance. `least` is the lowest precision a visible unit can have:
    given the hidden units it is 1, and they move its mean within a range of $\\sum_j |W_{ij}|$, to
    which they can add a quarter of the square of that as variance.
    """

    weights: Float[Array, "visible hidden"]
    least: Float[Array, " visible"]
    settings: GaussianSettings

    def first(self, at: GaussianInstance) -> _State:
        """The state before any sweep."""
        if self.settings.start == "plain":
            # As printed: every message has precision 1 and its mean at v = 0.
            precisions = jnp.ones_like(self.weights)
            linears = -jnp.broadcast_to(at.origin[:, None], self.weights.shape)
        else:
            # No message in the ±1 form of the hidden units.
            precisions, linears = jnp.zeros_like(self.weights), self.weights / 2
        state = self._summed(precisions, linears, None, at.bias, at, None)
        if self.settings.schedule == "layers":
            return state
        if self.settings.start == "plain":
            sent = linears * self.weights
        else:
            sent = self._sent(*self._cavities(state, at))
        return state._replace(sent=sent, log_odds=at.bias + sent.sum(0))

    def sweep(self, old: _State, at: GaussianInstance) -> tuple[_State, Float[Array, ""]]:
        """One sweep and how much it changed."""
        mean, variance = self._cavities(old, at)
        sent = self._sent(mean, variance)
        log_odds = at.bias + sent.sum(0)
        if old.sent is None:
            # A hidden unit's belief is the same whichever of its visible neighbours it is seen
            # from, for they have all just sent what they are now combined with.
            tilted, kept = log_odds[None, :], None
        else:
            tilted = old.log_odds[None, :] - old.sent + sent
            kept = self._damped(sent, old.sent)
            log_odds = at.bias + kept.sum(0)
        precisions, linears = self._answers(tilted, mean, variance)
        precisions = self._damped(precisions, old.precisions)
        linears = self._damped(linears, old.linears)
        new = self._summed(precisions, linears, kept, log_odds, at, old)
        return new, self._change(old, new, at)

    def moments(
        self, state: _State, at: GaussianInstance
    ) -> tuple[Float[Array, " visible"], Float[Array, " visible"]]:
        """Mean and variance of the visible units."""
        variance = at.free / _guard(state.precision, self.least)
        return _mean(state.place, state.linear, state.precision, variance) + at.value, variance

    def _cavities(
        self, state: _State, at: GaussianInstance
    ) -> tuple[Float[Array, "visible hidden"], Float[Array, "visible hidden"]]:
        """Mean and variance of each visible unit without the message of each hidden one. An
        observed unit has its value and no variance, the limit of $\\epsilon = 0$ in the paper.
        """
        precision = state.precision[:, None] - state.precisions
        linear = state.linear[:, None] - state.linears
        variance = at.free[:, None] / _guard(precision, self.least[:, None])
        mean = _mean(state.place[:, None], linear, precision, variance)
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
        if self.settings.damping is None:
            return new
        return new + jnp.asarray(self.settings.damping) * (old - new)

    def _summed(
        self,
        precisions: Float[Array, "visible hidden"],
        linears: Float[Array, "visible hidden"],
        sent: Float[Array, "visible hidden"] | None,
        log_odds: Float[Array, " hidden"],
        at: GaussianInstance,
        old: _State | None,
    ) -> _State:
        precision = 1 + precisions.sum(1)
        low = precision < _ROUNDING * self.least
        if old is None:
            place = self.weights.sum(1) / 2
        else:
            place, _ = self.moments(old, at)
            low = low | (old.precision < _ROUNDING * self.least)
        share = (low.astype(at.free.dtype) @ at.free) / jnp.maximum(at.free.sum(), 1)
        linear = linears.sum(1)
        return _State(
            precisions, linears, sent, precision, linear, log_odds, at.free * place, share
        )

    def _change(self, old: _State, new: _State, at: GaussianInstance) -> Float[Array, ""]:
        (m, s), (n, t) = self.moments(old, at), self.moments(new, at)
        # Observed units have no variance and do not change.
        safe = jnp.where(at.free > 0, t, jnp.ones_like(t))
        hidden = jax.nn.sigmoid(new.log_odds) - jax.nn.sigmoid(old.log_odds)
        parts = [hidden, (n - m) / jnp.sqrt(safe), (t - s) / safe]
        return jnp.abs(jax.lax.stop_gradient(jnp.concatenate(parts))).max()


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


@eqx.filter_jit
def gaussian_bp(settings: GaussianSettings, problem: GaussianProblem) -> GaussianBeliefs:
    """The beliefs of all instances."""
    problem = problem.checked()
    weights = problem.model.weights
    least = 1 / (1 + jnp.abs(weights).sum(1) ** 2 / 4)

    def one(at: GaussianInstance) -> tuple[Array, ...]:
        view = _View(weights, least, settings)
        state, iterations, residual = settings.limits.iterate(
            lambda state: view.sweep(state, at), view.first(at)
        )
        return *view.moments(state, at), state.log_odds, iterations, residual, state.guarded

    # Messages of two arrays, or three, in 256 MiB of float32.
    arrays = 2 if settings.schedule == "layers" else 3
    chunk = settings.chunk or max(1, 2**26 // max(1, arrays * weights.size))
    out = each(one, problem.instances(), problem.shape, chunk)
    mean, variance, log_odds, iterations, residual, guarded = out
    return problem.beliefs(
        mean,
        variance,
        log_odds=log_odds,
        converged=residual <= settings.limits.tol,
        iterations=iterations,
        residual=residual,
        guarded=guarded,
    )
