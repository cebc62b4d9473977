import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .. import _checks
from ..inference import AbstractInference, MeanField
from ..inference._posterior import is_closed, posterior
from ..models import AbstractLayeredModel
from ..samplers._base import binary_only
from ..samplers._sweep import field, start_even, sweep
from ._base import AbstractMemoryless, at_epoch, Inference, Phases


class PercLoss(AbstractMemoryless):
    """CD-PercLoss (Mnih, Larochelle & Hinton 2011): a stochastic search for visible units that the
    model prefers to the data, and a perceptron's step away from them.

    A chain of `k` Gibbs sweeps starts from the model without hidden units, in a CRBM its logistic
    regression. Of the visible units that are most likely given the hidden units it meets, those of
    lowest free energy are taken, $\\hat v$. The loss of an instance is
    $\\max(0, F(v) - F(\\hat v))$: where nothing was found that is better than the data, there is
    nothing to learn.
    """

    k: int = eqx.field(static=True)
    inference: Inference
    centred: bool = eqx.field(static=True, default=False)
    weight_decay: float = eqx.field(static=True, default=0.0)

    def __init__(
        self,
        k: int = 10,
        inference: Inference | None = None,
        centred: bool = False,
        weight_decay: float = 0.0,
    ):
        """**Arguments:**

        - `k`: how many sweeps.
        - `inference`: what to predict by; mean field if not given, as in the paper.
        - `centred`, `weight_decay`: as for [`ebmlearn.CD`][].
        """
        self.k = k
        self.inference = MeanField(50, tol=1e-3) if inference is None else inference
        self.centred = centred
        self.weight_decay = weight_decay

    def __check_init__(self):
        _checks.count("k", self.k)
        at_epoch(self.inference, 0, "sum")

    def sides(
        self,
        model: AbstractLayeredModel,
        visible: Float[Array, "batch visible"],
        *,
        key: PRNGKeyArray,
        epoch: Int[Array, ""],
    ) -> Phases:
        binary_only(model, "PercLoss")
        if not hasattr(model, "free_energy") or not is_closed(model):
            kind = type(model).__name__
            raise ValueError(f"`model` must have a closed free energy, got a {kind}.")
        inference = at_epoch(self.inference, epoch, "sum")
        found, lowest = _search(model, visible.shape[0], self.k, key)
        data = model.free_energy(visible)  # pyright: ignore
        # Where nothing better was found both sides are the same, and cancel.
        better = lowest < data
        return Phases(
            posterior(model, visible, inference),
            posterior(model, jnp.where(better[:, None], found, visible), inference),
            jnp.maximum(data - lowest, jnp.zeros_like(data)).mean(),
        )

    def decoder(self, epoch: int = 0) -> AbstractInference:
        """Mean field, unless another inference was given."""
        return at_epoch(self.inference, epoch, "sum")


def _search(
    model: AbstractLayeredModel, size: int, k: int, key: PRNGKeyArray
) -> tuple[Float[Array, "batch visible"], Float[Array, " batch"]]:
    """The visible units of lowest free energy, among the most likely ones given the hidden units of
    each sweep and at the start, and that free energy.
    """
    energy = model.free_energy  # pyright: ignore
    fields = [jnp.broadcast_to(bias, (size, bias.shape[-1])) for bias in model.unary()]
    first, rest = jax.random.split(key)
    keys = jax.random.split(rest, k)
    layers = start_even(model, [jax.nn.sigmoid(field) for field in fields], first)
    visible = fields[0]
    found = (visible > 0).astype(visible.dtype)

    def one(i: Int[Array, ""], carry: tuple) -> tuple:
        layers, found, lowest = carry
        layers = sweep(model, layers, keys[i])
        candidate = (field(model, layers, 0) > 0).astype(visible.dtype)
        value = energy(candidate)
        found = jnp.where((value < lowest)[:, None], candidate, found)
        return layers, found, jnp.minimum(value, lowest)

    _, found, lowest = jax.lax.fori_loop(0, k, one, (layers, found, energy(found)))
    return found, lowest
