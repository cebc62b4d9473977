"""Mixed-product belief propagation of an RBM without its messages."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

import ebmlearn as ebm
from ebmlearn.inference import Found
from ebmlearn.models import complete


# Products of so many ratios between exp(-|W|) and exp(|W|) stay in the range of float32.
_GROUP = 8
LARGEST = 10.0


class MarginalMAP(ebm.inference.AbstractInference):
    """The same sweeps as `BP(iterations, product="mixed")` for an RBM, from the same start.

    In mixed-product the visible units send the weights of their most likely states (Ping & Ihler
    2017, eq. (15)). The hidden units then know all they will know from one matrix product, and what
    they send back adds up to the log-odds of a visible unit given all others, hidden units summed
    out. No message has to be stored, which makes a sweep several times faster on a GPU.

    Weights must be between -10 and 10.
    """

    iterations: int = eqx.field(static=True)

    takes = ("binary",)
    product: ClassVar[str] = "mixed"

    def _beliefs(self, problem: Any) -> ebm.Beliefs:
        field, hidden, residual = self._solved(problem.model)
        return ebm.Beliefs(
            problem,
            Found(None, None, "MarginalMAP"),
            log_odds=ebm.Layers(field, hidden),
            converged=residual <= 1e-3,
            iterations=jnp.full(residual.shape, self.iterations, jnp.int32),
            residual=residual,
        )

    def _statistics(self, problem: Any) -> Any:
        field, _, residual = self._solved(problem.model)
        visible = (field > 0).astype(field.dtype)
        found = complete(problem.model, (visible, None))
        return eqx.tree_at(lambda s: (s.converged, s.residual), found, (residual <= 1e-3, residual))

    def _solved(self, model: ebm.RBM) -> tuple[Array, Array, Array]:
        """The log-odds of visible and hidden units, and the largest change of a probability in the
        last sweep.
        """
        return _solved(model.weights, model.visible_bias, model.hidden_bias, self.iterations)


@eqx.filter_jit
def _solved(
    weights: Float[Array, "visible hidden"],
    visible_bias: Float[Array, "batch visible"],
    hidden_bias: Float[Array, "batch hidden"],
    iterations: int,
) -> tuple[Array, Array, Array]:
    clipped = jnp.clip(weights, -LARGEST, LARGEST)
    # Hidden units that make up the last group have no weights, and change nothing.
    rest = ((0, 0), (0, -weights.shape[1] % _GROUP))
    up, down = (jnp.split(jnp.pad(jnp.exp(w), rest), _GROUP, 1) for w in (clipped, -clipped))
    mean = jnp.broadcast_to(weights.sum(1) / 2, visible_bias.shape)
    field, before = visible_bias + mean, jnp.zeros_like(visible_bias)

    def hidden_field(on: Bool[Array, "batch visible"]) -> Float[Array, "batch hidden"]:
        return hidden_bias + jnp.matmul(on.astype(weights.dtype), weights, precision="highest")

    for _ in range(iterations):
        on = field > 0
        hidden = hidden_field(on)
        p = jnp.split(jnp.pad(jax.nn.sigmoid(hidden), rest), _GROUP, 1)
        q = jnp.split(jnp.pad(jax.nn.sigmoid(-hidden), rest, constant_values=1), _GROUP, 1)
        ratio = jnp.ones((), weights.dtype)
        for k in range(_GROUP):
            # What a unit would change: from 0 to 1 if it is 0, from 1 to 0 if it is 1.
            change = jnp.where(on[:, :, None], down[k][None], up[k][None])
            ratio = ratio * (q[k][:, None, :] + p[k][:, None, :] * change)
        total = jnp.log(ratio).sum(-1)
        before, field = field, visible_bias + jnp.where(on, -total, total)
    hidden = hidden_field(field > 0)
    residual = jnp.abs(jax.nn.sigmoid(field) - jax.nn.sigmoid(before)).max(-1)
    return field, hidden, residual
