"""The mixed-product of the benchmarks, which stores no messages."""

import jax
import jax.numpy as jnp
import pytest

import ebmlearn as ebm
from benchmarks._marginal_map import MarginalMAP
from benchmarks.crbm import shifted


@pytest.mark.parametrize("scale", [0.1, 2.0])
@pytest.mark.parametrize("sweeps", [1, 10])
def test_sweeps_without_messages_match_mixed_product(scale, sweeps):
    keys = jax.random.split(jax.random.key(0), 3)
    model = ebm.RBM(
        scale * jax.random.normal(keys[0], (40, 23)),
        jax.random.normal(keys[1], (7, 40)),
        jax.random.normal(keys[2], (7, 23)),
    )
    messages, without = ebm.BP(sweeps, product="mixed"), MarginalMAP(sweeps)
    expected, found = messages(model).log_odds.visible, without(model).log_odds.visible
    assert jnp.allclose(expected, found, atol=1e-4)
    expected, found = messages.statistics(model), without.statistics(model)
    assert (expected.units.visible == found.units.visible).all()
    assert jnp.allclose(expected.units.hidden, found.units.hidden, atol=1e-5)
    assert jnp.allclose(expected.pairwise, found.pairwise, atol=1e-5)


def test_shifts_move_images_by_at_most_a_pixel():
    image = jnp.zeros((28, 28), jnp.int32).at[10, 12].set(1)
    images = jnp.broadcast_to(image.reshape(-1), (200, 784))
    at = shifted(images, 1, key=jax.random.key(0)).argmax(1)
    assert set(zip((at // 28).tolist(), (at % 28).tolist(), strict=True)) == {
        (row, column) for row in (9, 10, 11) for column in (11, 12, 13)
    }
