"""Grids of hidden states: against PGMax's graph of the same, and against enumeration."""

import itertools
import math
from typing import Any, cast

import equinox as eqx
import errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest

import ebmlearn as ebm
import ebmlearn.pgmax
from ebmlearn import messages
from ebmlearn.pgmax import FactorGraphModel, to_pgmax


TABLES = ("down", "right", "diagonal", "antidiagonal")
KEY = jax.random.key(0)


def grid(shape=(3, 4), states=3, seed=0, scale=0.7, channels=True, dtype="float64", **kwargs):
    """A random grid with a noisy channel, and one that is a function of the state."""
    rng = np.random.default_rng(seed)
    tables = [jnp.asarray(scale * rng.normal(size=(states, states)), dtype) for _ in TABLES]
    emissions = None
    if channels:
        noisy = rng.dirichlet(np.ones(2), states)
        label = np.minimum(np.arange(states), 1)
        with np.errstate(divide="ignore"):
            emissions = {
                "pixels": jnp.asarray(np.log(noisy), dtype),
                "labels": jnp.asarray(np.log(np.eye(2)[label]), dtype),
            }
    bias = jnp.asarray(rng.normal(size=states), dtype)
    return ebm.GridMRF(*tables, shape=shape, bias=bias, emissions=emissions, **kwargs)


def enumerated(model, evidence=None):
    """All configurations that agree with evidence, and their log-potentials, by NumPy alone."""
    height, width = model.shape
    counts = [model.bias.size, *(x.shape[1] for x in model.emissions.values())]
    size = height * width
    rows = np.array(list(itertools.product(*(range(n) for n in np.repeat(counts, size)))))
    groups = dict(
        zip(("state", *model.emissions), np.split(rows, len(counts), axis=1), strict=True)
    )
    groups = {k: x.reshape(-1, height, width) for k, x in groups.items()}
    x = groups["state"]
    scores = np.asarray(model.bias)[x].sum((1, 2))
    for r, c in itertools.product(range(height), range(width)):
        for name, (a, b) in zip(TABLES, ((1, 0), (0, 1), (1, 1), (1, -1)), strict=True):
            if 0 <= r + a < height and 0 <= c + b < width:
                scores = scores + np.asarray(getattr(model, name))[x[:, r, c], x[:, r + a, c + b]]
    for name, table in model.emissions.items():
        scores = scores + np.asarray(table)[x, groups[name]].sum((1, 2))
    met = np.ones(len(x), bool)
    for name, states in (evidence or {}).items():
        met &= ((groups[name] == states) | (np.asarray(states) < 0)).all((1, 2))
    return {k: x[met] for k, x in groups.items()}, scores[met]


def pgmax_model(model):
    graph, variables, evidence = to_pgmax(model)
    return FactorGraphModel(graph).with_evidence(evidence), variables


@pytest.fixture
def as_pgmax():
    """PGMax is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("as_pgmax")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("settings", [{}, {"damping": 0.3}, {"temperature": 0.5}])
def test_sweeps_are_those_of_pgmax(settings):
    """Without channels they are the same from the first on, in both forms of the messages."""
    with oracle.x64(True):
        model = grid(channels=False)
        same, variables = pgmax_model(model)
        state = variables["state"]
        held = np.full((2, 3, 4), -1)
        held[1, 1, 2] = 2
        ours = theirs = None
        for iterations in (1, 2, 7):
            for product in ("sum", "max") if not settings else ("sum",):
                inference = ebm.BP(iterations, product=product, **settings)
                ours, theirs = inference(model, {"state": held}), inference(same, {state: held})
                np.testing.assert_allclose(ours["state"], theirs[state], atol=1e-9)
                np.testing.assert_allclose(ours.residual, theirs.residual, atol=1e-9)
        assert ours is not None and theirs is not None
        np.testing.assert_allclose(ours.log_partition, theirs.log_partition, atol=1e-9)
        if not settings:
            inference = ebm.BP(7)
            ours, theirs = inference(model), inference(same)
            for name, x in zip(TABLES, theirs.pairwise.values, strict=True):
                np.testing.assert_allclose(ours.pairwise[name], x.sum(0), atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("as_pgmax")
@pytest.mark.filterwarnings("default")
def test_fixed_points_are_those_of_pgmax():
    """With channels, whose messages reach the states before the first sweep here."""
    with oracle.x64(True):
        model = grid(scale=0.3)
        same, variables = pgmax_model(model)
        inference = ebm.BP(200, tol=1e-13)
        rng = np.random.default_rng(1)
        pixels = rng.integers(-1, 2, (2, 3, 4))
        likely = rng.uniform(size=(3, 4, 2))
        for evidence in (
            {},
            {"pixels": pixels},
            {"pixels": pixels, "labels": np.where(rng.uniform(size=(3, 4)) < 0.3, 1, -1)},
            {"labels": likely, "state": rng.integers(-1, 3, (2, 3, 4))},
        ):
            ours = inference(model, evidence or None)
            theirs = inference(same, {variables[k]: x for k, x in evidence.items()} or None)
            assert ours.converged.all()
            for name in ("state", "pixels", "labels"):
                np.testing.assert_allclose(ours[name], theirs[variables[name]], atol=1e-9)
            np.testing.assert_allclose(ours.log_partition, theirs.log_partition, atol=1e-8)
            found = ours.pairwise
            for name, x in zip((*TABLES, "pixels", "labels"), theirs.pairwise.values, strict=True):
                np.testing.assert_allclose(found[name], x.sum(-3), atol=1e-9)
            states = theirs.decode()
            np.testing.assert_array_equal(ours.decode()["pixels"], states[variables["pixels"]])
        # Energies, too.
        rows = np.stack([rng.integers(0, n, 20) for n in model.num_states], 1)
        np.testing.assert_allclose(model.energy(rows), same.energy(rows), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "product"), [((1, 3), "sum"), ((1, 1), "sum"), ((3, 1), "max")])
def test_chains_are_exact(shape, product):
    with oracle.x64(True):
        model = grid(shape, scale=1.5, seed=3)
        pixels = np.full((2, *shape), -1)
        pixels[1].flat[-1] = 1
        labels = np.full(shape, -1)
        labels.flat[0] = 1
        hidden = np.full(shape, -1)
        hidden.flat[-1] = 2
        for evidence in (
            None,
            {"pixels": pixels},
            {"pixels": pixels, "labels": labels},
            {"state": hidden, "pixels": pixels},
        ):
            beliefs = ebm.BP(4, product=product)(model, evidence)
            assert beliefs.converged.all()
            batch = 1 if evidence is None else 2
            for k in range(batch):
                one = evidence and {
                    n: np.broadcast_to(x, pixels.shape)[k] for n, x in evidence.items()
                }
                groups, scores = enumerated(model, one)
                top = scores.max()
                p = np.exp(scores - top)
                log_z = top if product == "max" else top + math.log(p.sum())
                np.testing.assert_allclose(np.ravel(beliefs.log_partition)[k], log_z, atol=1e-6)
                for name, x in groups.items():
                    if product == "max":
                        found = np.asarray(beliefs.decode()[name]).reshape(-1, *shape)[k]
                        np.testing.assert_array_equal(found, x[scores.argmax()])
                        continue
                    got = np.asarray(beliefs[name]).reshape(-1, *shape, beliefs[name].shape[-1])[k]
                    for s in range(got.shape[-1]):
                        expected = np.tensordot(p / p.sum(), x == s, 1)
                        np.testing.assert_allclose(got[..., s], expected, atol=1e-9)


@pytest.mark.slow
def test_exact_is_enumeration():
    with oracle.x64(True):
        model = grid((2, 2))
        pixels = np.array([[1, -1], [0, -1]])
        beliefs = ebm.Exact()(model, {"pixels": pixels})
        groups, scores = enumerated(model, {"pixels": pixels})
        p = np.exp(scores)
        np.testing.assert_allclose(beliefs.log_partition, math.log(p.sum()), atol=1e-9)
        p /= p.sum()
        for name, x in groups.items():
            expected = np.stack(
                [np.tensordot(p, x == s, 1) for s in range(beliefs[name].shape[-1])], -1
            )
            np.testing.assert_allclose(beliefs[name], expected, atol=1e-9)
        x = groups["state"]
        both = np.zeros((3, 3))
        np.add.at(both, (x[:, 0, 1], x[:, 1, 0]), p)
        np.testing.assert_allclose(beliefs.pairwise["antidiagonal"], both, atol=1e-9)
        seen = np.zeros((3, 2))
        for r, c in np.ndindex(2, 2):
            np.add.at(seen, (x[:, r, c], groups["pixels"][:, r, c]), p)
        np.testing.assert_allclose(beliefs.pairwise["pixels"], seen, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.3, 0.01])
def test_low_temperatures(temperature):
    """In the fast form and, where that has no room for it, in the general one."""
    with oracle.x64(False):
        model = grid((1, 4), scale=3.0, channels=False, dtype="float32")
        fits = messages.outline(model).fits(jnp.asarray(temperature), "sum", False)
        assert bool(fits) == (temperature > 0.1)
        _, scores = enumerated(model)
        scores = np.asarray(scores, np.float64) / temperature
        expected = scores.max() + math.log(np.exp(scores - scores.max()).sum())
        beliefs = ebm.BP(5, temperature=temperature)(model)
        np.testing.assert_allclose(beliefs.log_partition, temperature * expected, rtol=1e-5)
        hard = ebm.BP(5, product="max")(model)
        if temperature < 0.1:
            np.testing.assert_array_equal(beliefs.decode()["state"], hard.decode()["state"])
        # While the temperature is traced, the choice is made at run time.
        traced = jax.jit(lambda t: ebm.BP(5, temperature=t)(model)["state"])
        found = traced(jnp.asarray(temperature))
        np.testing.assert_allclose(found, beliefs["state"], atol=1e-5)


def test_wide_tables():
    """Tables for which the fast form has no room at temperature 1."""
    with oracle.x64(False):
        zero = jnp.zeros((2, 2))
        wide = jnp.asarray([[50.0, -50.0], [0.0, 0.0]])
        bias = jnp.asarray([-45.0, 45.0])
        model = ebm.GridMRF(zero, wide, zero, zero, shape=(1, 2), bias=bias)
        assert not messages.outline(model).fits(jnp.asarray(1.0), "sum", False)
        found = ebm.BP(5)(model, {"state": jnp.asarray([[0, -1]])})["state"][0, 1]
        # Scores of 50 - 45 and -50 + 45.
        np.testing.assert_allclose(found, [1 / (1 + np.exp(-10)), 1 / (1 + np.exp(10))], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [-200.0, -np.inf])
def test_wide_tables_under_jit(entry):
    """Neighbours are equal, at the cost of one of two channels that differ by 100."""
    with oracle.x64(False):
        zero, equal = jnp.zeros((2, 2)), jnp.asarray([[0.0, entry], [entry, 0.0]])
        seen = {"pixels": 100 * jnp.eye(2) - 100}
        model = ebm.GridMRF(zero, equal, zero, zero, shape=(1, 2), emissions=seen)
        evidence = {"pixels": jnp.asarray([[0, 1]])}

        def answer(model):
            return ebm.BP(5)(model, evidence)["state"]

        for found in (answer(model), jax.jit(answer)(model)):
            np.testing.assert_allclose(found, np.full((1, 2, 2), 0.5), atol=1e-6)


@pytest.mark.slow
def test_impossible_evidence_of_a_grid():
    zero, equal = jnp.zeros((2, 2)), jnp.asarray([[0.0, -jnp.inf], [-jnp.inf, 0.0]])
    model = ebm.GridMRF(zero, equal, zero, zero, shape=(1, 3))
    for row, possible in (([0, -1, 1], False), ([0, 1, -1], False), ([-1, 1, -1], True)):
        for inference in (ebm.BP(5), ebm.MPLP(50)):
            found = inference(model, {"state": jnp.asarray([row])})
            assert bool(found.converged) == possible
            assert bool(jnp.isfinite(found.log_partition)) == possible


def test_states_that_a_bias_excludes():
    zero = jnp.zeros((2, 2))
    model = ebm.GridMRF(zero, zero, zero, zero, shape=(1, 2), bias=jnp.asarray([-jnp.inf, 0.0]))
    np.testing.assert_array_equal(
        model.energy({"state": jnp.asarray([[[0, 1]], [[1, 1]]])}), [np.inf, 0]
    )


@pytest.mark.slow
def test_the_best_of_several_that_are_as_good():
    zero, apart = jnp.zeros((2, 2)), jnp.asarray([[0.0, 1.0], [1.0, 0.0]])
    model = ebm.GridMRF(zero, apart, zero, zero, shape=(1, 2))
    best = ebm.Exact(product="max")(model)
    np.testing.assert_array_equal(model.energy(best.decode()), -1)
    assert set(np.unique(best["state"])) == {0, 1}
    np.testing.assert_array_equal(
        ebm.Exact(product="max").statistics(model).pairwise["right"].sum(), 1
    )


@pytest.mark.slow
def test_temperatures_that_are_too_low():
    zero, right = jnp.zeros((2, 2)), jnp.asarray([[150.0, 0.0], [0.0, 200.0]])
    model = ebm.GridMRF(zero, right, zero, zero, shape=(1, 2))
    np.testing.assert_allclose(ebm.BP(5, temperature=1e-3)(model).log_partition, 200, rtol=1e-5)
    with pytest.raises(ValueError, match=r"`temperature` must be at least 0.0008 .*, got 0.0007"):
        ebm.BP(5, temperature=7e-4)(model)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_gradients_through_all_sweeps(temperature):
    """Against differences, in both forms; none for channels but those that are learned."""
    with oracle.x64(True):
        model = grid((2, 3), learned=("pixels",), scale=20.0 if temperature < 1 else 0.7)
        assert bool(messages.outline(model).fits(jnp.asarray(temperature), "sum", False)) == (
            temperature == 1
        )
        pixels = np.array([[1, 0, 1], [0, -1, 0]])

        def loss(model):
            settings = ebm.BP(4, temperature=temperature, damping=0.2, unroll=True)
            beliefs = settings(model, {"pixels": pixels})
            return jnp.log(beliefs["labels"][..., 1]).sum() + beliefs["pixels"][1, 1, 0]

        gradient = eqx.filter_grad(loss)(model)
        assert (np.asarray(gradient.channel_tables[1]) == 0).all()
        rng = np.random.default_rng(0)
        for where in (
            lambda m: m.down,
            lambda m: m.antidiagonal,
            lambda m: m.bias,
            lambda m: m.channel_tables[0],
        ):
            value = where(model)
            move = rng.normal(size=value.shape)
            ahead, behind = (
                loss(eqx.tree_at(where, model, value + step * move)) for step in (1e-6, -1e-6)
            )
            expected = (ahead - behind) / 2e-6
            found = (where(gradient) * move).sum()
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_rounding_does_not_grow_in_gradients():
    """What is constant in a message cancels, in float32 and after many sweeps, in both forms."""
    found = {}
    for dtype in ("float32", "float64"):
        with oracle.x64(dtype == "float64"):
            model = grid((6, 6), states=5, scale=0.5, dtype=dtype)
            model = eqx.tree_at(lambda m: m.down, model, model.down.at[0, 1].set(-1000))
            pixels = np.random.default_rng(0).integers(0, 2, (6, 6))

            def loss(model, temperature, pixels=pixels):
                beliefs = ebm.BP(15, temperature=temperature, unroll=True)(
                    model, {"pixels": pixels}
                )
                return (beliefs["labels"][..., 1] ** 2).sum()

            slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))
            found[dtype] = []
            for temperature in (1.0, 0.5):
                gradient, slope = slopes(model, jnp.asarray(temperature, dtype))
                found[dtype] += [*gradient.log_potentials[:4], gradient.bias, slope]
    for one, two in zip(found["float32"], found["float64"], strict=True):
        size = np.abs(two).max()
        np.testing.assert_allclose(one, two, atol=1e-3 * size)


@pytest.mark.slow
def test_gradient_of_the_bethe_free_energy():
    """At a fixed point it is the expected statistics."""
    with oracle.x64(True):
        model = grid(scale=0.3, learned=("pixels", "labels"))
        inference = ebm.BP(300, tol=1e-14)
        gradient = eqx.filter_grad(lambda m: inference(m).log_partition)(model)
        statistics = inference.statistics(model)
        for one, two in zip(gradient.log_potentials, statistics.pairwise.values, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-8)
        np.testing.assert_allclose(gradient.bias, statistics.units["state"].sum((0, 1)), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("product", ["sum", "max"])
def test_what_tables_exclude_stays_finite(product):
    """As do gradients, whatever evidence says; of contradictions log Z alone is infinite."""
    with oracle.x64(False):
        model = grid(dtype="float32")
        hard = jnp.where(jnp.eye(3, dtype=bool), 0.0, -1000.0)
        never = jnp.where(jnp.eye(3, dtype=bool), 0.0, -jnp.inf)
        model = ebm.GridMRF(
            hard, never, model.diagonal, hard, shape=(3, 4), emissions=model.emissions
        )
        labels = np.full((3, 3, 4), -1)
        labels[1, 0, 0] = 1
        labels[2] = np.arange(12).reshape(3, 4) % 2  # excluded by the tables
        pixels = np.ones((3, 3, 4), int)

        def loss(model):
            beliefs = ebm.BP(6, product=product, unroll=True)(
                model, {"labels": labels, "pixels": pixels}
            )
            value = beliefs.log_partition
            return value.sum() + beliefs["state"][..., 0].sum(), (value, beliefs["state"])

        (_, (value, states)), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(model)
        np.testing.assert_array_equal(np.isfinite(value), [True, True, False])
        assert value[2] == -np.inf
        assert np.isfinite(np.asarray(states)).all()
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
        if product == "sum":
            # All pixels share one state, so that the label of one tells that of the others.
            assert np.asarray(states)[1, ..., 0].max() < 1e-6
        # A state that is held is held, whatever its neighbours say.
        held = np.arange(12).reshape(3, 4) % 3
        beliefs = ebm.BP(6, product=product)(model, {"state": held})
        np.testing.assert_array_equal(beliefs.decode()["state"], held)
        assert np.isinf(model.energy({"state": held, "pixels": pixels[0], "labels": labels[2]}))


@pytest.mark.slow
def test_samples_and_peaks():
    """PMP on a chain finds maxima, whose log-potentials are those of the model."""
    with oracle.x64(True):
        model = grid((1, 4), seed=2)
        samples, info = ebm.sample_with_info(model, ebm.PMP(30), 64, key=KEY)
        assert samples["labels"].shape == (64, 1, 4)
        assert info.peak.all()
        np.testing.assert_allclose(model.energy(samples), np.ravel(info.energy), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [ebm.MLE(ebm.BP(20)), ebm.PMPLearner(ebm.PMP(20))])
def test_fit(learner):
    """Learns from noisy pixels alone that neighbours agree; the channel stays as it was."""
    rng = np.random.default_rng(0)
    truth = np.cumsum(rng.uniform(size=(200, 1, 8)) < 0.1, -1) % 2
    noisy = np.where(rng.uniform(size=truth.shape) < 0.1, 1 - truth, truth)
    channel = np.log(np.array([[0.9, 0.1], [0.1, 0.9]], np.float32))
    model = ebm.GridMRF.init((1, 8), 2, {"pixels": channel}, key=KEY, scale=0.01)
    fitted = ebm.fit(
        model,
        learner,
        {"pixels": noisy},
        optimizer=optax.adam(0.1),
        epochs=8,
        batch_size=50,
        key=KEY,
    ).model
    np.testing.assert_array_equal(fitted.emissions["pixels"], channel)
    table = np.asarray(fitted.right)
    assert table[0, 0] + table[1, 1] - table[0, 1] - table[1, 0] > 1
    answer = ebm.query(fitted, {"pixels": noisy}, inference=ebm.BP(20))["state"]
    if isinstance(learner, ebm.MLE):
        assert (np.asarray(answer.argmax(-1)) != truth).mean() < (noisy != truth).mean()


@pytest.mark.slow
def test_groups_and_layouts(tmp_path):
    model = grid(dtype="float32")
    shown = model.variables.shown(model.unary(), ())
    assert model.named(shown)["labels"].shape == (3, 4, 2)
    for bias, own in zip(model.unary(), model.variables.hidden_in(model.named(shown)), strict=True):
        np.testing.assert_array_equal(bias, own)
    images = np.zeros((5, 3, 4), bool)
    assert model.rows({"pixels": images}).shape == (5, 36)
    # Any grid may have the same tables.
    ebm.save(tmp_path / "model.ebm", model)
    again = ebm.load(tmp_path / "model.ebm", grid(seed=1, dtype="float32"))
    np.testing.assert_array_equal(again.diagonal, model.diagonal)
    beliefs = jax.jit(lambda m: ebm.BP(5)(m, {"pixels": images})["labels"])(again)
    assert beliefs.shape == (5, 3, 4, 2)
    assert np.allclose(beliefs.sum(-1), 1, atol=1e-6)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "case",
    [
        (
            lambda t, z: ebm.GridMRF(t, t, t, z(2, 3), shape=(2, 2)),
            ValueError,
            "`antidiagonal`.*3, 3.*2, 3",
        ),
        (lambda t, z: ebm.GridMRF(z(3), t, t, t, shape=(2, 2)), ValueError, "`down`.*3, 3"),
        (lambda t, z: ebm.GridMRF(t, t, t, t, shape=(2, 2), bias=z(4)), ValueError, "`bias`.*3.*4"),
        (
            lambda t, z: ebm.GridMRF(t, t, t, t, shape=cast(Any, (2,))),
            ValueError,
            "`shape` must be a height",
        ),
        (lambda t, z: ebm.GridMRF(t, t, t, t, shape=(2, 0)), ValueError, "`shape`.*1.*0"),
        (
            lambda t, z: ebm.GridMRF(t * jnp.nan, t, t, t, shape=(2, 2)),
            ValueError,
            "`down` must be finite",
        ),
        (
            lambda t, z: ebm.GridMRF(t, t, t, t, shape=(2, 2), emissions=z(3, 2)),
            TypeError,
            "`emissions` must be a dictionary",
        ),
        (
            lambda t, z: ebm.GridMRF(t, t, t, t, shape=(2, 2), emissions={"a": z(2, 3)}),
            ValueError,
            r"`emissions\['a'\]`.*\(3, values\).*\(2, 3\)",
        ),
        (
            lambda t, z: ebm.GridMRF(t, t, t, t, shape=(2, 2), emissions={"state": z(3, 3)}),
            ValueError,
            "names of its own.*'state'",
        ),
        (
            lambda t, z: ebm.GridMRF(
                t, t, t, t, shape=(2, 2), emissions={"a": z(3, 2)}, learned=("b",)
            ),
            ValueError,
            "`learned`.*'a'.*'b'",
        ),
        (lambda t, z: ebm.GridMRF.init((2, 2), 0, key=KEY), ValueError, "`states`.*1.*0"),
    ],
)
def test_wrong_models(case):
    call, *expected = case
    table = jnp.zeros((3, 3))
    errors.check((lambda: call(table, lambda *shape: jnp.zeros(shape)), *expected))


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "case",
    [
        (
            {"pixel": np.zeros((3, 4), int)},
            KeyError,
            "`evidence` must be one of 'state', 'pixels', 'labels', got 'pixel'",
        ),
        ({"pixels": np.zeros((4, 3), int)}, ValueError, r"`evidence`.*3, 4.*\(4, 3\)"),
        ({"pixels": np.full((3, 4), 2)}, ValueError, "`evidence`.*0 to 1.*got 2"),
        ({"state": np.full((3, 4), 3)}, ValueError, "`evidence`.*0 to 2.*got 3"),
        ({"labels": np.zeros((3, 4, 3))}, ValueError, r"`evidence`.*3, 4, 2.*\(3, 4, 3\)"),
        ({"labels": -np.ones((3, 4, 2))}, ValueError, "`evidence`.*>= 0"),
        ({"labels": [[0]]}, TypeError, "`evidence` must hold arrays"),
        (np.zeros(35, int), ValueError, r"`evidence`.*36.*\(35,\)"),
    ],
)
def test_wrong_evidence(case):
    evidence, *expected = case
    model = grid(dtype="float32")
    errors.check((lambda: ebm.BP(3)(model, evidence), *expected))
    with pytest.raises(KeyError, match="'down'"):
        ebm.BP(3)(model).pairwise["up"]


def test_states_that_do_not_fit_into_32_bits():
    zero = jnp.zeros((2, 2))
    model = ebm.GridMRF(zero, zero, zero, zero, shape=(1, 2))
    for wrong in (np.array([[2**32 + 1, 0]]), np.array([[2**32 - 1, 0]], np.uint32)):
        with pytest.raises(ValueError, match=r"states from 0 to 1, .* got 429496729\d"):
            ebm.Exact()(model, {"state": wrong})
