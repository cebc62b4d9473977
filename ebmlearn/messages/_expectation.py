"""Belief propagation between Gaussian and binary units with Gaussian messages, that is, expectation
propagation (Lázaro-Gredilla et al. 2021, "Query training", appendix D.3).

All is in standard units $z = (v - b) / \\sigma$, in which the energy is
$\\frac12 \\|z\\|^2 - z^\\top W h - c^\\top h$; $c$ is the model's with $W^\\top b / \\sigma$ added.
A message from a hidden to a visible unit is $e^{\\eta z - \\Lambda z^2 / 2}$; $\\theta_1 = \\eta$
and $\\theta_2 = -\\Lambda / 2$ in the paper.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._types import AnyArray
from ._forms import AbstractSent, counts_of_pairs, Damp, Heard, Start, Sums


# A precision is called guarded if it lies below what is possible by more than rounding explains.
_ROUNDING = 0.99


class Given(NamedTuple):
    """Gaussian units in standard units, and what is observed of them.

    - `value`: the observed $z$, 0 where there is none.
    - `free`: 1 where nothing was observed, 0 elsewhere.
    - `evidence`: the observed $v$.
    - `origin`: $b / \\sigma$, so that $v = 0$ is at minus this.
    """

    value: Float[Array, " n"]
    free: Float[Array, " n"]
    evidence: Float[Array, " n"]
    origin: Float[Array, " n"]


class Normal(NamedTuple):
    """What messages to Gaussian units add up to.

    - `precision`, `linear`: of the Gaussians.
    - `place`: the means a sweep ago, from which a guarded precision says how far to go; 0 where
      units are observed.
    - `was_low`: whether the precision was guarded a sweep ago.
    """

    precision: Float[Array, " n"]
    linear: Float[Array, " n"]
    place: Float[Array, " n"]
    was_low: Bool[Array, " n"]


class Moments(NamedTuple):
    """The means and variances of Gaussian units, and the share of them whose precision is guarded,
    now or a sweep ago.
    """

    mean: Float[Array, "*rows n"]
    variance: Float[Array, "*rows n"]
    guarded: Float[Array, "*rows"]


class Gaussians(eqx.Module):
    """What is known of Gaussian units, for one instance, by the same functions as of other units
    (`AbstractNumbered`).

    `least` is the lowest precision that one can have: given the hidden units it is 1, and they move
    its mean within a range of $\\sum_j |W_{ij}|$, to which they can add a quarter of the square of
    that as variance. `first` are the means that messages begin at.
    """

    sigma: Float[Array, " n"]
    least: Float[Array, " n"]
    first: Float[Array, " n"]

    def __init__(self, sigma: Float[Array, " n"], weights: Sequence[Float[Array, "n _"]]):
        self.sigma = sigma
        none = jnp.zeros((len(sigma), 1), sigma.dtype)
        joined = jnp.concatenate([none, *map(self.standard, weights)], 1)
        self.least = 1 / (1 + jnp.abs(joined).sum(1) ** 2 / 4)
        self.first = joined.sum(1) / 2

    def standard(self, weights: Float[Array, "n m"]) -> Float[Array, "n m"]:
        """Weights in standard units."""
        return self.sigma[:, None] * weights

    def posed(
        self, unary: Float[Array, " n"], clamp: Any, temperature: Any
    ) -> tuple[Float[Array, " n"], Given]:
        """The origin, and all in standard units. Gaussian messages know temperature 1 only."""
        origin = unary * self.sigma
        value, free, evidence = jnp.zeros_like(origin), jnp.ones_like(origin), origin
        if clamp is not None:
            evidence, observed = clamp
            from_place = jnp.where(observed, evidence, 0) - origin * self.sigma
            value = jnp.where(observed, from_place / self.sigma, 0)
            free = (~observed).astype(origin.dtype)
        return origin, Given(value, free, evidence, origin)

    def alone(self, unary: Float[Array, " n"]) -> Sums:
        return jnp.ones_like(unary), jnp.zeros_like(unary)

    def field(self, sums: Sums, old: Normal | None, clamp: Given) -> Normal:
        precision, linear = sums
        if old is None:
            none = jnp.zeros(precision.shape, bool)
            return Normal(precision, linear, clamp.free * self.first, none)
        place, _ = self.moments(old, clamp)
        return Normal(precision, linear, clamp.free * place, self._is_low(old.precision))

    def heard(self, field: Normal, clamp: Given) -> Heard:
        return Heard((field, clamp), None, None)  # pyright: ignore

    def shifted(self, field: Normal, clamp: Given) -> tuple[Heard, Float[Array, ""]]:
        return self.heard(field, clamp), jnp.zeros((), field.precision.dtype)

    def change(self, old: Normal, new: Normal, clamp: Given) -> Float[Array, ""]:
        """The largest change of a mean in standard deviations, or of a variance relative to
        itself.
        """
        (m, s), (n, t) = (self.moments(field, clamp) for field in (old, new))
        # Observed units have no variance and do not change.
        safe = jnp.where(t > 0, t, jnp.ones_like(t))
        return jnp.abs(jnp.concatenate([(n - m) / jnp.sqrt(safe), (t - s) / safe])).max(initial=0)

    def belief(self, field: Normal, unary: Float[Array, " n"], clamp: Given) -> Moments:
        mean, variance = self.moments(field, clamp)
        mean = jnp.where(clamp.free > 0, self.sigma * (mean + clamp.origin), clamp.evidence)
        low = (self._is_low(field.precision) | field.was_low).astype(mean.dtype)
        share = (low @ clamp.free) / jnp.maximum(clamp.free.sum(), 1)
        return Moments(mean, self.sigma**2 * variance, share)

    def expected(self, belief: Moments) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return belief.mean, belief.variance + belief.mean**2

    def moments(self, field: Normal, clamp: Given) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance, in standard units."""
        variance = clamp.free / _guard(field.precision, self.least)
        return _mean(field.place, field.linear, field.precision, variance) + clamp.value, variance

    def _is_low(self, precision: Float[Array, " n"]) -> Bool[Array, " n"]:
        return precision < _ROUNDING * self.least


class GaussianSent(AbstractSent):
    """All pairs of a Gaussian and a binary unit. Messages are the precisions and the shifts towards
    the Gaussian units, `[visible, hidden]`, and where all are sent at once the log-odds towards the
    binary ones.

    `weights` are in standard units. `ends` are the Gaussian group and the binary one, `is_turned`
    says that the factor has them the other way round.
    """

    weights: Float[Array, "visible hidden"]
    sigma: Float[Array, " visible"]
    least: Float[Array, " visible"]
    ends: tuple[int, int] = eqx.field(static=True)
    takes_turns: bool = eqx.field(static=True)
    is_turned: bool = eqx.field(static=True)

    def posed(self, instance: Any) -> Any:
        real, binary = self.ends
        unary = list(instance.unary)
        sent = jnp.matmul(unary[real], self.weights, precision="highest")
        unary[binary] = unary[binary] + sent
        return instance._replace(unary=tuple(unary))

    def start(self, start: Start, heard: Sequence[Heard]) -> PyTree:
        field, at = heard[self.ends[0]].field
        if start == "plain":
            # As printed: every message has precision 1 and its mean at v = 0.
            precisions = jnp.ones_like(self.weights)
            linears = -jnp.broadcast_to(at.origin[:, None], self.weights.shape)
        else:
            # No message in the ±1 form of the hidden units.
            precisions, linears = jnp.zeros_like(self.weights), self.weights / 2
        if self.takes_turns:
            return precisions, linears
        if start == "plain":
            return precisions, linears, linears * self.weights
        field = field._replace(linear=field.linear + linears.sum(1))
        return precisions, linears, self._sent(*self._cavities((precisions, linears), field, at))

    def is_silent(self, start: Start) -> bool:
        return False

    def update(self, messages: PyTree, heard: Sequence[Heard], damp: Damp) -> PyTree:
        real, binary = self.ends
        mean, variance = self._cavities(messages, *heard[real].field)
        *answers, old = messages
        new = self._sent(mean, variance)
        tilted = heard[binary].field[None, :] - old + new
        pairs = zip(answers, self._answers(tilted, mean, variance), strict=True)
        return *(damp(a, b) for a, b in pairs), damp(old, new)

    def turn(
        self, messages: PyTree, heard: Sequence[Heard], sender: int, damp: Damp
    ) -> tuple[PyTree, PyTree]:
        real, binary = self.ends
        mean, variance = self._cavities(messages, *heard[real].field)
        if sender == real:
            return messages, (*messages, self._sent(mean, variance))
        # All visible neighbours have just sent, so each sees the same belief of a hidden unit.
        answers = self._answers(heard[binary].field[None, :], mean, variance)
        kept = tuple(damp(a, b) for a, b in zip(messages, answers, strict=True))
        return kept, kept

    def added(self, sums: Sums, sent: PyTree, group: int) -> Sums:
        if group == self.ends[0]:
            return sums[0] + sent[0].sum(1), sums[1] + sent[1].sum(1)
        return sums if len(sent) == 2 else (sums[0], sums[1] + sent[2].sum(0))

    def statistic(
        self, messages: PyTree, heard: Sequence[Heard], temperature: Float[Array, ""]
    ) -> tuple[Float[Array, "_ _"]]:
        """The mean of $v_i h_j$. In the belief of their edge, $h_j$ is 1 with its probability, and
        then $z_i$ has the mean $\\mu + \\sigma^2 w$ of its cavity.
        """
        field, at = heard[self.ends[0]].field
        mean, variance = self._cavities(messages, field, at)
        shifted = mean + variance * self.weights
        hidden = jax.nn.sigmoid(heard[self.ends[1]].field)
        both = self.sigma[:, None] * (shifted + at.origin[:, None]) * hidden[None, :]
        return (both.T if self.is_turned else both,)

    def counts(self, group: int, size: int) -> tuple[Int[AnyArray, " n"], Int[AnyArray, " n"]]:
        return counts_of_pairs(self.weights.shape, self.ends, group, size)

    def _cavities(
        self, messages: PyTree, field: Normal, at: Given
    ) -> tuple[Float[Array, "visible hidden"], Float[Array, "visible hidden"]]:
        """Mean and variance of each visible unit without the message of each hidden one. An
        observed unit has its value and no variance, the limit of $\\epsilon = 0$ in the paper.
        """
        precision = field.precision[:, None] - messages[0]
        linear = field.linear[:, None] - messages[1]
        variance = at.free[:, None] / _guard(precision, self.least[:, None])
        mean = _mean(field.place[:, None], linear, precision, variance)
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
