from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks
from ..inference import BP
from ..inference._graph import GraphProblem
from ..inference._instances import each, Problem
from ..models._graph import AbstractGraphModel, GraphInstance
from ..models._view import Instance
from . import _random
from ._base import AbstractSampler, as_layers, as_units, masks, start_chains


class PMPState(eqx.Module):
    """Samples: `units` as for other samplers; of a graph, one row of states for each, which
    `model.configuration` sorts by groups. `clamped` says which of them are given. `noise` and
    `messages` are kept where some of the noise stays.
    """

    units: Any
    clamped: Any
    noise: Any
    messages: Any


class PMPInfo(NamedTuple):
    """Of each sample:

    - `energy`: its energy, without the perturbation; infinite if it breaks a factor, as it must if
      what is given contradicts one.
    - `perturbed`: the log-potential of the perturbed model there. The mean over samples, if each
      were the maximum, would be an upper bound of log Z: see [`ebmlearn.pmp_bound`][].
    - `peak`: whether no change of one variable would raise that.
    - `residual`: the largest change of a probability in the last sweep.
    """

    energy: Float[Array, " samples"]
    perturbed: Float[Array, " samples"]
    peak: Bool[Array, " samples"]
    residual: Float[Array, " samples"]


class PMP(AbstractSampler):
    """Perturb-and-max-product (Lázaro-Gredilla, Dedieu & George 2021, Algorithm 1): every state of
    every variable gets Gumbel noise, and the maximum of the perturbed model, by max-product, is the
    sample. All samples are independent of each other, and all messages of a sweep are sent at the
    same time, damped, from none at all.

    Without factors the samples have exactly the distribution of the model; with them they are close
    to it, and the closer a model learned by [`ebmlearn.PMPLearner`][] is to its data, the closer
    they are to these: its parameters are those of this sampler rather than of an energy.

    !!! example

        ```python
        samples, info = ebmlearn.sample(rbm, ebmlearn.PMP(100), 1000, key=key, with_info=True)
        info.peak.mean()  # the share of samples which no flip of one unit would improve
        ```

    Given visible units, or any others, it samples the rest:

        ```python
        start, clamped = Layers(v, None), Layers(jnp.ones(v.shape, bool), None)
        ebmlearn.sample(rbm, ebmlearn.PMP(100), len(v), key=key, start=start, clamped=clamped)
        ebmlearn.sample(graph_model, ebmlearn.PMP(100), 5, key=key, start={x: states},
                        clamped={x: True})[hidden]
        ```
    """

    iterations: int | Int[Array, ""]
    damping: float | Float[Array, ""] = 0.5
    renewal: float = eqx.field(static=True, default=1.0)
    chunk: int | None = eqx.field(static=True, default=None)
    on_graphs: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def __init__(
        self,
        iterations: int | Int[Array, ""],
        damping: float | Float[Array, ""] = 0.5,
        renewal: float = 1.0,
        chunk: int | None = None,
    ):
        """**Arguments:**

        - `iterations`: how many sweeps.
        - `damping`: the share of its old value that a message keeps, above 0 and below 1.
        - `renewal`: the share of variables whose noise is drawn anew in a step. Below 1, messages
          go on from the step before, so that few sweeps may do in training, and the samples of one
          step depend on those of the last.
        - `chunk`: how many samples are treated at once; by default, what fits in 256 MiB of
          messages.
        """
        self.iterations = iterations
        self.damping = damping
        self.renewal = renewal
        self.chunk = chunk

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

    def _start(
        self, model: Any, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
    ) -> PMPState:
        one, two = jax.random.split(key)
        if isinstance(model, AbstractGraphModel):
            units, held = _given(model, num_chains, start, clamped)
        else:
            Problem(model)
            chains = start_chains(model, num_chains, one, start, clamped)
            units, held = chains.units, chains.clamped
        state = PMPState(units, held, None, None)
        if self.renewal == 1:
            return state
        # The messages of noise of its own, so that the first step is as good as any other.
        noise = perturbation(model, num_chains, two)
        return eqx.filter_jit(perturbed)(self, model, state, noise)[0]

    def _step(self, model: Any, state: PMPState, key: PRNGKeyArray) -> tuple[PMPState, PMPInfo]:
        number = jax.tree.leaves(state.units)[0].shape[0]
        one, two = jax.random.split(key)
        noise = perturbation(model, number, one)
        if self.renewal < 1:
            noise = _renewed(model, state.noise, noise, self.renewal, two)
        return perturbed(self, model, state, noise)


def perturbation(
    model: Any, number: int, key: PRNGKeyArray
) -> tuple[Float[Array, "samples _"], ...]:
    """Noise for every unary term: on the log-odds of binary units a logistic number, which is the
    difference of the Gumbel numbers of their two states; in a graph a Gumbel number for each state,
    less their mean over a variable, which has mean zero and moves no maximum.
    """
    sizes = [x.shape[-1] for x in model.unary()]
    dtype = model.unary()[0].dtype
    keys = jax.random.split(key, len(sizes))
    if not isinstance(model, AbstractGraphModel):
        return tuple(
            _random.logistics(k, (number, n), dtype) for k, n in zip(keys, sizes, strict=True)
        )
    noise = _random.gumbels(keys[0], (number, sizes[0]), dtype)
    counts, of = np.asarray(model.num_states), _owners(model)
    mean = jax.vmap(lambda x: jax.ops.segment_sum(x, of, len(counts)))(noise)
    mean = mean / jnp.broadcast_to(jnp.asarray(counts, dtype), mean.shape)
    return (noise - mean[:, of],)


def _owners(model: AbstractGraphModel) -> Int[np.ndarray, " states"]:
    """Which variable each state of a graph belongs to."""
    counts = np.asarray(model.num_states)
    return np.repeat(np.arange(len(counts)), counts)


def _renewed(model: Any, old: Any, new: Any, share: float, key: PRNGKeyArray) -> Any:
    """New noise for a share of the variables, the old for the others."""
    keys = jax.random.split(key, len(new))
    out = []
    for own, a, b in zip(keys, old, new, strict=True):
        if isinstance(model, AbstractGraphModel):
            drawn = jax.random.bernoulli(own, share, (a.shape[0], len(model.num_states)))
            drawn = drawn[:, _owners(model)]
        else:
            drawn = jax.random.bernoulli(own, share, a.shape)
        out.append(jnp.where(drawn, b, a))
    return tuple(out)


def perturbed(
    sampler: PMP, model: Any, state: PMPState, noise: tuple[Float[Array, "samples _"], ...]
) -> tuple[PMPState, PMPInfo]:
    """The maxima of a model perturbed by this noise."""
    batch, noise = _instances(model, state, noise)
    settings = sampler.max_product()._settings(model)
    view = settings.view(model, "log-odds")

    def one(problem: Any) -> PyTree:
        instance, noise, begin = problem
        end, _, residual = settings.run(view, instance, begin)
        states = view.decode(view.beliefs(end, instance))
        score = view.score(states, instance)
        extra = view.linear(states, noise)
        info = PMPInfo(
            energy=extra - score,
            perturbed=score - centre(model, noise),
            peak=view.is_peak(states, instance),
            residual=residual,
        )
        return states, info, end if sampler.renewal < 1 else None

    size = noise[0].shape[:1]
    states, info, messages = each(one, (batch, noise, state.messages), size, settings.chunk)
    units = states if isinstance(model, AbstractGraphModel) else as_units(model, states)
    kept = noise if sampler.renewal < 1 else None
    return PMPState(units, state.clamped, kept, messages), info


def centre(model: Any, noise: tuple[Float[Array, " _"], ...]) -> Float[Array, ""]:
    """What makes the noise of both states of a binary unit symmetric: it has mean zero, and without
    it the perturbed maximum spreads less.
    """
    if isinstance(model, AbstractGraphModel):
        return jnp.zeros((), noise[0].dtype)
    return jnp.stack([x.sum() for x in noise]).sum() / 2


def _instances(model: Any, state: PMPState, noise: tuple) -> tuple[Any, tuple]:
    """The perturbed model for each sample. What is given has no noise."""
    unary = model.unary()
    number = noise[0].shape[0]
    if isinstance(model, AbstractGraphModel):
        held = None if state.clamped is None else jnp.where(state.clamped, state.units, -1)
        if held is not None:
            noise = (jnp.where((held >= 0)[:, _owners(model)], jnp.zeros_like(noise[0]), noise[0]),)
        plain = jnp.broadcast_to(unary[0], (number, unary[0].shape[-1]))
        return GraphInstance((plain + noise[0],), held), noise
    clamp: list[Any] = [None] * len(unary)
    given = masks(state.clamped)
    if given is not None:
        layers = as_layers(model, state.units)
        for k, (mask, x) in enumerate(zip(given, layers, strict=True)):
            if mask is not None:
                clamp[k] = jnp.where(mask, 2 * x - 1, jnp.zeros_like(x))
        noise = tuple(
            n if mask is None else jnp.where(mask, jnp.zeros_like(n), n)
            for n, mask in zip(noise, given, strict=True)
        )
    perturbed = tuple(jnp.broadcast_to(u, n.shape) + n for u, n in zip(unary, noise, strict=True))
    return Instance(perturbed, tuple(clamp)), noise


def _given(
    model: AbstractGraphModel, number: int, start: Any, clamped: Any
) -> tuple[Int[Array, "samples variables"], Bool[Array, "samples variables"] | None]:
    """States of variables that are held, and which these are."""
    size = len(model.num_states)
    if start is not None and not isinstance(start, Mapping):
        raise TypeError(
            "`start` must be a dictionary of groups of variables for a graph, got"
            f" {_checks.describe(start)}."
        )
    if clamped is None:
        return jnp.zeros((number, size), jnp.int32), None
    if not isinstance(clamped, Mapping):
        raise TypeError(
            "`clamped` must be a dictionary of groups of variables for a graph, got"
            f" {_checks.describe(clamped)}."
        )
    if start is None or any(group not in start for group in clamped):
        raise ValueError("`start` must hold the states of all groups that are `clamped`.")
    evidence = {group: start[group] for group in clamped}
    masks = {
        group: mask if hasattr(mask, "dtype") else np.asarray(mask)
        for group, mask in clamped.items()
    }
    held = GraphProblem(model, evidence, masks).held
    if held is None:
        raise ValueError("`start` must hold states for PMP, integers, got likelihoods.")
    if held.shape not in ((size,), (number, size)):
        raise ValueError(
            f"`start` must hold one configuration, or one for each of {number} samples, got"
            f" leading axes of shape {held.shape[:-1]}."
        )
    held = jnp.broadcast_to(jnp.asarray(held), (number, size))
    return jnp.maximum(held, 0), held >= 0
