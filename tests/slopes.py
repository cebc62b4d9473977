"""Gradients against differences of a loss."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def assert_slopes(loss, model, gradient, rng, atol=1e-9) -> None:
    """Along a random direction of each parameter: `loss` is a function of the model, in float64."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    leaves, shape = jax.tree.flatten(parameters)
    own = jax.tree.leaves(gradient)
    assert len(own) == len(leaves)

    @jax.jit
    def value(leaves):
        return loss(eqx.combine(jax.tree.unflatten(shape, leaves), rest))

    for k, leaf in enumerate(leaves):
        direction = jnp.asarray(rng.normal(size=leaf.shape))
        ends = [value([*leaves[:k], leaf + e * direction, *leaves[k + 1 :]]) for e in (1e-5, -1e-5)]
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose((own[k] * direction).sum(), slope, rtol=1e-5, atol=atol)
