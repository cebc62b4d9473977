import math
import warnings
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.special import stdtrit

from .. import _checks
from .._types import Key
from ..inference import BP
from ..models import AbstractPlainModel
from ..models._base import refuse, require_chains, require_single
from ..samplers import Trajectory
from ._bennett import bennett, mbar, standard_error
from ._path import adapted, all_energies, anneal, CALL, independent, LEG, Path, temper, tempered
from ._pmp_bound import pmp_bound


# The number of places on the path is one of these: as many as its length, as far as possible.
_PLACES = (32, 64, 128, 256)
# Estimates whose difference is larger than so many standard errors disagree.
_ERRORS = 4.0
# The largest number of draws of each chain whose energies under all models MBAR compares.
_LOOKS = 8


class Estimate(eqx.Module):
    """One of the estimates of [`LogPartition`][ebmlearn.estimate.LogPartition].

    - `log_partition`: the estimate.
    - `standard_error`: its standard error; NaN if it is none of sampling.
    """

    log_partition: float
    standard_error: float


class LogPartition(eqx.Module):
    """An estimate of log Z by [`ebmlearn.log_partition`][].

    - `log_partition`: the estimate, by Bennett's acceptance ratio.
    - `interval`: its interval of 95%. If other estimates disagree, it also contains them.
    - `estimates`: all estimates by name: `bennett` and `mbar` from tempered chains; `earlier`, that
      by Bennett of the steps before; `ais` and `reverse_ais`; and, for models that it takes,
      `bethe`, the value of belief propagation, and `pmp_bound`. The last two have errors of their
      own, so they are not compared with the others.
    - `disagree`: the names of estimates that differ from `log_partition` by more than four standard
      errors of the difference.
    - `stopped`: `"within"` if the interval is as small as it should be, else `"budget"`.
    - `steps`: the number of steps of the tempered chains, `places` of them along the path for each
      of `num_chains`.
    - `swaps`: the lowest share of swaps between neighbouring places.
    """

    log_partition: float
    interval: tuple[float, float]
    estimates: dict[str, Estimate]
    disagree: tuple[str, ...]
    stopped: Literal["within", "budget"]
    steps: int
    places: int
    num_chains: int
    swaps: float

    @property
    def quoted(self) -> float:
        """What likelihoods should be quoted with: the estimate, or the largest of those that
        disagree with it, so that no likelihood is too high.
        """
        others = [self.estimates[k].log_partition for k in self.disagree]
        return max([self.log_partition, *others])


def log_partition(
    model: AbstractPlainModel,
    *,
    key: Key,
    within: float = 0.1,
    trajectory: Trajectory | None = None,
    num_chains: int = 32,
    max_steps: int = 16384,
    beside: bool = True,
) -> LogPartition:
    """Estimates log Z with an interval of 95%.

    Chains with replicas along a path, from independent units to the model, swap neighbours as in
    [`ebmlearn.TrajectoryTempering`][]. The ratios of the normalisers of neighbours add up to log Z:
    by Bennett's acceptance ratio from all draws, and by MBAR from some draws far apart. Chains are
    independent, so the error follows from their differences, however slowly they mix. Annealing in
    both directions checks the result: forward from independent units, and in reverse from the
    tempered chains.

    Work doubles until the interval is small enough and the estimates agree, or `max_steps` are
    made. Only the last half counts. Doubling compiles nothing.

    !!! example

        ```python
        found = ebmlearn.log_partition(rbm, key=key, within=0.1)
        found.log_partition, found.interval, found.stopped
        ebmlearn.log_likelihood(rbm, data, found).mean()
        ```

    **Arguments:**

    - `model`: any model whose units have finitely many states: of layers, an
      [`ebmlearn.EnergyModel`][], or a graph. Condition a CRBM first.
    - `key`: a seed, or a key such as `jax.random.key(0)`.
    - `within`: half the width of the interval, in nats.
    - `trajectory`: models to pass on the way, such as those that `fit(..., trajectory=32)` records.
      By default the path leads from independent units, whose means are those of a first run,
      straight to the model.
    - `num_chains`: the number of independent chains.
    - `max_steps`: the largest number of steps of the tempered chains.
    - `beside`: whether to add the values of belief propagation and of [`ebmlearn.pmp_bound`][].
    """
    require_chains(model, "`log_partition`")
    if not model.finite:
        refuse(model, "have units of finitely many states for `log_partition`")
    require_single(model)
    _checks.number("within", within, 0, math.inf, "(0, inf)")
    _checks.count("num_chains", num_chains, 8)
    _checks.count("max_steps", max_steps, 2 * CALL)
    if trajectory is not None:
        if not isinstance(trajectory, Trajectory):
            got = _checks.describe(trajectory)
            raise TypeError(f"`trajectory` must be a `Trajectory`, got {got}.")
        trajectory = trajectory.ending(model)
    # GPUs round factors to 10 bits by default.
    with jax.default_matmul_precision("float32"):
        found = _estimated(model, trajectory, num_chains, within, max_steps, _checks.as_key(key))
        if beside:
            found.estimates.update(_beside(model, jax.random.fold_in(_checks.as_key(key), 1)))
    if found.disagree:
        warnings.warn(_warning(found), stacklevel=2)
    return found


def _estimated(
    model: Any,
    trajectory: Trajectory | None,
    num_chains: int,
    within: float,
    max_steps: int,
    key: PRNGKeyArray,
) -> LogPartition:
    one, two, three = jax.random.split(key, 3)
    run = _Run(model, trajectory, num_chains, one)
    # The half-width of the interval in standard errors, by Student's distribution.
    errors = float(stdtrit(num_chains - 1, 0.975))
    calls, earlier = 1, None
    while True:
        run.double(calls, jax.random.fold_in(two, calls))
        value, width = run.bennett.log_partition, errors * run.bennett.standard_error
        last = run.steps + 2 * calls * CALL > max_steps
        settled = earlier is not None and not _differ(earlier, run.bennett)
        if last or (settled and width <= within):
            others = run.checked(jax.random.fold_in(three, calls))
            if earlier is not None:
                others["earlier"] = earlier
            disagree = tuple(k for k, x in others.items() if _differ(x, run.bennett))
            values = [others[k].log_partition for k in disagree]
            low, high = min([value - width, *values]), max([value + width, *values])
            small = high - low <= 2 * within
            if small or last:
                return LogPartition(
                    log_partition=value,
                    interval=(low, high),
                    estimates={"bennett": run.bennett, **others},
                    disagree=disagree,
                    stopped="within" if small else "budget",
                    steps=run.steps,
                    places=len(run.places),
                    num_chains=num_chains,
                    swaps=run.swaps,
                )
        calls, earlier = 2 * calls, run.bennett


def _differ(one: Estimate, other: Estimate) -> bool:
    error = math.hypot(one.standard_error, other.standard_error)
    return abs(one.log_partition - other.log_partition) > _ERRORS * error + 1e-3


def _warning(found: LogPartition) -> str:
    chosen = [(k, found.estimates[k]) for k in ("bennett", *found.disagree)]
    named = [f"{k} {x.log_partition:.2f} ± {x.standard_error:.2f}" for k, x in chosen]
    return (
        f"Estimates of log Z disagree beyond their errors: {', '.join(named)}. Chains may not have"
        " mixed: raise `max_steps`, or pass a `trajectory`."
    )


class _Run:
    """The chains of an estimate, and what they have found so far."""

    def __init__(
        self,
        model: Any,
        trajectory: Trajectory | None,
        num_chains: int,
        key: PRNGKeyArray,
    ):
        self.num_chains, self.steps = num_chains, 0
        keys = jax.random.split(key, 7)
        if trajectory is None:
            base = tuple(jnp.zeros_like(x) for x in model.unary())
        else:
            base = trajectory[0].unary()
        self.path = Path(model, trajectory, base)
        self.places = jnp.linspace(0, self.path.length, _PLACES[0], dtype=model.dtype)
        if trajectory is None and model.layerwise:
            end, *_ = self._anneal(self._start(keys[0]), keys[1])
            self.path = adapted(self.path, end)
        _, _, lengths, _ = self._anneal(self._start(keys[2]), keys[3])
        self.places = _respaced(self.places, np.asarray(lengths))
        _, _, _, visited = self._anneal(self._start(keys[4]), keys[5])
        self.sampler, self.end, self.state = tempered(self.path, self.places, visited, keys[6])
        self.base = float(model.base_log_partition(self.path.base))

    def _start(self, key: PRNGKeyArray) -> list[Array]:
        return independent(self.path, self.num_chains, key)

    def _anneal(
        self, layers: list[Array], key: PRNGKeyArray, part: tuple[float, float] = (0.0, 1.0)
    ) -> Any:
        first, last = (jnp.asarray(x, self.places.dtype) for x in part)
        return anneal(self.path, self.places, (first, last), layers, key)

    def double(self, calls: int, key: PRNGKeyArray) -> None:
        """Runs the chains, and keeps what they find in place of what they found before."""
        self.calls, self.works, self.snapshots = calls, [], []
        for k in range(calls):
            own = jax.random.fold_in(key, k)
            self.state, forward, backward = temper(self.sampler, self.end, self.state, own)
            self.works.append((forward, backward))
            if (k + 1) % max(1, calls // _LOOKS) == 0:
                self.snapshots.append(self.state.replicas)
        self.steps += calls * CALL
        self.ratios, moves = bennett(self.works)
        self.bennett = Estimate(self.base + float(self.ratios.sum()), standard_error(moves.sum(0)))

    @property
    def swaps(self) -> float:
        """The lowest share of swaps between neighbours."""
        rates = [np.asarray(_rates(*both)) for both in self.works]
        return float(np.mean(rates, axis=0).min())

    def checked(self, key: PRNGKeyArray) -> dict[str, Estimate]:
        """Other estimates, from the last round and from annealing."""
        one, two, three = jax.random.split(key, 3)
        models = self.sampler.trajectory
        looks = [np.asarray(all_energies(models, self.end, x)) for x in self.snapshots]
        start = np.concatenate([[0], np.cumsum(self.ratios)])
        found, moves = mbar(np.stack(looks, axis=1), start)
        forward = self._annealed(self._start(one), two, 1)
        backward = self._annealed(self.end.encode(self.state.units), three, -1)
        return {
            "mbar": Estimate(self.base + float(found[-1]), standard_error(moves[-1])),
            "ais": _weighted(self.base, forward, 1),
            "reverse_ais": _weighted(self.base, backward, -1),
        }

    def _annealed(self, layers: list[Array], key: PRNGKeyArray, sign: int) -> np.ndarray:
        """The log-weights of chains along the path, in as many steps as the last round or more."""
        parts = -(-self.calls * CALL // (LEG * (len(self.places) - 1)))
        marks = np.linspace(0, 1, parts + 1)[::sign]
        total = np.zeros(self.num_chains)
        for k in range(parts):
            own = jax.random.fold_in(key, k)
            layers, gains, *_ = self._anneal(layers, own, (marks[k], marks[k + 1]))
            total += np.asarray(gains, np.float64)
        return total


@jax.jit
def _rates(
    forward: Float[Array, "records pairs chains"], backward: Float[Array, "records pairs chains"]
) -> Float[Array, " pairs"]:
    return jnp.exp(jnp.minimum(backward - forward, 0)).mean((0, 2))


def _respaced(places: Array, lengths: Float[np.ndarray, " legs"]) -> Array:
    """Places between which the path is equally long, at most about 1 if there is room."""
    # Never quite zero, so that the sum rises everywhere.
    sums = np.concatenate([[0], np.cumsum(np.maximum(lengths, 1e-3 * lengths.mean() + 1e-6))])
    number = next((n for n in _PLACES if n - 1 >= lengths.sum()), _PLACES[-1])
    found = np.interp(np.linspace(0, sums[-1], number), sums, np.asarray(places, np.float64))
    found[0], found[-1] = places[0], places[-1]
    return jnp.asarray(found, places.dtype)


def _weighted(base: float, log_weights: Float[np.ndarray, " chains"], sign: int) -> Estimate:
    """An estimate from weights. For few chains of very different weights the spread of the weights
    says too little: the mean plus half the variance of their logarithms, to which the estimate
    comes close if these are nearly normal, says how much is missing.
    """
    number = len(log_weights)
    top = log_weights.max()
    weights = np.exp(log_weights - top)
    log_mean = top + np.log(weights.mean())
    spread = weights.std(ddof=1) / weights.mean() / np.sqrt(number)
    missing = log_weights.mean() + log_weights.var(ddof=1) / 2 - log_mean
    return Estimate(base + sign * float(log_mean), math.hypot(spread, missing))


def _beside(model: Any, key: PRNGKeyArray) -> dict[str, Estimate]:
    """What inferences say, if they take the model."""
    inference = BP(200, damping=0.5, tol=1e-4)
    if model.kind not in inference.takes:
        return {}
    bethe = inference(model).log_partition
    bound = pmp_bound(model, key=key, num_samples=20)
    return {
        "bethe": Estimate(float(bethe), math.nan),
        "pmp_bound": Estimate(float(bound.log_partition), float(bound.standard_error)),
    }
