from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from ..inference import AbstractInference, MPLP
from ..models import AbstractLayeredModel, AbstractPairwiseModel
from ..models._graph import AbstractGraphModel
from ..samplers import PMP
from ..samplers._base import as_layers
from ..samplers._pmp import centre, perturbation, perturbed
from ..samplers._sweep import energy


class PMPBound(eqx.Module):
    """What [`ebmlearn.pmp_bound`][] says of log Z.

    - `log_partition`: the mean of the perturbed maxima.
    - `standard_error`: its standard error.
    - `values`: the perturbed maxima themselves.
    """

    log_partition: Float[Array, ""]
    standard_error: Float[Array, ""]
    values: Float[Array, " samples"]


def pmp_bound(
    model: AbstractLayeredModel | AbstractGraphModel,
    *,
    key: PRNGKeyArray,
    num_samples: int = 100,
    solver: PMP | AbstractInference | None = None,
) -> PMPBound:
    """An upper bound of log Z from perturbed maxima (Hazan & Jaakkola 2012, corollary 1;
    Lázaro-Gredilla et al. 2021, section 2.2): the mean of the largest log-potential after every
    state of every variable got Gumbel noise of mean zero.

    It is a bound if the maxima are, and up to its standard error. Max-product may miss a maximum,
    and then the value is too low: on frustrated models it may fall below log Z.
    `Exact(product="max")` finds the maxima of small models.

    !!! example

        ```python
        bound = ebmlearn.pmp_bound(boltzmann, key=key, num_samples=1000)
        bound.log_partition, bound.standard_error
        ```

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM or a FactorGraphModel.
    - `key`: a typed key. With the same key all solvers get the same noise.
    - `num_samples`: how many perturbed models.
    - `solver`: what looks for the maxima: `PMP(200)` if not given, or, but for a graph, an
      inference that maximises, such as `MPLP()` or `Exact(product="max")`.
    """
    _checks.typed_key(key)
    _checks.count("num_samples", num_samples)
    solver = PMP(200) if solver is None else solver
    if not isinstance(model, (AbstractPairwiseModel, AbstractGraphModel)):
        raise TypeError(
            "`model` must be an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM or a"
            f" FactorGraphModel, got {_checks.describe(model)}."
        )
    if model.batch_shape != ():
        raise ValueError(f"`model` must be a single one, got a batch of shape {model.batch_shape}.")
    if isinstance(solver, PMP):
        values = _by_sampler(model, solver, num_samples, key)
    elif not isinstance(solver, AbstractInference):
        got = _checks.describe(solver)
        raise TypeError(f"`solver` must be a `PMP` or an inference that maximises, got {got}.")
    elif not isinstance(solver, MPLP) and getattr(solver, "product", "sum") != "max":
        got = f"{solver!r} with product={getattr(solver, 'product', None)!r}"
        raise ValueError(f'`solver` must maximise, as `Exact(product="max")` does, got {got}.')
    elif isinstance(model, AbstractGraphModel):
        raise TypeError("`solver` must be a `PMP` for a graph, got an inference.")
    else:
        values = _by_inference(model, solver, num_samples, key)
    error = values.std(ddof=1) / jnp.sqrt(num_samples) if num_samples > 1 else jnp.nan
    return PMPBound(values.mean(), jnp.asarray(error, values.dtype), values)


@eqx.filter_jit
def _by_sampler(model: Any, solver: PMP, number: int, key: PRNGKeyArray) -> Float[Array, " n"]:
    one, two = jax.random.split(key)
    state = solver.init(model, number, key=two)
    return perturbed(solver, model, state, perturbation(model, number, one))[1].perturbed


def _by_inference(
    model: Any, solver: AbstractInference, number: int, key: PRNGKeyArray
) -> Float[Array, " n"]:
    noise = perturbation(model, number, jax.random.split(key)[0])
    unary = tuple(
        jnp.broadcast_to(u, n.shape) + n for u, n in zip(model.unary(), noise, strict=True)
    )
    noisy = model.with_unary(unary)
    layers = as_layers(noisy, solver(noisy).decode())
    return -energy(noisy, layers) - jax.vmap(lambda n: centre(model, n))(noise)
