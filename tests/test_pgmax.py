"""Belief propagation agrees with that of PGMax."""

import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import programs
import pytest
from untyped import nd_var_array

import ebmlearn as ebm
import ebmlearn.pgmax


pytestmark = pytest.mark.filterwarnings("default")


def test_import_does_not_warn_where_jax_is_deprecating(monkeypatch):
    """On JAX 0.8, even `hasattr(jax.lib, "xla_bridge")` warns."""
    lib = types.ModuleType("jax.lib")

    def warn(name):
        warnings.warn(f"jax.lib.{name} is deprecated", DeprecationWarning, stacklevel=2)
        raise AttributeError(name)

    lib.__getattr__ = warn
    monkeypatch.setattr(jax, "lib", lib)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ebmlearn.pgmax._compat.make_compatible()
    assert lib.xla_bridge.get_backend().platform == jax.default_backend()


def pgmax_log_odds(rbm, iterations, damping, temperature):
    """PGMax's own beliefs, as log-odds."""
    from pgmax import fgraph, fgroup, infer

    visible = nd_var_array(num_states=2, shape=(rbm.num_visible,))
    hidden = nd_var_array(num_states=2, shape=(rbm.num_hidden,))
    graph = fgraph.FactorGraph(variable_groups=[visible, hidden])
    pairs = np.argwhere(np.ones((rbm.num_visible, rbm.num_hidden)))
    potentials = np.zeros((len(pairs), 2, 2))
    potentials[:, 1, 1] = np.asarray(rbm.weights).ravel()
    graph.add_factors(
        fgroup.PairwiseFactorGroup(
            variables_for_factors=[[visible[i], hidden[j]] for i, j in pairs],
            log_potential_matrix=potentials,
        )
    )
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        bp = infer.build_inferer(graph.bp_state, backend="bp")
        evidence = {
            group: jnp.stack([jnp.zeros_like(bias), bias], axis=1)
            for group, bias in ((visible, rbm.visible_bias), (hidden, rbm.hidden_bias))
        }
        arrays = bp.init(evidence_updates=evidence)
        run = jax.jit(lambda a: bp.run(a, iterations, damping, temperature))
        beliefs = bp.get_beliefs(run(arrays))
        marginals = infer.get_marginals(beliefs)
    log_odds = [np.asarray(beliefs[g][:, 1] - beliefs[g][:, 0]) for g in (visible, hidden)]
    return log_odds, [np.asarray(marginals[g][:, 1]) for g in (visible, hidden)]


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "damping"), [(0.3, 0.0), (1.0, 0.5), (2.5, 0.0)])
def test_the_same_beliefs_at_every_step(temperature, damping):
    # Not only where it converges: the same schedule from the same start, step for step.
    rng = np.random.default_rng(0)
    for scale, iterations in ((3.0, 1), (0.5, 4), (3.0, 30)):
        rbm = oracle.random_rbm(rng, 7, 5, scale=scale)
        bp = ebm.BP(
            iterations, temperature=temperature, damping=damping, start="plain", schedule="flooding"
        )
        beliefs = bp(rbm)
        log_odds, marginals = pgmax_log_odds(rbm, iterations, damping, temperature)
        np.testing.assert_allclose(beliefs.log_odds.visible, log_odds[0], atol=2e-4)
        np.testing.assert_allclose(beliefs.visible, marginals[0], atol=1e-5)
        np.testing.assert_allclose(beliefs.hidden, marginals[1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_the_same_fixed_point_from_the_default_settings(temperature):
    rbm = oracle.random_rbm(np.random.default_rng(1), 8, 6, scale=0.5)
    beliefs = ebm.BP(iterations=200, temperature=temperature, tol=1e-7)(rbm)
    assert beliefs.converged
    _, marginals = pgmax_log_odds(rbm, 200, 0.5, temperature)
    np.testing.assert_allclose(beliefs.visible, marginals[0], atol=1e-5)
    np.testing.assert_allclose(beliefs.hidden, marginals[1], atol=1e-5)


def test_the_same_max_product():
    rbm = oracle.random_rbm(np.random.default_rng(2), 7, 5, scale=2.0)
    beliefs = ebm.BP(20, product="max", damping=0.5, start="plain", schedule="flooding")(rbm)
    log_odds, _ = pgmax_log_odds(rbm, 20, 0.5, 0.0)
    np.testing.assert_allclose(beliefs.log_odds.visible, log_odds[0], atol=1e-4)
    np.testing.assert_allclose(beliefs.log_odds.hidden, log_odds[1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version_info__ < (0, 8), reason="one of them fails on older JAX, without ebmlearn too"
)
def test_the_tests_of_pgmax_itself(tmp_path):
    """Those that its wheel installs, with the plugin imported."""
    import pgmax

    source = Path(pgmax.__file__).parents[1] / "tests"
    names = ["test_clipping.py", "test_energy.py", "test_examples.py", "test_pgmax.py"]
    for name in names:
        (tmp_path / name).write_text((source / name).read_text())
    (tmp_path / "conftest.py").write_text("import ebmlearn.pgmax\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    out = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=programs.quickly()
    )
    assert out.returncode == 0, out.stdout
    assert re.search(r"^8 passed", out.stdout, re.MULTILINE), out.stdout
