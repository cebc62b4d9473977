"""Chains along a path of models, from independent units to the model whose log Z is asked for."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from ..models import (
    AbstractPlainModel,
    marginal_energies,
    refuse,
    require_chains,
    require_single,
)
from ..samplers import (
    exchanged,
    is_tried,
    moved,
    on_each,
    parameters,
    risen,
    start_chains,
    sweep,
    Trajectory,
)


# Steps of annealing between two neighbouring places, in one call.
LEG = 16
# Steps of the replicas between two records of energies, and records in one call.
THIN, RECORDS = 2, 32
CALL = THIN * RECORDS
# Fields are divided by the inverse temperature. They come out the same at 0 and at this one.
_LEAST = 1e-20

States = list[Float[Array, "places chains _"]]
Energies = Float[Array, "places chains"]
Parts = list[Float[Array, "parts chains _"]]
Source = Int[Array, "places chains"]


class AbstractPlaces(eqx.Module):
    """The models at some places of a path. Arrays of states have an axis of places."""

    @abc.abstractmethod
    def energies(self, layers: States) -> Energies:
        """The energies of states, each under the model of its place; layers `summed` are summed
        out.
        """

    @abc.abstractmethod
    def swept(self, layers: States, key: PRNGKeyArray, source: Source | None = None) -> States:
        """The states after a sweep of Gibbs sampling. With `source` they are exchanged first: it
        says from which place each place takes its states.
        """


class _Tempered(AbstractPlaces):
    """One model at several inverse temperatures, each row of states at its own. What units send to
    each other is multiplied by the temperature afterwards, so that the products of matrices are the
    same for all temperatures and done once. For the same reason an exchange first moves the
    temperatures, and after the sweep the states.
    """

    model: AbstractPlainModel
    base: tuple[Float[Array, " _"], ...]
    betas: Float[Array, " places"]

    def energies(self, layers: States) -> Energies:
        rows, beta, flat = self._rows(layers)
        # GPUs round factors to 10 bits by default.
        with jax.default_matmul_precision("float32"):
            return marginal_energies(rows, flat, beta).reshape(layers[0].shape[:2])

    def swept(self, layers: States, key: PRNGKeyArray, source: Source | None = None) -> States:
        rows, beta, flat = self._rows(layers, source)
        with jax.default_matmul_precision("float32"):
            found = sweep(rows, flat, key, beta)
        found = [x.reshape(old.shape) for x, old in zip(found, layers, strict=True)]
        return found if source is None else [moved(x, source) for x in found]

    def _rows(
        self, layers: States, source: Source | None = None
    ) -> tuple[Any, Float[Array, "rows 1"], list[Array]]:
        betas = jnp.broadcast_to(self.betas[:, None], layers[0].shape[:2])
        if source is not None:
            # Neighbours swap, so the place that a state comes from is also where it would go.
            betas = moved(betas, source)
        beta = jnp.maximum(betas, _LEAST).reshape(-1, 1)
        biases = tuple(
            end[None, :] + (1 / beta - 1) * start[None, :]
            for start, end in zip(self.base, self.model.unary(), strict=True)
        )
        return self.model.with_unary(biases), beta, [_flat(x) for x in layers]


def _flat(x: Float[Array, "places chains n"]) -> Float[Array, "rows n"]:
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


class _Stacked(AbstractPlaces):
    """Any models of one shape."""

    models: Any
    shape: AbstractPlainModel

    def energies(self, layers: States) -> Energies:
        return self._on_each(marginal_energies, layers)

    def swept(self, layers: States, key: PRNGKeyArray, source: Source | None = None) -> States:
        if source is not None:
            layers = [moved(x, source) for x in layers]
        return self._on_each(sweep, layers, jax.random.split(key, layers[0].shape[0]))

    def _on_each(self, function: Callable[..., Any], *arrays: Any) -> Any:
        # GPUs round factors to 10 bits by default.
        with jax.default_matmul_precision("float32"):
            return on_each(function, self.models, self.shape, *arrays)


class Path(eqx.Module):
    """Models from independent units in the fields `base`, at position 0, to the last one, at
    `length`: the path $p_0^{1-\\beta} p^\\beta$ to the model, at 1; or to the first of a
    trajectory, and on through all others, one at each whole number.
    """

    model: AbstractPlainModel
    base: tuple[Float[Array, " _"], ...]
    trajectory: Trajectory | None = None

    @property
    def length(self) -> int:
        """The position of the last model."""
        return 1 if self.trajectory is None else len(self.trajectory)

    @property
    def is_straight(self) -> bool:
        """Whether the models are one model of layers at several temperatures."""
        return self.model.turns is None and self.trajectory is None

    def at(self, positions: Float[Array, " places"]) -> AbstractPlaces:
        """The models at some positions."""
        if self.is_straight:
            return _Tempered(self.model, self.base, positions)  # pyright: ignore
        models = jax.vmap(lambda x: parameters(self._one(x)))(positions)
        return _Stacked(models, self._one(positions[0]))

    def _one(self, position: Float[Array, ""]) -> AbstractPlainModel:
        model = self.model
        if self.trajectory is not None:
            model = self.trajectory.interpolated(position - 1)
        beta = jnp.minimum(position, 1)
        tempered = model.tempered(beta)
        if model.grouped:
            return tempered
        biases = [
            (1 - beta) * start + beta * end
            for start, end in zip(self.base, model.unary(), strict=True)
        ]
        return tempered.with_unary(tuple(biases))

    def start(self) -> Float[Array, ""]:
        """Log Z of the first model: independent units in the fields `base`; of a graph, all
        possible configurations are equally likely.
        """
        if self.model.grouped and self.model.turns is not None:
            return self.model.turns.log_number()
        pairs = zip(self.model.layers, self.base, strict=True)
        return jnp.stack([units.log_normaliser(bias) for units, bias in pairs]).sum()

    def adapted(self, layers: list[Float[Array, "chains _"]]) -> "Path":
        """The path to the same model from independent units that have the means of some of its
        states, if it is straight; else the path itself.
        """
        if not self.is_straight:
            return self
        fields = [
            units.natural_of(x.sum(0), x.shape[0])
            for units, x in zip(self.model.layers, layers, strict=True)
        ]
        return Path(self.model, tuple(fields))


def require_annealed(model: AbstractPlainModel, what: str) -> None:
    """Raises an error unless chains along a path to a model can find its log Z."""
    if not require_chains(model, what).finite:
        refuse(model, f"have units of finitely many states for {what}")
    require_single(model)


@eqx.filter_jit
def independent(path: Path, number: int, one: PRNGKeyArray, two: PRNGKeyArray) -> States:
    """Draws from the start of a path, by a sweep: `one` is for the chains, `two` for the sweep."""
    start = path.model.encode(start_chains(path.model, number, one, None, None).units)
    first = path.at(jnp.zeros(1, path.model.dtype))
    return first.swept([x[None] for x in start], two)


def walk(
    path: Path,
    positions: Float[Array, "positions parts"],
    layers: Parts,
    keys: Shaped[PRNGKeyArray, " steps"],
) -> tuple[Parts, Float[Array, "parts chains"], Float[Array, " parts"]]:
    """Moves chains along some parts of a path at the same time, by a step between any two
    neighbouring positions. Returns the states at the ends; the log-weights that the chains collect;
    and the lengths of the parts, which are the sums of the standard deviations of what their steps
    collect.
    """

    def step(carry: Any, now: Any) -> Any:
        layers, total = carry
        before, after, key = now
        old, new = path.at(before), path.at(after)
        gain = old.energies(layers) - new.energies(layers)
        return (new.swept(layers, key), total + gain), gain.std(1)

    start = list(layers), jnp.zeros(layers[0].shape[:2], layers[0].dtype)
    (end, total), spreads = jax.lax.scan(step, start, (positions[:-1], positions[1:], keys))
    return end, total, spreads.sum(0)


@eqx.filter_jit
def anneal(
    path: Path,
    places: Float[Array, " places"],
    ends: Float[Array, "parts 2"],
    layers: Parts,
    key: PRNGKeyArray,
) -> tuple[
    Parts,
    Float[Array, "parts chains"],
    Float[Array, "legs parts"],
    list[Float[Array, "legs parts chains _"]],
]:
    """Moves chains along some parts of a path at the same time.

    **Arguments:**

    - `places`: positions on the path; as much time is spent between any two neighbours.
    - `ends`: where each part begins and ends, as shares of the time.
    - `layers`: states at the beginnings of the parts.

    **Returns:**

    As `walk`, but with the length of each leg; and the states after each leg, of shape
    `[legs, parts, chains, n]`.
    """
    legs = places.shape[0] - 1
    dtype = layers[0].dtype
    # All positions at once: a look-up in each step would take longer than the step.
    shares = jnp.linspace(0, 1, legs * LEG + 1, dtype=dtype)[:, None]
    shares = ends[None, :, 0] * (1 - shares) + ends[None, :, 1] * shares
    steps = jnp.interp(shares, jnp.linspace(0, 1, legs + 1, dtype=dtype), places)
    inner = steps[:-1].reshape(legs, LEG, -1)
    steps = jnp.concatenate([inner, steps[LEG::LEG, None]], axis=1)

    def leg(carry: Any, now: Any) -> Any:
        layers, total = carry
        layers, gain, length = walk(path, now[0], layers, now[1])
        return (layers, total + gain), (length, layers)

    start = list(layers), jnp.zeros(layers[0].shape[:2], dtype)
    keys = jax.random.split(key, (legs, LEG))
    (end, total), (lengths, visited) = jax.lax.scan(leg, start, (steps, keys))
    return end, total, lengths, visited


class Replicas(eqx.Module):
    """The states at all places, and whether each has been at the first place since it was at the
    last one.
    """

    layers: States
    rising: Bool[Array, "places chains"]

    def __init__(self, layers: States):
        self.layers, self.rising = layers, jnp.zeros(layers[0].shape[:2], bool)


class Found(NamedTuple):
    """What replicas find in a call.

    - `forward`, `backward`: for each pair of neighbours, the energy of the second model minus that
      of the first, of draws of the first and of the second.
    - `trips`: how often a replica came from the first place to the last, on average per chain.
    """

    forward: Float[Array, "records pairs chains"]
    backward: Float[Array, "records pairs chains"]
    trips: Float[Array, ""]


@eqx.filter_jit
def temper(
    path: Path, places: Float[Array, " places"], replicas: Replicas, key: PRNGKeyArray
) -> tuple[Replicas, Found]:
    """Steps of replicas at all places, each of an exchange of neighbours and a sweep."""
    own, above, below = (path.at(jnp.roll(places, k)) for k in (0, -1, 1))

    def step(replicas: Replicas, now: tuple[Array, PRNGKeyArray]) -> Any:
        count, key = now
        one, two = jax.random.split(key)
        layers = replicas.layers
        energies = own.energies(layers)
        forward = above.energies(layers)[:-1] - energies[:-1]
        backward = energies[1:] - below.energies(layers)[1:]
        tried = is_tried(places.shape[0] - 1, count)
        _, source = exchanged(backward - forward, tried, one)
        layers = own.swept(layers, two, source)
        rising, arrived = risen(replicas.rising, source)
        new = eqx.tree_at(lambda r: (r.layers, r.rising), replicas, (layers, rising))
        return new, (forward, backward, arrived)

    def record(replicas: Replicas, key: PRNGKeyArray) -> Any:
        steps = jnp.arange(THIN, dtype=jnp.int32), jax.random.split(key, THIN)
        replicas, (forward, backward, arrived) = jax.lax.scan(step, replicas, steps)
        return replicas, (forward[-1], backward[-1], arrived.sum(0))

    keys = jax.random.split(key, RECORDS)
    replicas, (forward, backward, trips) = jax.lax.scan(record, replicas, keys)
    return replicas, Found(forward, backward, trips.sum(0).astype(forward.dtype).mean())


@eqx.filter_jit
def all_energies(
    path: Path, places: Float[Array, " places"], layers: States
) -> Float[Array, "models places chains"]:
    """The energies of the replicas of all places under the models of all places."""
    rows = [_flat(x)[None] for x in layers]

    def of_model(place: Float[Array, ""]) -> Energies:
        return path.at(place[None]).energies(rows).reshape(layers[0].shape[:2])

    return jax.lax.map(of_model, places)


def log_mean(log_weights: Float[Array, " chains"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The logarithm of the mean weight of chains, and its standard error from the spread of the
    weights: NaN for a single chain.
    """
    number = jnp.asarray(len(log_weights), log_weights.dtype)
    mean = jax.nn.logsumexp(log_weights) - jnp.log(number)
    return mean, jnp.exp(log_weights - mean).std(ddof=1) / jnp.sqrt(number)
