import math
import warnings
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from .._types import Key
from .._watch import Watch
from ..inference import BP
from ..models import AbstractPlainModel
from ..samplers import respaced, Trajectory
from ._bennett import bennett, mbar, standard_error, Work, Works
from ._path import (
    all_energies,
    anneal,
    CALL,
    Found,
    independent,
    LEG,
    log_mean,
    Path,
    Replicas,
    require_annealed,
    temper,
)
from ._pmp_bound import pmp_bound


# The number of places on the path is one of these: as many as its length, as far as possible.
_PLACES = (32, 64, 128, 256)
# Calls after which places are chosen anew, and how much refused swaps then weigh against noise.
_PILOT, _REFUSED = 4, 0.3
# Estimates whose difference is larger than so many standard errors disagree.
_ERRORS = 4.0
# Steps count once replicas have come from the first place to the last this often for each place, on
# average. Earlier ones remember the start: log Z of an RBM of MNIST is too low in them.
_TRIPS = 0.75
# Calls of annealing that lead to the first states of the replicas.
_FIRST = 4
# The fewest calls that there is an estimate from, and the calls of the first run.
_LEAST = 4
_BEFORE = 2 + _FIRST + _PILOT
# The number of draws of each place, from all chains, whose energies under all models MBAR compares.
_LOOKS = 512


class Estimate(eqx.Module):
    """One of the estimates of [`LogPartition`][ebmlearn.estimate.LogPartition].

    !!! example

        ```python
        found = ebmlearn.log_partition(ebmlearn.RBM.init(16, 8))
        found.estimates["ais"].log_partition, found.estimates["ais"].standard_error
        ```

    **Fields:**

    - `log_partition`: the estimate.
    - `standard_error`: its standard error; NaN if it is none of sampling.
    """

    log_partition: float
    standard_error: float


class LogPartition(eqx.Module):
    """An estimate of log Z by [`ebmlearn.log_partition`][].

    !!! example

        ```python
        found = ebmlearn.log_partition(ebmlearn.RBM.init(16, 8))
        found.log_partition, found.interval, found.disagree
        ```

    **Fields:**

    - `log_partition`: the estimate, by Bennett's acceptance ratio.
    - `interval`: its interval of 95%. If other estimates disagree, it also contains them.
    - `estimates`: all estimates by name: `bennett` and `mbar` from tempered chains; `earlier`, that
      by Bennett of the first half of the steps that count; `ais` and `reverse_ais`; and, for models
      that they take, `bethe`, the value of belief propagation, NaN if that did not converge, and
      `pmp_bound`. The last two have errors of their own, so they are not compared with the others.
    - `disagree`: the names of estimates that differ from `log_partition` by more than four standard
      errors of the difference; `earlier` if it differs so from that of the second half.
    - `stopped`: `"within"` if chains have mixed and the interval is as small as it should be, else
      `"budget"` if all steps are made, or `"seconds"` if the time was over.
    - `steps`: how many steps each replica made after the first run, which chooses the places.
    - `places`, `num_chains`: the number of replicas of each chain, and the number of chains.
    - `swaps`: the lowest share of swaps between neighbouring places.
    - `trips`: how often a replica came from the start of the path to the model, a mean over chains.
    """

    log_partition: float
    interval: tuple[float, float]
    estimates: dict[str, Estimate]
    disagree: tuple[str, ...]
    stopped: Literal["within", "budget", "seconds"]
    steps: int
    places: int
    num_chains: int
    swaps: float
    trips: float

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
    key: Key = 0,
    within: float = 0.1,
    trajectory: Trajectory | None = None,
    num_chains: int = 32,
    max_steps: int = 16384,
    beside: bool = True,
    seconds: float | int | None = None,
    progress: bool = True,
) -> LogPartition:
    """Estimates log Z with an interval of 95%.

    Chains with replicas along a path, from independent units to the model, swap neighbours as in
    [`ebmlearn.TrajectoryTempering`][]. The ratios of the normalisers of neighbours add up to log Z:
    by Bennett's acceptance ratio from all draws, and by MBAR from some draws far apart. Chains are
    independent, so the error follows from their differences, however slowly they mix. A first run
    shows where on the path they differ most, and more replicas are put there. Annealing in both
    directions checks the result: forward from independent units, and in reverse from the tempered
    chains.

    Work grows until the interval is small enough and the estimates agree, or `max_steps` are made.
    Steps count once replicas have come from independent units to the model 0.75 times each, on
    average. More steps need no new compilation.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        data = ebmlearn.sample(rbm, ebmlearn.Gibbs(), 100).visible
        found = ebmlearn.log_partition(rbm, within=0.1)
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
    - `max_steps`: the largest number of steps of the tempered chains, at least 256. The first run
      has 256 more.
    - `beside`: whether to add the values of belief propagation and of [`ebmlearn.pmp_bound`][].
    - `seconds`: return the estimate and the interval that are found in this time, compilation
      included. The first run and 256 steps are made in any case, and annealing checks the result
      after that; `bethe` and `pmp_bound` are left out then.
    - `progress`: whether to show a progress bar in a terminal or a notebook, if the call takes more
      than two seconds.
    """
    require_annealed(model, "`log_partition`")
    _checks.number("within", within, 0, math.inf, "(0, inf)")
    _checks.count("num_chains", num_chains, 8)
    _checks.count("max_steps", max_steps, 4 * CALL)
    if trajectory is not None:
        _checks.instance("trajectory", trajectory, Trajectory, "a `Trajectory`")
        trajectory = trajectory.ending(model)
    one, two, three = jax.random.split(_checks.as_key(key), 3)
    most = max_steps // CALL
    name = "log_partition"
    with Watch(name, _BEFORE + most, seconds, progress=progress, unit="rounds") as watch:
        run = _Run(model, trajectory, num_chains, one, watch)
        found = _estimated(run, within, most, two, three)
        if beside and not watch.over:
            # GPUs round factors to 10 bits by default.
            with jax.default_matmul_precision("float32"):
                found.estimates.update(_beside(model, jax.random.fold_in(_checks.as_key(key), 1)))
    if found.disagree:
        warnings.warn(_warning(found), stacklevel=2)
    return found


def _estimated(
    run: "_Run", within: float, most: int, two: PRNGKeyArray, three: PRNGKeyArray
) -> LogPartition:
    # The half-width of the interval in standard errors, by Student's distribution.
    from scipy.special import stdtrit  # here, since it takes long to import

    errors = float(stdtrit(run.num_chains - 1, 0.975))
    calls = _LEAST
    while True:
        run.extend(calls, two)
        calls = len(run.found)
        last, wanted = calls == most or run.watch.over, math.inf
        if last or run.mixed:
            best = run.bennett(run.burn_in, calls)
            width = errors * best.standard_error
            # The variance falls with the number of steps that count: as many as should be enough.
            wanted = run.burn_in + 1.1 * min(10, width / within) ** 2 * (calls - run.burn_in)
            expected = _BEFORE + max(calls, min(math.ceil(wanted), most))
            run.watch.count(0, expected, log_Z=f"{best.log_partition:.2f} ± {width:.2g}")
            if last or width <= within:
                others = run.checked(jax.random.fold_in(three, calls))
                middle = (run.burn_in + calls) // 2
                others["earlier"] = run.bennett(run.burn_in, middle)
                against = {"earlier": run.bennett(middle, calls)}
                disagree = [k for k, x in others.items() if _differ(x, against.get(k, best))]
                values = [others[k].log_partition for k in disagree]
                low = min([best.log_partition - width, *values])
                high = max([best.log_partition + width, *values])
                small = run.mixed and high - low <= 2 * within
                if small or last:
                    return LogPartition(
                        log_partition=best.log_partition,
                        interval=(low, high),
                        estimates={"bennett": best, **others},
                        disagree=tuple(disagree),
                        stopped="within" if small else "budget" if calls == most else "seconds",
                        steps=calls * CALL,
                        places=len(run.places),
                        num_chains=run.num_chains,
                        swaps=run.swaps,
                        trips=run.trips,
                    )
        calls = min(math.ceil(min(max(wanted, 1.1 * calls), 1.3 * calls)), most)


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
    """The chains of an estimate, and their results so far."""

    def __init__(
        self,
        model: AbstractPlainModel,
        trajectory: Trajectory | None,
        num_chains: int,
        key: PRNGKeyArray,
        watch: Watch,
    ):
        self.num_chains, self.watch = num_chains, watch
        keys = jax.random.split(key, 7)
        # From uniform units straight to the model, or from those of a trajectory through it.
        base = tuple(jnp.zeros_like(x) for x in model.unary())
        base = base if trajectory is None else trajectory[0].unary()
        self.path = Path(model, base, trajectory)
        self.places = jnp.linspace(0, self.path.length, _PLACES[0], dtype=model.dtype)
        end, *_ = self._anneal(self._start(keys[0]), keys[1])
        watch.count(1)
        self.path = self.path.adapted([x[0] for x in end])
        self.base = float(self.path.start())
        _, _, lengths, _ = self._anneal(self._start(keys[2]), keys[3])
        watch.count(1)
        lengths = np.asarray(lengths)[:, 0]
        number = next((n for n in _PLACES if n - 1 >= lengths.sum()), _PLACES[-1])
        self._place(_respaced(self.places, lengths, number))
        self.replicas = Replicas(self._visited(keys[4], keys[5]))
        self.extend(_PILOT, keys[6], least=1)
        places = _respaced(self.places, self._noise(), number)
        nearest = np.abs(np.subtract.outer(places, self.places)).argmin(1)
        self.replicas = jax.tree.map(lambda x: x[nearest], self.replicas)
        self._place(places)

    def _place(self, places: Array) -> None:
        """Sets the places, and forgets what was found at the former ones."""
        self.places = places
        self.found, self.looks = [], {}
        self.stride = 1
        self.ratios: Any = None

    def _start(self, key: PRNGKeyArray) -> list[Array]:
        return independent(self.path, self.num_chains, *jax.random.split(key))

    def _anneal(self, layers: list[Array], key: PRNGKeyArray, ends: Any = ((0, 1),)) -> Any:
        ends = jnp.asarray(ends, self.places.dtype)
        return jax.block_until_ready(anneal(self.path, self.places, ends, layers, key))

    def _visited(self, one: PRNGKeyArray, two: PRNGKeyArray) -> list[Array]:
        """States at all places, from annealing."""
        layers = self._start(one)
        parts, marks = [layers], np.linspace(0, 1, _FIRST + 1)
        for k in range(_FIRST):
            own = jax.random.fold_in(two, k)
            layers, _, _, visited = self._anneal(layers, own, marks[None, k : k + 2])
            parts.append([x[:, 0] for x in visited])
            self.watch.count(1)
        return [jnp.concatenate(x)[::_FIRST] for x in zip(*parts, strict=True)]

    def _noise(self) -> Float[np.ndarray, " pairs"]:
        """A weight for each pair of neighbours: the higher, the more places belong between them.
        The ratios that chains find differ most where chains move slowly, and more places there
        reduce the error. Refused swaps count too, so that replicas keep moving everywhere.
        """
        _, moves = bennett(_works(self.found))
        return _shares(moves.std(1)) + _REFUSED * _shares(1 - _swaps(self.found))

    def extend(self, calls: int, key: PRNGKeyArray, least: int = _LEAST) -> None:
        """Runs the chains until so many calls are made, or the time is over after the `least`
        calls. The burn-in does not count. If chains have not mixed, it is the first half.
        """
        made = len(self.found)
        for k in self.watch.each(range(made, calls), least - made):
            own = jax.random.fold_in(key, k)
            self.replicas, found = temper(self.path, self.places, self.replicas, own)
            # Else all calls would be made before the time is asked for.
            self.found.append(jax.block_until_ready(found))
            self._look(k + 1)
        calls = len(self.found)
        trips = np.cumsum(np.asarray(jax.device_get([x.trips for x in self.found])))
        self.trips = float(trips[-1])
        self.burn_in = int((trips < _TRIPS * len(self.places)).sum()) + 1
        self.mixed = self.burn_in <= calls - 2
        if not self.mixed:
            self.burn_in = calls // 2

    def bennett(self, first: int, last: int) -> Estimate:
        """By Bennett's acceptance ratio, from some calls."""
        self.ratios, moves = bennett(_works(self.found[first:last]), self.ratios)
        return self._estimate(self.ratios.sum(), standard_error(moves.sum(0)))

    def _estimate(self, ratio: float, error: float) -> Estimate:
        """An estimate from a log-ratio of the last model of the path to the first."""
        return Estimate(self.base + float(ratio), error)

    def _look(self, call: int) -> None:
        """Keeps the states after some calls for MBAR, evenly spaced and not too many."""
        if call % self.stride == 0:
            self.looks[call] = self.replicas.layers
        if len(self.looks) > max(2, _LOOKS // self.num_chains):
            self.stride *= 2
            self.looks = {k: x for k, x in self.looks.items() if k % self.stride == 0}

    @property
    def swaps(self) -> float:
        """The lowest share of swaps between neighbours."""
        return float(_swaps(self.found[self.burn_in :]).min())

    def checked(self, key: PRNGKeyArray) -> dict[str, Estimate]:
        """Other estimates, from the states that were kept and from annealing."""
        one, two = jax.random.split(key)
        looks = [
            all_energies(self.path, self.places, x)
            for k, x in self.looks.items()
            if k > self.burn_in or k == max(self.looks)
        ]
        start = np.concatenate([[0], np.cumsum(self.ratios)])
        found, moves = mbar(np.stack(jax.device_get(looks), axis=1), start)
        forward, backward = self._annealed(one, two)
        return {
            "mbar": self._estimate(found[-1], standard_error(moves[-1])),
            "ais": self._estimate(*_weighted(forward)),
            "reverse_ais": self._estimate(*_weighted(backward, -1)),
        }

    def _annealed(self, one: PRNGKeyArray, two: PRNGKeyArray) -> Float[np.ndarray, "2 chains"]:
        """The log-weights of chains along the path, forward from independent units and back from
        the replicas of the model, in as many steps as those that count, or more.
        """
        steps = (len(self.found) - self.burn_in) * CALL
        parts = -(-steps // (LEG * (len(self.places) - 1)))
        marks = np.linspace(0, 1, parts + 1)
        layers = [
            jnp.concatenate([x, y[-1:]])
            for x, y in zip(self._start(one), self.replicas.layers, strict=True)
        ]
        gains = []
        for k in range(parts):
            ends = marks[k : k + 2], 1 - marks[k : k + 2]
            layers, more, *_ = self._anneal(layers, jax.random.fold_in(two, k), ends)
            gains.append(more)
        return np.asarray(jax.device_get(gains), np.float64).sum(0)


def _works(found: list[Found]) -> Works:
    return [(x.forward, x.backward) for x in found]


def _swaps(found: list[Found]) -> Float[np.ndarray, " pairs"]:
    """The shares of swaps between neighbours."""
    rates = jax.device_get([_rates(*both) for both in _works(found)])
    return np.asarray(rates, np.float64).mean(0)


@jax.jit
def _rates(forward: Work, backward: Work) -> Float[Array, " pairs"]:
    return jnp.exp(jnp.minimum(backward - forward, 0)).mean((0, 2))


def _shares(x: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    return x / max(x.sum(), 1e-30)


def _respaced(places: Array, lengths: Float[np.ndarray, " legs"], number: int) -> Array:
    """So many places, between which the path is equally long."""
    # Never quite zero, so that the sum rises everywhere.
    lengths = np.maximum(lengths, 1e-3 * lengths.mean() + 1e-6)
    return jnp.asarray(respaced(np.asarray(places, np.float64), lengths, number), places.dtype)


def _weighted(log_weights: Float[np.ndarray, " chains"], sign: int = 1) -> tuple[float, float]:
    """A log-ratio from weights, and its standard error. For few chains of very different weights
    the spread of the weights says too little: the mean plus half the variance of their logarithms,
    to which the estimate comes close if these are nearly normal, says how much is missing.
    """
    mean, error = map(float, log_mean(jnp.asarray(log_weights)))
    missing = log_weights.mean() + log_weights.var(ddof=1) / 2 - mean
    return sign * mean, math.hypot(error, missing)


def _beside(model: AbstractPlainModel, key: PRNGKeyArray) -> dict[str, Estimate]:
    """What inferences say, if they take the model."""
    inference = BP(200, damping=0.5, tol=1e-4)
    if model.turns is not None or not inference.accepts(model):
        return {}
    beliefs = inference(model)
    bethe = float(beliefs.log_partition) if bool(beliefs.converged) else math.nan
    bound = pmp_bound(model, key=key, num_samples=20)
    return {
        "bethe": Estimate(bethe, math.nan),
        "pmp_bound": Estimate(float(bound.log_partition), float(bound.standard_error)),
    }
