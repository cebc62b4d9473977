import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..models import BoltzmannMachine
from ..models._view import Instance
from ._enumeration import CHUNK, Sides, Table
from ._gaussian import GaussianBeliefs, GaussianInstance, GaussianProblem
from ._instances import each


@eqx.filter_jit
def gaussian_exact(problem: GaussianProblem) -> GaussianBeliefs:
    """Moments of a mixture of Gaussians, one for each configuration of the hidden units. With the
    unobserved visible units integrated out, these are a Boltzmann machine.
    """
    problem = problem.checked()
    weights = problem.model.weights
    hidden = problem.model.num_hidden
    sides = Sides((0,), (), (hidden,), "sum")
    diagonal = jnp.eye(hidden, dtype=bool)

    def one(at: GaussianInstance) -> tuple[Array, ...]:
        free = weights * at.free[:, None]
        products = free.T @ free
        bias = at.bias + at.value @ weights + jnp.diagonal(products) / 2
        machine = BoltzmannMachine(jnp.where(diagonal, 0, products), bias)
        table = Table(machine, Instance((bias,), (None,)), sides)
        scores = table.scores()
        log_odds = table.listed_log_odds(scores)
        both, _ = table.moments(jnp.exp(scores - jax.nn.logsumexp(scores)))
        p = jnp.diagonal(both)
        covariance = both - p[:, None] * p[None, :]
        variance = at.free + ((free @ covariance) * free).sum(1)
        return free @ p + at.value, variance, log_odds

    chunk = max(1, CHUNK // 2**hidden)
    mean, variance, log_odds = each(one, problem.instances(), problem.shape, chunk)
    shape = problem.shape
    return problem.beliefs(
        mean,
        variance,
        log_odds=log_odds,
        converged=jnp.ones(shape, bool),
        iterations=jnp.zeros(shape, jnp.int32),
        residual=jnp.zeros(shape, weights.dtype),
        guarded=jnp.zeros(shape, weights.dtype),
    )
