from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _checks
from .._types import Key
from ..inference import AbstractInference
from ..models import AbstractModel, require_fields, require_single
from ..samplers import noise_centre, perturbation, perturbed, PMP


class PMPBound(eqx.Module):
    """The result of [`ebmlearn.pmp_bound`][].

    !!! example

        ```python
        bound = ebmlearn.pmp_bound(ebmlearn.RBM.init(16, 8))
        bound.log_partition, bound.standard_error, bound.values
        ```

    **Fields:**

    - `log_partition`: the mean of the perturbed maxima.
    - `standard_error`: its standard error.
    - `values`: the perturbed maxima themselves.
    """

    log_partition: Float[Array, ""]
    standard_error: Float[Array, ""]
    values: Float[Array, " samples"]


def pmp_bound(
    model: AbstractModel,
    *,
    key: Key = 0,
    num_samples: int = 100,
    solver: PMP | AbstractInference | None = None,
) -> PMPBound:
    """Estimates an upper bound of log Z (Hazan & Jaakkola 2012, corollary 1; Lázaro-Gredilla et al.
    2021, section 2.2): the mean of the largest log-potential after Gumbel noise of mean zero is
    added to every state of every variable.

    The bound holds up to the standard error, and only if the solver finds the maxima. Max-product
    may miss them on frustrated models; the value may then be below log Z. `Exact(product="max")`
    finds the maxima of small models.

    !!! example

        ```python
        ising = ebmlearn.BoltzmannMachine.init(16, scale=1.0)
        bound = ebmlearn.pmp_bound(ising, num_samples=1000)
        bound.log_partition, bound.standard_error
        ```

    **Arguments:**

    - `model`: an RBM, a DBM, a BoltzmannMachine, a SemiRestrictedBM or a FactorGraphModel.
    - `key`: a seed or a key. The same key gives all solvers the same noise.
    - `num_samples`: the number of perturbed models.
    - `solver`: finds the maxima; `PMP(200)` by default. For layered models it may be an inference
      that maximises, such as `MPLP()` or `Exact(product="max")`.
    """
    key = _checks.as_key(key)
    _checks.count("num_samples", num_samples)
    solver = PMP(200) if solver is None else solver
    if isinstance(solver, PMP):
        if solver.perturb is not None:
            raise ValueError(
                "`solver` must perturb all units, or the mean is no bound, got a `PMP` with"
                f" `perturb={solver.perturb!r}`."
            )
        values = _by_sampler(model, solver, num_samples, key)
    elif not isinstance(solver, AbstractInference):
        got = _checks.describe(solver)
        raise TypeError(f"`solver` must be a `PMP` or an inference that maximises, got {got}.")
    elif solver.maximises != "all":
        got = type(solver).__name__
        raise ValueError(f'`solver` must maximise, as `Exact(product="max")` does, got {got}.')
    else:
        values = _by_inference(model, solver, num_samples, key)
    error = values.std(ddof=1) / jnp.sqrt(num_samples) if num_samples > 1 else jnp.nan
    return PMPBound(values.mean(), jnp.asarray(error, values.dtype), values)


@eqx.filter_jit
def _by_sampler(
    model: AbstractModel, solver: PMP, number: int, key: PRNGKeyArray
) -> Float[Array, " n"]:
    one, two = jax.random.split(key)
    state = solver.init(model, number, key=two)
    require_single(model)
    own: Any = model
    return perturbed(solver, own, state, perturbation(own, number, one))[1].perturbed


def _by_inference(
    model: AbstractModel, solver: AbstractInference, number: int, key: PRNGKeyArray
) -> Float[Array, " n"]:
    layered = require_fields(model, "a solver that is an inference")
    require_single(model)
    noise = perturbation(layered, number, jax.random.split(key)[0])
    unary = tuple(
        jnp.broadcast_to(u, n.shape) + n for u, n in zip(layered.unary(), noise, strict=True)
    )
    noisy = layered.with_unary(unary)
    layers = noisy.encode(solver(noisy).decode())
    return -noisy.energies(layers) - noise_centre(layered, noise)
