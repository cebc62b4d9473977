import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks, messages
from .._sentinels import EXCLUDED
from .._types import AnyArray
from ..inference import BP, is_off, NUMBER, settings_of
from ..messages import Engine
from ..models import (
    AbstractModel,
    AbstractPlainModel,
    chains,
    each,
    held_at,
    Instance,
    places_of,
    refuse,
    require_model,
)
from ..units import _random, AbstractUnits, Binary
from ._base import AbstractSampler


@dataclasses.dataclass(frozen=True)
class Group:
    """Stands for a group of a graph by its hash, and so does not keep it alive."""

    number: int

    def __hash__(self) -> int:
        return self.number


def _as_groups(groups: Any) -> tuple[Hashable, ...] | None:
    """Names of layers, and what stands for groups of a graph."""
    if groups is None:
        return None
    if not isinstance(groups, (list, tuple)) or not groups:
        raise TypeError(
            "`perturb` must be a list of groups of variables, or of names of layers, got"
            f" {_checks.describe(groups)}."
        )
    return tuple(x if isinstance(x, (str, Group)) else Group(hash(x)) for x in groups)


class _Turn(eqx.Module):
    """The groups that a run of max-product holds, and which of their units."""

    groups: tuple[Hashable, ...] = eqx.field(static=True)
    masks: tuple[Bool[AnyArray, "..."], ...]


def _as_turns(turns: Any) -> tuple[_Turn, ...]:
    wrong = None if isinstance(turns, (list, tuple)) else turns
    out = []
    for turn in () if wrong is not None else turns:
        if isinstance(turn, _Turn):
            out.append(turn)
            continue
        named = turn if isinstance(turn, Mapping) and turn else {}
        masks = [x if hasattr(x, "dtype") else np.asarray(x) for x in named.values()]
        if not named or any(x.dtype != np.bool_ for x in masks):
            wrong = turn
            break
        out.append(_Turn(_as_groups(list(named)) or (), tuple(masks)))
    if wrong is not None:
        raise TypeError(
            "`turns` must be a list of dictionaries from groups of variables, or from names of"
            " layers, to booleans, True for units that a turn holds, got"
            f" {_checks.describe(wrong)}."
        )
    return tuple(out)


class PMPState(eqx.Module):
    """Samples: `units` and `clamped` as for other samplers. `noise` and `messages` are kept where
    some of the noise stays.

    !!! example

        ```python
        sampler = ebmlearn.PMP(50, renewal=0.5)
        state = sampler.init(ebmlearn.RBM.init(16, 8), num_chains=10, key=jax.random.key(0))
        state.units.visible.shape  # (10, 16)
        ```

    **Fields:**

    - `units`: the states of all units.
    - `clamped`: which units never change, or None.
    - `noise`, `messages`: what the next step continues from, or None.
    """

    units: PyTree
    clamped: PyTree
    noise: PyTree
    messages: PyTree


class PMPInfo(NamedTuple):
    """What a step of [`ebmlearn.PMP`][] says of each sample.

    !!! example

        ```python
        _, info = ebmlearn.sample_with_info(ebmlearn.RBM.init(16, 8), ebmlearn.PMP(50), 1000)
        info.perturbed.mean(), info.peak.mean()
        ```

    **Fields:**

    - `energy`: its energy without the perturbation; infinite if it violates a factor, for instance
      because clamped units contradict it. A variable that an OR, AND or pool factor, or a list of
      configurations, determines is computed from the others, so these factors hold even if
      max-product has not converged. There are three exceptions: the variable is clamped, a pool
      has two choices, or two factors determine the same variable.
    - `perturbed`: its log-potential in the perturbed model. If all samples are maxima, the mean is
      an upper bound of log Z: see [`ebmlearn.pmp_bound`][].
    - `peak`: whether no change of a single variable raises `perturbed`.
    - `residual`: the largest change of a probability in the last sweep, of the run that found the
      sample if there are `turns`.
    """

    energy: Float[Array, " samples"]
    perturbed: Float[Array, " samples"]
    peak: Bool[Array, " samples"]
    residual: Float[Array, " samples"]


class PMP(AbstractSampler):
    """Perturb-and-max-product (Lázaro-Gredilla, Dedieu & George 2021, Algorithm 1). It adds Gumbel
    noise to every state of every variable and takes the maximum of the perturbed model, found by
    damped max-product, as a sample. Samples are independent of each other.

    The samples follow the distribution of the model exactly if there are no factors, and
    approximately otherwise. [`ebmlearn.PMPLearner`][] learns parameters for which samples of this
    sampler look like the data.

    !!! example

        ```python
        rbm = ebmlearn.RBM.init(16, 8)
        samples, info = ebmlearn.sample_with_info(rbm, ebmlearn.PMP(100), 1000)
        info.peak.mean()  # the share of samples that no flip of a single unit improves
        ```

    It also samples given some units, here the visible ones:

        ```python
        v = samples.visible
        start, clamped = ebmlearn.Layers(v, None), ebmlearn.Layers(v == v, None)
        ebmlearn.sample(rbm, ebmlearn.PMP(100), len(v), start=start, clamped=clamped).hidden
        ```

    **Arguments:**

    - `iterations`: the number of sweeps.
    - `damping`: the share of its old value that a message keeps, in (0, 1).
    - `chunk`: the number of samples that are processed at once; the default fits the device, as for
      [`ebmlearn.BP`][].
    - `renewal`: the share of variables whose noise is drawn anew in a step. Below 1, messages go on
      from the step before, so that few sweeps may do in training, and the samples of one step
      depend on those of the last.
    - `perturb`: the groups of variables of a graph that get noise, `[S, W]`, or the layers of a
      model, `["visible"]`. All, if not given. What gets none is at its maximum given the rest.
    - `turns`: for each further run of max-product, which units keep the states found so far: a list
      of dictionaries from groups or names of layers to booleans, `[{W: True}, {S: True}]`. A run
      replaces a sample only if that raises the log-potential in the perturbed model. Use turns if
      max-product does not find good states of all variables at once, as in blind deconvolution:
      hold what couples the other variables, then free a part of it at a time. Each turn takes
      `iterations` sweeps.
    """

    iterations: int | Int[Array, ""] = 100
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.5
    chunk: int | None = eqx.field(static=True, default=None)
    renewal: float = eqx.field(metadata=NUMBER, default=1.0)
    perturb: Sequence[Hashable] | None = eqx.field(static=True, default=None, converter=_as_groups)
    turns: tuple[_Turn, ...] = eqx.field(default=(), converter=_as_turns)
    independent: ClassVar[bool] = True

    def __check_init__(self):
        _checks.steps("iterations", self.iterations)
        if _checks.is_concrete(self.iterations) and int(self.iterations) == 0:
            raise ValueError("`iterations` must be at least 1, got 0.")
        _checks.number("damping", self.damping, 0, 1, "(0, 1)")
        _checks.number("renewal", self.renewal, 0, 1, "(0, 1]")
        if self.chunk is not None:
            _checks.count("chunk", self.chunk)

    def max_product(self) -> BP:
        """The inference that looks for the maxima."""
        return BP(
            self.iterations,
            product="max",
            damping=self.damping,
            schedule="flooding",
            chunk=self.chunk,
        )

    def _check(self, model: AbstractModel) -> None:
        require_model(model)
        if not messages.serves(model) or not model.finite:  # pyright: ignore
            refuse(model, "have units of finitely many states, joined by factors, for PMP")

    def holding(
        self, model: AbstractPlainModel, units: PyTree, clamped: PyTree, *, key: PRNGKeyArray
    ) -> PMPState:
        """Samples in which some units are held at states that were checked before."""
        return self._begun(model, (units, clamped), key)

    def _start(
        self, model: AbstractPlainModel, num_chains: int, key: PRNGKeyArray, *told: PyTree
    ) -> PMPState:
        one, two = jax.random.split(key)
        return self._begun(model, chains(model, num_chains, one, *told), two)

    def _begun(
        self, model: AbstractPlainModel, chains: tuple[Any, Any], key: PRNGKeyArray
    ) -> PMPState:
        state = PMPState(*chains, None, None)
        if is_off(self.renewal, 1):
            return state
        # The messages of noise of its own, so that the first step is as good as any other.
        noise = perturbation(model, _rows(state), key)
        return eqx.filter_jit(perturbed)(self, model, state, noise)[0]

    def _step(
        self, model: AbstractPlainModel, state: PMPState, key: PRNGKeyArray
    ) -> tuple[PMPState, PMPInfo]:
        number = _rows(state)
        one, two = jax.random.split(key)
        noise = perturbation(model, number, one)
        if not is_off(self.renewal, 1):
            drawn = _renewed(model, number, self.renewal, two)
            pairs = zip(drawn, noise, state.noise, strict=True)
            noise = tuple(jnp.where(new, a, b) for new, a, b in pairs)
        return perturbed(self, model, state, noise)


def perturbation(
    model: AbstractPlainModel, number: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples _"], ...]:
    """Noise for every unary term. Scores get Gumbel numbers less their mean over a unit, which has
    mean zero and moves no maximum; log-odds get logistic numbers, which are differences of the
    Gumbel numbers of both states.
    """
    keys, out = jax.random.split(key, len(model.layers)), []
    for units, own in zip(model.layers, keys, strict=True):
        if isinstance(units, Binary):
            out.append(_random.logistics(own, (number, units.width), model.dtype))
        else:
            noise = _random.gumbels(own, (number, units.width), model.dtype)
            by_unit = noise.reshape(number, *_shape(units))
            noise = by_unit - by_unit.mean(-1, keepdims=True)
            out.append(noise.reshape(number, units.width))
    return tuple(out)


def noise_centre(
    model: AbstractPlainModel, noise: tuple[Float[Array, "... _"], ...]
) -> Float[Array, "..."]:
    """What makes the noise of both states symmetric where there is noise on log-odds: it has mean
    zero, and without it the perturbed maximum spreads less.
    """
    pairs = zip(model.layers, noise, strict=True)
    halves = [x.sum(-1) * (0.5 if isinstance(units, Binary) else 0.0) for units, x in pairs]
    return jnp.stack(halves).sum(0)


def _renewed(
    model: AbstractPlainModel, number: int, share: float | Float[Array, ""], key: PRNGKeyArray
) -> tuple[Bool[Array, "samples _"], ...]:
    """A share of the units, drawn at random, in the places of their noise."""
    pairs = zip(model.layers, jax.random.split(key, len(model.layers)), strict=True)
    return tuple(
        jnp.repeat(jax.random.bernoulli(own, share, (number, u.size)), _shape(u)[1], axis=-1)
        for u, own in pairs
    )


def _shape(units: AbstractUnits) -> tuple[int, int]:
    """How many units there are, and how many numbers of a unary term each has."""
    return units.size, units.width // max(units.size, 1)


def _rows(state: PMPState) -> int:
    return jax.tree.leaves(state.units)[0].shape[0]


def _places(model: AbstractPlainModel, group: Any, argument: str) -> Int[np.ndarray, "..."]:
    """The numbers of the units of a group, or of a layer, among all."""
    if model.grouped:
        return places_of(model, group, argument)
    if group not in model.names:
        wanted = ", ".join(map(repr, model.names))
        raise ValueError(f"`{argument}` must hold some of {wanted}, got {group!r}.")
    return model.variables.starts[group] + np.arange(model.variables.by_name[group].size)


def _chosen(
    model: AbstractPlainModel,
    noise: tuple[Float[Array, "samples _"], ...],
    groups: tuple[Hashable, ...],
) -> tuple[Float[Array, "samples _"], ...]:
    """The noise of some groups alone: zero for all others."""
    chosen = np.zeros(len(model.variables.counts), bool)
    for group in groups:
        chosen[_places(model, group, "perturb").reshape(-1)] = True
    parts = np.split(chosen, model.variables.ends[:-1])
    return tuple(
        jnp.where(np.repeat(own, _shape(units)[1])[None], x, jnp.zeros_like(x))
        for own, x, units in zip(parts, noise, model.layers, strict=True)
    )


def _held(model: AbstractPlainModel, turns: Sequence[_Turn]) -> tuple[Bool[Array, "turns _"], ...]:
    """Which units of each group are held, in each turn."""
    held = jnp.zeros((len(turns), len(model.variables.counts)), bool)
    for k, turn in enumerate(turns):
        for group, mask in zip(turn.groups, turn.masks, strict=True):
            places = _places(model, group, "turns")
            if mask.shape not in ((), places.shape):
                raise ValueError(
                    f"`turns` must hold a boolean, or booleans of shape {places.shape}, for each"
                    f" group, got {_checks.describe(mask)}."
                )
            held = held.at[k, places.reshape(-1)].set(
                jnp.broadcast_to(jnp.asarray(mask), places.shape).reshape(-1)
            )
    return tuple(jnp.split(held, model.variables.ends[:-1], axis=1))


def _instances(
    model: AbstractPlainModel, state: PMPState, noise: tuple[Float[Array, "samples _"], ...]
) -> tuple[Instance, tuple[Any, ...]]:
    """The instances of a model with noise on the unary terms of what is not held, and that noise,
    by group.
    """
    unary = tuple(jnp.broadcast_to(u, n.shape) for u, n in zip(model.unary(), noise, strict=True))
    kinds: Any = model.layers
    terms, own = (
        [x.reshape(len(x), *units.shape) for units, x in zip(kinds, parts, strict=True)]
        for parts in (unary, noise)
    )
    masks: list[Any] = model.variables.masks(state.clamped) or [None] * len(kinds)
    states = model.encode(state.units)
    clamp, free = [], []
    for units, x, inside, mask in zip(model.layers, own, states, masks, strict=True):
        if mask is None:
            clamp.append(None)
            free.append(x)
            continue
        clamp.append(held_at(units, units.decode(inside), mask, model.dtype))
        mask = jnp.broadcast_to(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x.shape)
        free.append(jnp.where(mask, jnp.zeros_like(x), x))
    both = zip(terms, free, strict=True)
    return Instance(tuple(u + n for u, n in both), tuple(clamp)), tuple(free)


def _is_peak(
    engine: Engine, states: Sequence[Int[Array, " _"]], instance: Instance
) -> Bool[Array, ""]:
    """Whether no change of one unit raises the log-potential."""
    own, peaks = dict(zip(engine.names, states, strict=True)), []
    for k, (form, name) in enumerate(zip(engine.numbered, engine.names, strict=True)):
        rows = form.rows(instance.unary[k])
        for factor in engine.factors:
            if name in factor.groups:
                with jax.default_matmul_precision("highest"):
                    found = factor.given(own, name)
                rows = rows + form.scores(found, rows)
        met = jnp.take_along_axis(rows, states[k][:, None], axis=-1)[:, 0]
        # A configuration that is excluded is no peak, though all its neighbours may be too.
        peak = (rows.max(-1) <= met) & (met > EXCLUDED / 2)
        clamp = instance.clamp[k]
        peaks.append((peak if clamp is None else peak | ~form.free(clamp)).all())
    return jnp.stack(peaks).all()


class _Maximum(NamedTuple):
    """What a run of max-product found: states, their log-potential, and the last change."""

    states: Any
    score: Float[Array, ""]
    residual: Float[Array, ""]


def perturbed(
    sampler: PMP,
    model: AbstractPlainModel,
    state: PMPState,
    noise: tuple[Float[Array, "samples _"], ...],
) -> tuple[PMPState, PMPInfo]:
    """The maxima of a model perturbed by this noise."""
    if sampler.perturb is not None:
        noise = _chosen(model, noise, tuple(sampler.perturb))
    batch, free = _instances(model, state, noise)
    settings = settings_of(sampler.max_product(), model)
    engine = settings.engine(model, "log-odds")
    size = noise[0].shape[:1]
    log_odds = [isinstance(units, Binary) for units in model.layers]

    held = _held(model, sampler.turns) if sampler.turns else None

    def one(posed: tuple[Instance, tuple[Array, ...], PyTree]) -> PyTree:
        given, noise, begin = posed
        whole = engine.posed(given)

        def solved(clamp: tuple[Any, ...], begin: PyTree) -> tuple[_Maximum, PyTree]:
            instance = engine.posed(given._replace(clamp=clamp))
            end, _, residual = settings.run(engine, instance, settings.rows(size), begin)
            states = engine.decode(engine.beliefs(end, instance))
            if model.turns is not None:
                states = model.turns.mended(states, clamp)
            return _Maximum(states, messages.score(engine, states, whole), residual), end

        def turn(best: _Maximum, held: tuple[Array, ...]) -> tuple[_Maximum, None]:
            clamp = []
            for units, x, mask, own in zip(
                model.layers, best.states, held, given.clamp, strict=True
            ):
                kept = held_at(units, x, mask, model.dtype)
                clamp.append(kept if own is None else jnp.where(mask, kept, own))
            new, _ = solved(tuple(clamp), None)
            better = new.score > best.score
            return jax.tree.map(lambda x, y: jnp.where(better, x, y), new, best), None

        found, end = solved(given.clamp, begin)
        if held is not None:
            found, _ = jax.lax.scan(turn, found, held)
        states, score, residual = found
        centre = [x.sum() / 2 for x, alone in zip(noise, log_odds, strict=True) if alone]
        info = PMPInfo(
            energy=messages.linear(engine, states, noise) - score,
            perturbed=score - sum(centre, jnp.zeros((), score.dtype)),
            peak=_is_peak(engine, states, whole),
            residual=residual,
        )
        return states, info, None if is_off(sampler.renewal, 1) else end

    states, info, messages_ = each(one, (batch, free, state.messages), size, settings.chunk)
    kept = None if is_off(sampler.renewal, 1) else noise
    return PMPState(model.variables.named(states), state.clamped, kept, messages_), info
