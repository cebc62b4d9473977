import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree
from numpyro.distributions import Distribution
from numpyro.distributions.batch_util import promote_batch_shape
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.util import validate_sample

from .. import _checks
from .._types import AnyArray
from ..inference import Exact
from ..models import AbstractPlainModel, batched
from ..samplers import AbstractSampler, Gibbs, require_beta, require_sampler, sample
from . import _events
from ._exchange_kernel import require_exchange


_LATENT = (
    "`log_partition` must be given where parameters of the model may be latent, as a function of"
    " them: a density without it is wrong, and nothing would show it. Take log_partition='exact' or"
    " `BP(50)(model).log_partition`"
)


class EnergyDistribution(Distribution):
    """A model as a NumPyro distribution, for observed or latent sites.

    An event is a vector: the visible units, hidden units summed out, where these are independent
    given the visible ones; else all units, a layer after another, as of a DBM. Labels come after
    the visible units. Its elements are the states of the units, so that NUTS samples those that are
    real. The batch axes of the model are those of the distribution.

    `enumerate_support` lists the events of small models. `has_enumerate_support` is False all the
    same: NumPyro's enumeration takes the numbers of a list of events for the states themselves, and
    an event that is a vector would silently become one number. [`ebmlearn.numpyro.SamplerBlock`][]
    moves such sites, or [`ebmlearn.Exact`][] sums over them.

    !!! example

        ```python
        import numpyro
        import numpyro.distributions as dist
        from ebmlearn.numpyro import EnergyDistribution

        def model(data):
            bias = numpyro.sample("bias", dist.Normal(jnp.zeros(3), 1).to_event(1))
            ising = ebmlearn.BoltzmannMachine(jnp.zeros((3, 3)), bias)
            with numpyro.plate("rows", len(data)):
                numpyro.sample("x", EnergyDistribution(ising, "exact"), obs=data)

        mcmc = numpyro.infer.MCMC(numpyro.infer.NUTS(model), num_warmup=100, num_samples=100)
        mcmc.run(jax.random.key(0), jnp.array([[0, 1, 1], [1, 1, 1]]))
        ```
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    pytree_data_fields = ("model", "log_partition")
    pytree_aux_fields = ("how", "sampler", "steps", "ranks")

    def __init__(
        self,
        model: AbstractPlainModel,
        log_partition: Literal["exact", "exchange"] | float | Float[AnyArray, "*batch"] | None,
        *,
        sampler: AbstractSampler | None = None,
        steps: int = 1000,
        fixed: bool = False,
        validate_args: bool | None = None,
    ):
        """**Arguments:**

        - `model`: any model of layers whose visible units are all real and of one kind, or all of
          finitely many states; a CRBM conditioned.
        - `log_partition`: the normaliser, log Z. `"exact"` enumerates the smaller side of the model
          at each evaluation (or integrates a few nonnegative units), and its gradient is right. A
          number or an array is taken as it is; where parameters are latent it has to be a function
          of them, and a constant is refused. None leaves it out, which is right only where the
          parameters are constants, and refused where they may be latent. `"exchange"` leaves it to
          [`ebmlearn.numpyro.ExchangeKernel`][], and all other kernels are refused.
        - `sampler`, `steps`: `sample` runs so many steps of this sampler, Gibbs if not given, from
          a random state, one chain for each draw. The draws are as good as the chains are mixed.
          [`ebmlearn.PMP`][] draws at once, and `steps` does not matter.
        - `fixed`: with None or a constant, says of parameters that JAX traces (the arguments of
          `mcmc.run` for instance) that they are not latent. Differentiating by them is refused all
          the same.
        - `validate_args`: as of any distribution of NumPyro.
        """
        _events.check(model)
        if sampler is not None:
            require_sampler(sampler)
        require_beta(sampler)
        _checks.count("steps", steps)
        self.how = log_partition if isinstance(log_partition, str) else "given"
        if isinstance(log_partition, str):
            _checks.choice("log_partition", log_partition, ("exact", "exchange"))
            log_partition = None
        else:
            _check_value(log_partition, model.batch_shape)
        if self.how == "given" and _checks.is_concrete(log_partition):
            if not fixed and not _checks.is_concrete(eqx.filter(model, eqx.is_array)):
                got = "None" if log_partition is None else "a constant"
                raise ValueError(f"{_LATENT}, or say `fixed=True` of traced constants; got {got}.")
            model = _constant(model)
        self.model = model
        # Of the parameters, and of the batch: axes that `jax.vmap` adds come before these.
        leaves = jax.tree.leaves(model)
        self.ranks = leaves[0].ndim if leaves else 0, len(model.batch_shape)
        self.log_partition = log_partition
        self.sampler = sampler
        self.steps = steps
        super().__init__(model.batch_shape, (_events.size(model),), validate_args=validate_args)

    @property
    def support(self) -> Constraint:
        """Vectors of 0 and 1, of real numbers, of nonnegative ones, or of integers."""
        return _events.support(self.model)

    @property
    def mean(self) -> Float[Array, "..."]:  # pyright: ignore
        """The mean of an event, where log Z is exact: for binary units, probabilities of 1."""
        return self._moment("mean", 0)

    @property
    def variance(self) -> Float[Array, "..."]:  # pyright: ignore
        """The variance of each element of an event, where log Z is exact."""
        return self._moment("variance", 1)

    def entropy(self) -> Float[Array, "..."]:  # pyright: ignore
        """The entropy in nats, where log Z is exact and the events can be listed."""
        self._need_exact("entropy")
        events = self.enumerate_support(expand=False)
        log_p = self.log_prob(events)
        return -jnp.sum(jnp.exp(log_p) * log_p, 0)

    def enumerate_support(self, expand: bool = True) -> Num[Array, "..."]:
        """All events of a small model, along a first axis.

        **Arguments:**

        - `expand`: whether they are given for each instance of a batch, or with axes of length 1.
        """
        lead = len(self._lead)
        model = jax.tree.map(lambda x: x[(0,) * lead], self.model) if lead else self.model
        events = _events.listed(model)
        size = events.shape[-1]
        events = events.reshape(len(events), *[1] * len(self.batch_shape), size)
        if not expand:
            return events
        return jnp.broadcast_to(events, (len(events), *self.batch_shape, size))

    def sample(  # pyright: ignore
        self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> Num[Array, "..."]:
        """Draws events by chains, one for each: see `steps`."""
        sampler = Gibbs() if self.sampler is None else self.sampler
        before = 0 if sampler.independent else self.steps - 1

        def draw(model: AbstractPlainModel, _: Any, key: PRNGKeyArray) -> Num[Array, "..."]:
            shape = (*sample_shape, *model.batch_shape)
            number = math.prod(shape)
            model = batched(model, shape)
            drawn = sample(
                model, sampler, number, key=key, num_chains=number, burn_in=before, progress=False
            )
            return _events.event(model, drawn).reshape(*shape, *self.event_shape)

        lead = self._lead
        key = _checks.as_key(key)
        keys = jax.random.split(key, lead) if lead else key
        return self._each(draw, keys, after=len(sample_shape))

    @validate_sample
    def log_prob(  # pyright: ignore
        self, value: Num[AnyArray, "..."], intermediates: PyTree = None
    ) -> Float[Array, "..."]:
        """The log-probability of events, or of None for a normaliser, their log-potential."""
        if isinstance(value, tuple):
            raise TypeError(
                "`value` must be one array, visible layers beside each other along its last axis,"
                f" got {_checks.article(type(value).__name__)}."
            )
        lead, own = self._lead, self.ranks[1]
        value = jnp.asarray(value)
        if not lead:
            return self._log_prob(self.model, self.log_partition, value)
        batch = (*lead, *self.batch_shape[len(self.batch_shape) - own :])
        shape = jnp.broadcast_shapes(value.shape[:-1], batch)
        value = jnp.broadcast_to(value, (*shape, value.shape[-1]))
        # What `jax.vmap` has added, first.
        at = len(shape) - len(batch)
        places = range(len(lead))
        value = jnp.moveaxis(value, [at + k for k in places], list(places))
        return self._each(self._log_prob, value, after=at)

    @property
    def _lead(self) -> tuple[int, ...]:
        """The axes that `jax.vmap` has added to the parameters."""
        leaves = jax.tree.leaves(self.model)
        return leaves[0].shape[: leaves[0].ndim - self.ranks[0]] if leaves else ()

    def _each(self, fn: Callable[..., Array], *args: Array, after: int = 0) -> Array:
        """A function of the model and its log Z, for all that `jax.vmap` has made. The axes of the
        models come after so many others.
        """
        lead = self._lead
        parts = (self.model, self.log_partition, *args)
        if not lead:
            return fn(*parts)
        rank = len(lead)
        flat = jax.tree.map(lambda x: x.reshape(math.prod(lead), *x.shape[rank:]), parts)
        out = jax.vmap(fn)(*flat)
        out = out.reshape(*lead, *out.shape[1:])
        return jnp.moveaxis(out, list(range(rank)), [after + k for k in range(rank)])

    def _log_prob(
        self, model: AbstractPlainModel, log_z: Any, value: Num[Array, "..."]
    ) -> Float[Array, "..."]:
        potential = _events.log_potential(model, value)
        if self.how == "exchange":
            require_exchange()
        if self.how == "exact":
            log_z = _exact_log_z(model)
        if log_z is None:
            return potential
        return potential - jnp.broadcast_to(jnp.asarray(log_z, potential.dtype), potential.shape)

    def _moment(self, what: str, k: int) -> Float[Array, "..."]:
        self._need_exact(what)
        return self._each(lambda model, _: _exact_moments(model)[k])

    def _need_exact(self, what: str) -> None:
        if self.how != "exact":
            raise NotImplementedError(f"`{what}` needs log_partition='exact'.")


def _promoted(d: EnergyDistribution) -> EnergyDistribution:
    """A distribution that was made under `jax.vmap`, with the batch that this gave it."""
    own = d.ranks[1]
    out = copy.copy(d)
    out._batch_shape = (*d._lead, *d.batch_shape[len(d.batch_shape) - own :])
    return out


_register: Any = promote_batch_shape.register
_register(EnergyDistribution, _promoted)


def _exact_log_z(model: AbstractPlainModel) -> Float[Array, "*batch"]:
    """The exact log Z: by listing the events, where `Exact` does not take the model."""
    if Exact().accepts(model):
        return Exact()(model).log_partition
    return jax.nn.logsumexp(_events.log_potential(model, _events.listed(model)), 0)


def _exact_moments(
    model: AbstractPlainModel,
) -> tuple[Float[Array, "*batch n"], Float[Array, "*batch n"]]:
    """Means and variances of the units of an event, of categorical ones those of integers."""
    if Exact().accepts(model):
        return _events.moments(model, Exact()(model))
    events = _events.listed(model)
    p = jax.nn.softmax(_events.log_potential(model, events), 0)[..., None]
    x = events.astype(p.dtype)
    mean = (p * x).sum(0)
    return mean, (p * x**2).sum(0) - mean**2


def _check_value(log_partition: Any, batch_shape: tuple[int, ...]) -> None:
    """Raises unless this can be log Z of a model, or None."""
    if not (log_partition is None or isinstance(log_partition, (int, float))) and not hasattr(
        log_partition, "dtype"
    ):
        raise TypeError(
            "`log_partition` must be 'exact', None, or a number or an array such as"
            " `BP(50)(model).log_partition`, got"
            f" {_checks.article(type(log_partition).__name__)}."
        )
    shape = () if log_partition is None else jnp.shape(log_partition)
    pairs = zip(reversed(shape), reversed(batch_shape), strict=False)
    if len(shape) > len(batch_shape) or any(n not in (1, own) for n, own in pairs):
        raise ValueError(
            "`log_partition` must be a number, or one for each of the models of a batch of"
            f" {batch_shape}, got shape {shape}."
        )


@jax.custom_jvp
def _constant(model: AbstractPlainModel) -> AbstractPlainModel:
    """The model, whose parameters cannot be differentiated by."""
    return model


@_constant.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise ValueError(f"{_LATENT}, got none and a gradient by the parameters.")
