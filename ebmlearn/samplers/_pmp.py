import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .. import _checks, messages
from ..inference import BP
from ..inference._base import is_off, NUMBER
from ..inference._bp import settings_of
from ..models import AbstractPlainModel
from ..models._base import refuse
from ..models._problem import each
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


class PMPState(eqx.Module):
    """Samples: `units` as for other samplers; of a graph, one row of states for each, which
    `model.configuration` sorts by groups. `clamped` says which of them are given. `noise` and
    `messages` are kept where some of the noise stays.
    """

    units: PyTree
    clamped: PyTree
    noise: PyTree
    messages: PyTree


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
    _: KW_ONLY
    damping: float | Float[Array, ""] = 0.5
    chunk: int | None = eqx.field(static=True, default=None)
    renewal: float = eqx.field(metadata=NUMBER, default=1.0)
    perturb: Sequence[Hashable] | None = eqx.field(static=True, default=None, converter=_as_groups)
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

    def _check(self, model: Any) -> None:
        maker = messages.maker(model)
        if not model.finite:
            refuse(model, "have units of finitely many states for PMP")
        maker.check(model, "max", np.ones((), model.dtype))

    def holding(
        self, model: AbstractPlainModel, units: PyTree, clamped: PyTree, *, key: PRNGKeyArray
    ) -> PMPState:
        """Samples in which some units are held at states that were checked before."""
        return self._begun(model, model.chains_of(units, clamped), key)

    def _start(
        self, model: Any, num_chains: int, key: PRNGKeyArray, start: Any, clamped: Any
    ) -> PMPState:
        one, two = jax.random.split(key)
        return self._begun(model, model.chains(num_chains, one, start, clamped), two)

    def _begun(self, model: Any, chains: tuple[Any, Any], key: PRNGKeyArray) -> PMPState:
        state = PMPState(*chains, None, None)
        if is_off(self.renewal, 1):
            return state
        # The messages of noise of its own, so that the first step is as good as any other.
        noise = model.perturbation(_rows(state), key)
        return eqx.filter_jit(perturbed)(self, model, state, noise)[0]

    def _step(self, model: Any, state: PMPState, key: PRNGKeyArray) -> tuple[PMPState, PMPInfo]:
        number = _rows(state)
        one, two = jax.random.split(key)
        noise = model.perturbation(number, one)
        if not is_off(self.renewal, 1):
            drawn = model.chosen_noise(number, self.renewal, two)
            pairs = zip(drawn, noise, state.noise, strict=True)
            noise = tuple(jnp.where(new, a, b) for new, a, b in pairs)
        return perturbed(self, model, state, noise)


def _rows(state: PMPState) -> int:
    return jax.tree.leaves(state.units)[0].shape[0]


def perturbed(
    sampler: PMP, model: Any, state: PMPState, noise: tuple[Float[Array, "samples _"], ...]
) -> tuple[PMPState, PMPInfo]:
    """The maxima of a model perturbed by this noise."""
    maker = messages.maker(model)
    if sampler.perturb is not None:
        noise = maker.noise_in(model, noise, tuple(sampler.perturb))
    batch, noise = maker.perturbed(model, state.units, state.clamped, noise)
    settings = settings_of(sampler.max_product(), model)
    view = settings.view(model, "log-odds")
    size = noise[0].shape[:1]

    def one(problem: Any) -> PyTree:
        instance, noise, begin = problem
        end, _, residual = settings.run(view, instance, settings.rows(size), begin)
        states = view.decode(view.beliefs(end, instance))
        score = view.score(states, instance)
        extra = view.linear(states, noise)
        info = PMPInfo(
            energy=extra - score,
            perturbed=score - model.noise_centre(noise),
            peak=view.is_peak(states, instance),
            residual=residual,
        )
        return states, info, None if is_off(sampler.renewal, 1) else end

    states, info, messages_ = each(one, (batch, noise, state.messages), size, settings.chunk)
    kept = None if is_off(sampler.renewal, 1) else noise
    return PMPState(model.from_view(states), state.clamped, kept, messages_), info


PMP.__init__.__doc__ = """**Arguments:**

- `iterations`: how many sweeps.
- `damping`: the share of its old value that a message keeps, above 0 and below 1.
- `chunk`: how many samples are treated at once; the default suits the device, as for
  [`ebmlearn.BP`][].
- `renewal`: the share of variables whose noise is drawn anew in a step. Below 1, messages go on
  from the step before, so that few sweeps may do in training, and the samples of one step depend
  on those of the last.
- `perturb`: the groups of variables of a graph that get noise, `[S, W]`, or the layers of a model,
  `["visible"]`. All, if not given. What gets none is at its maximum given the rest.
"""
