"""Chains along a path of models, from independent units to the model whose log Z is asked for."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..models import AbstractPlainModel
from ..samplers import Trajectory, TrajectoryTempering
from ..samplers._base import start_chains
from ..samplers._sweep import sweep
from ..samplers._trajectory import parameters


# Steps of annealing between two neighbouring places, in one call.
LEG = 16
# Steps of the replicas between two records of energies, and records in one call.
THIN, RECORDS = 2, 32
CALL = THIN * RECORDS

States = list[Float[Array, "chains _"]]
Visited = list[Float[Array, "places chains _"]]


class Path(eqx.Module):
    """Models from independent units in the fields `base`, at position 0, to the model, at 1; or to
    the first of a trajectory, at 1, and through all others, one at each whole number.
    """

    model: AbstractPlainModel
    trajectory: Trajectory | None
    base: tuple[Float[Array, " _"], ...]

    @property
    def length(self) -> int:
        """The position of the last model."""
        return 1 if self.trajectory is None else len(self.trajectory)

    def at(self, position: Float[Array, ""]) -> Any:
        """The model at a position."""
        model = self.model
        if self.trajectory is not None:
            model = self.trajectory.interpolated(position - 1)
        return model.between(self.base, jnp.minimum(position, 1))


@eqx.filter_jit
def independent(path: Path, number: int, key: PRNGKeyArray) -> States:
    """Draws from the start of a path."""
    one, two = jax.random.split(key)
    first = path.at(jnp.zeros((), path.model.dtype))
    return sweep(first, first.encode(start_chains(first, number, one, None, None).units), two)


@eqx.filter_jit
def adapted(path: Path, layers: States) -> Path:
    """The path from independent units that have the means of some states, to the same model."""
    model: Any = path.model
    seen = [layers[k] for k in model.seen]
    return Path(model, None, model.independent(seen, None).unary())


@eqx.filter_jit
def tempered(
    path: Path, places: Float[Array, " places"], layers: Visited, key: PRNGKeyArray
) -> tuple[TrajectoryTempering, Any, Any]:
    """A sampler of the models at some places, the last of them, and the state of its chains, which
    start from the states `[places, chains, n]`.
    """
    end = path.at(places[-1])
    models = jax.vmap(lambda x: parameters(path.at(x)))(places)
    sampler = TrajectoryTempering(Trajectory.stacked(eqx.combine(models, end)))
    replicas = jax.vmap(end.decode)(layers)
    state = sampler.init(end, layers[0].shape[1], key=key)
    return sampler, end, eqx.tree_at(lambda s: s.replicas, state, replicas)


@eqx.filter_jit
def anneal(
    path: Path,
    places: Float[Array, " places"],
    ends: tuple[Float[Array, ""], Float[Array, ""]],
    layers: States,
    key: PRNGKeyArray,
) -> tuple[States, Float[Array, " chains"], Float[Array, " legs"], Visited]:
    """Moves chains along a part of a path.

    **Arguments:**

    - `places`: positions on the path; as much time is spent between any two neighbours.
    - `ends`: where the part begins and ends, as shares of the time.

    **Returns:**

    The states at the end; the log-weights that the chains collect; the length of each leg, which is
    the sum of the standard deviations of what its steps collect; and the states at each place if
    the part is the whole path.
    """
    number = places.shape[0]
    dtype = layers[0].dtype
    grid = jnp.linspace(0, 1, number, dtype=dtype)
    first, last = ends

    def position(step: Array) -> Float[Array, ""]:
        share = step.astype(dtype) / ((number - 1) * LEG)
        return jnp.interp(first + (last - first) * share, grid, places)

    def step(carry: Any, i: Array) -> Any:
        layers, total = carry
        old, new = path.at(position(i)), path.at(position(i + 1))
        gain = old.marginal_energies(layers) - new.marginal_energies(layers)
        layers = sweep(new, layers, jax.random.fold_in(key, i))
        return (layers, total + gain), gain.std()

    def leg(carry: Any, k: Array) -> Any:
        carry, spreads = jax.lax.scan(step, carry, k * LEG + jnp.arange(LEG, dtype=jnp.int32))
        return carry, (spreads.sum(), carry[0])

    start = list(layers), jnp.zeros(layers[0].shape[0], dtype)
    legs = jnp.arange(number - 1, dtype=jnp.int32)
    (end, total), (lengths, visited) = jax.lax.scan(leg, start, legs)
    every = [jnp.concatenate([x[None], y]) for x, y in zip(layers, visited, strict=True)]
    return end, total, lengths, every


@eqx.filter_jit
def temper(
    sampler: TrajectoryTempering, model: AbstractPlainModel, state: Any, key: PRNGKeyArray
) -> tuple[Any, Float[Array, "records pairs chains"], Float[Array, "records pairs chains"]]:
    """Steps of replicas. Returns the state after them and, for each pair of neighbours, the energy
    of the second model minus that of the first: of draws of the first, and of the second.
    """
    models = parameters(sampler.trajectory.models)

    def energies(arrays: PyTree, units: PyTree) -> Float[Array, " chains"]:
        one = eqx.combine(arrays, model)
        return one.marginal_energies(one.encode(units))

    def step(state: Any, key: PRNGKeyArray) -> Any:
        return sampler.step(model, state, key=key)[0], None

    def record(state: Any, key: PRNGKeyArray) -> Any:
        state, _ = jax.lax.scan(step, state, jax.random.split(key, THIN))

        def of_neighbours(shift: Array) -> Float[Array, "places chains"]:
            moved = jax.tree.map(lambda x: jnp.roll(x, shift, axis=0), state.replicas)
            return jax.vmap(energies)(models, moved)

        # A loop, so that energies are compiled once.
        below, own, above = jax.lax.map(of_neighbours, jnp.asarray([1, 0, -1]))
        return state, (below[1:] - own[:-1], own[1:] - above[:-1])

    state, (forward, backward) = jax.lax.scan(record, state, jax.random.split(key, RECORDS))
    return state, forward, backward


@eqx.filter_jit
def all_energies(
    trajectory: Trajectory, model: AbstractPlainModel, replicas: PyTree
) -> Float[Array, "models places chains"]:
    """The energies of the replicas of all places under the models of all places."""

    def of_model(arrays: PyTree) -> Float[Array, "places chains"]:
        one = eqx.combine(arrays, model)
        return jax.vmap(lambda units: one.marginal_energies(one.encode(units)))(replicas)

    return jax.lax.map(of_model, parameters(trajectory.models))
