"""The kernel that sweeps on GPUs, run here by Pallas's interpreter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ebmlearn as ebm
from ebmlearn.messages import _odds, Engine, engine
from ebmlearn.messages._odds import by_kernel
from ebmlearn.models._problem import Instance
from ebmlearn.units import _random


RULES = {
    "odds": {"form": "odds", "schedule": "layers"},
    "log-odds": {"schedule": "layers"},
    "max": {"product": "max", "schedule": "layers"},
    "damped": {"schedule": "layers", "damping": 0.4},
    "flooding": {"product": "max", "schedule": "flooding", "damping": 0.4},
    "odds flooding": {"form": "odds", "schedule": "flooding"},
}


def _rbm(scale=1.0):
    keys = jax.random.split(jax.random.key(3), 3)
    shapes = (21, 12), (5, 21), (12,)
    parts = (jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))
    weights, *biases = parts
    return ebm.RBM(scale * weights, *biases)


def _views(name, scale=1.0):
    settings = {**RULES[name]}
    damping = settings.pop("damping", None)
    if damping is not None:
        settings["damping"] = jnp.asarray(damping)
    rbm = _rbm(scale)
    clamp = jnp.zeros((5, 21)).at[:, 2].set(1).at[1, 7].set(-1)
    hidden = jnp.broadcast_to(rbm.hidden_bias, (5, 12))
    instances = Instance((rbm.visible_bias, hidden), (clamp, jnp.zeros((5, 12)).at[0, 3].set(1)))
    return engine(rbm, temperature=jnp.ones(()), **settings), instances


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_kernel_does_the_same_sweeps(name):
    messages, instances = _views(name)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def both(instance, number):
        start = messages.start(instance, "centred")
        return (
            messages.one_by_one(start, instance, number),
            by_kernel(messages, start, instance, number, 2, True),
        )

    for number in (0, 3, 4):
        wanted, found = both(instances, jnp.asarray(number, jnp.int32))
        assert jax.tree.structure(wanted) == jax.tree.structure(found)
        for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_large_weights_lose_no_digits():
    messages, instances = _views("log-odds", scale=300.0)
    one = jax.tree.map(lambda x: x[0], instances)
    start, count = messages.start(one, "centred"), jnp.asarray(4, jnp.int32)
    (wanted, _), (found, _) = (
        jax.jit(Engine.one_by_one)(messages, start, one, count),
        jax.jit(functools.partial(by_kernel, interpret=True))(messages, start, one, count),
    )
    for a, b in zip(wanted.fields, found.fields, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-4)


@pytest.mark.slow
def test_derivatives_are_those_of_the_plain_sweeps():
    messages, instances = _views("log-odds")
    one = jax.tree.map(lambda x: x[0], instances)
    count = jnp.asarray(3, jnp.int32)

    def end(run, unary):
        instance = one._replace(unary=unary)
        return run(messages, messages.start(instance, "centred"), instance, count)[0].fields

    tangents = jax.tree.map(jnp.ones_like, one.unary)
    runs = Engine.one_by_one, functools.partial(by_kernel, interpret=True)
    pairs = [jax.jvp(functools.partial(end, run), (one.unary,), (tangents,))[1] for run in runs]
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [7, 8])
def test_the_kernel_draws_the_same_units(rows):
    field, key = jax.random.normal(jax.random.key(1), (rows, 300)), jax.random.key(5)
    wanted = _random.decide(field, _random.uniforms(key, field.shape, field.dtype))
    found = _random._by_kernel(field, jax.random.key_data(key), True)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(_random.decided(field, key), wanted)


@pytest.mark.slow
def test_a_cpu_beside_a_gpu_sweeps_plainly(monkeypatch):
    rbm = _rbm()
    wanted = ebm.BP(4)(rbm).visible
    monkeypatch.setattr(_odds, "serves", lambda *_: True)
    monkeypatch.setattr(_odds, "_on_gpu", lambda: True)
    jax.clear_caches()
    np.testing.assert_allclose(ebm.BP(4)(rbm).visible, wanted, rtol=1e-6)
    gradient = jax.grad(lambda rbm: ebm.BP(4)(rbm).log_partition.sum())(rbm)
    assert np.isfinite(gradient.weights).all()
