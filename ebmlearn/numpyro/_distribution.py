import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.util import validate_sample

from .. import _checks
from .._types import AnyArray
from ..inference import Exact
from ..models import AbstractLayeredModel
from ..samplers import AbstractSampler, Gibbs, sample
from . import _events


_LATENT = (
    "`log_partition` must be given if parameters of the model may be latent, because their density"
    " would be wrong without it: pass log_partition='exact' or a value"
)


class EnergyDistribution(Distribution):
    """A model as a NumPyro distribution, for observed or latent sites.

    An event is a vector. If hidden units are independent given the visible ones, it holds the
    visible units, and the hidden units are summed out; otherwise, as for a DBM, it holds all units,
    layer by layer. NUTS can sample units that are real. The batch axes of the model are those of
    the distribution.

    !!! example

        ```python
        def model(data):
            rbm = random_eqx_module("rbm", start, prior=dist.Normal(0, 1))
            with numpyro.plate("rows", len(data)):
                numpyro.sample("v", EnergyDistribution(rbm, log_partition="exact"), obs=data)
        ```
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    pytree_data_fields = ("model", "log_partition")
    pytree_aux_fields = ("sampler", "steps")

    def __init__(
        self,
        model: AbstractLayeredModel,
        log_partition: Literal["exact"] | float | Float[AnyArray, "*batch"] | None,
        *,
        sampler: AbstractSampler | None = None,
        steps: int = 1000,
        fixed: bool = False,
        validate_args: bool | None = None,
    ):
        """**Arguments:**

        - `model`: any layered model whose visible units are all of one kind. Condition a CRBM
          first.
        - `log_partition`: the normaliser, log Z. `"exact"` enumerates the smaller side of the model
          (or integrates a few nonnegative units) at each evaluation, with exact gradients. A number
          or an array is used as given; if parameters are latent, compute it from them. None leaves
          it out; this is correct only if the parameters are constants, and an error if they may be
          latent.
        - `sampler`, `steps`: `sample` runs this many steps of the sampler, Gibbs by default, from a
          random state, with one chain per draw. Use enough steps for the chains to mix.
          [`ebmlearn.PMP`][] draws directly and ignores `steps`.
        - `fixed`: with `log_partition=None`, True declares that traced parameters (for instance
          arguments of `mcmc.run`) are not latent. Differentiating by them still raises an error.
        """
        _events.check(model)
        if sampler is not None and not isinstance(sampler, AbstractSampler):
            got = _checks.describe(sampler)
            raise TypeError(f"`sampler` must be a sampler such as `Gibbs()`, got {got}.")
        _checks.count("steps", steps)
        if log_partition is None:
            if not fixed and not _checks.is_concrete(eqx.filter(model, eqx.is_array)):
                raise ValueError(f"{_LATENT}, or `fixed=True` for traced constants; got None.")
            model = _constant(model)
        elif isinstance(log_partition, str):
            _checks.choice("log_partition", log_partition, ("exact",))
        elif not isinstance(log_partition, (int, float)) and not hasattr(log_partition, "dtype"):
            raise TypeError(
                "`log_partition` must be 'exact', None, or a number or an array such as"
                f" `BP(50)(model).log_partition`, got {_checks.describe(log_partition)}."
            )
        else:
            _check_shape(log_partition, model.batch_shape)
        self.model = model
        self.log_partition = _Exact() if isinstance(log_partition, str) else log_partition
        self.sampler = sampler
        self.steps = steps
        super().__init__(model.batch_shape, (_events.size(model),), validate_args=validate_args)

    @property
    def support(self) -> Constraint:
        """Vectors of 0 and 1, of real numbers, or of nonnegative ones."""
        return _events.support(self.model)

    def sample(  # pyright: ignore
        self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> Num[Array, "..."]:
        """Draws events, with one chain for each: see `steps`."""
        key = _events.typed(key)
        shape = (*sample_shape, *self.batch_shape)
        number = math.prod(shape)
        model = self.model
        model = model.batched(shape)
        sampler = Gibbs() if self.sampler is None else self.sampler
        before = 0 if sampler.independent else self.steps - 1
        drawn = sample(model, sampler, number, key=key, num_chains=number, burn_in=before)
        return _events.event(model, drawn).reshape(*shape, *self.event_shape)

    @validate_sample
    def log_prob(  # pyright: ignore
        self, value: Num[AnyArray, "..."], intermediates: PyTree = None
    ) -> Float[Array, "..."]:
        """The log-probability of events; their log-potential if `log_partition` is None."""
        potential = _events.log_potential(self.model, jnp.asarray(value))
        if self.log_partition is None:
            return potential
        log_z = self._exact() if isinstance(self.log_partition, _Exact) else self.log_partition
        return potential - jnp.broadcast_to(
            jnp.asarray(log_z).astype(potential.dtype), potential.shape
        )

    def _exact(self) -> Float[Array, "*batch"]:
        return Exact()(self.model).log_partition


def _check_shape(log_partition: Any, batch_shape: tuple[int, ...]) -> None:
    shape = jnp.shape(log_partition)
    try:
        fits = np.broadcast_shapes(shape, batch_shape) == batch_shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            "`log_partition` must be a number, or one for each of the models of a batch of"
            f" {batch_shape}, got shape {shape}."
        )


class _Exact(eqx.Module):
    """Stands for a log Z that is found when it is needed."""


@jax.custom_jvp
def _leaves(leaves: list[Array]) -> list[Array]:
    return leaves


@_leaves.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise ValueError(f"{_LATENT}, got None and a gradient by the parameters.")


def _constant(model: Any) -> Any:
    """The model, whose parameters cannot be differentiated by."""
    leaves, structure = jax.tree.flatten(model)
    return jax.tree.unflatten(structure, _leaves(leaves))
