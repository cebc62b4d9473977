"""Missing values in data are unobserved units."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest

import ebmlearn as ebm


KEY = jax.random.key(0)
GAPS = np.array([[1, np.nan, 0, 1], [np.nan, np.nan, 1, 0], [0, 1, 1, 0]])


def log_likelihood(model, rows):
    """The mean log-probability of what is there, by enumeration."""
    truth = oracle.truth(model)
    states = np.asarray(truth.states)
    total = 0.0
    for row in rows:
        there = np.flatnonzero(~np.isnan(row))
        agree = (states[:, there] == row[there]).all(1)
        total = total + jax.scipy.special.logsumexp(truth.scores[agree]) - truth.log_z
    return total / len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rbm", "dbm", "boltzmann", "semi_restricted"])
def test_mle_is_the_slope_of_the_likelihood(name):
    """By differences of the likelihood of what is there."""
    with oracle.x64(True):
        rng = np.random.default_rng(0)
        model = oracle.MODELS[name](rng, scale=1.0, dtype="float64")
        rows = rng.integers(0, 2, (3, model.layers[0].size)).astype(float)
        rows[0, 1] = rows[1, 0] = rows[1, 2] = np.nan
        gradient, _, _ = ebm.MLE(ebm.Exact()).step(model, None, rows, key=KEY, epoch=0)
        leaves, structure = jax.tree.flatten(model)
        for k, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
            place = tuple(rng.integers(0, n) for n in leaf.shape)
            if leaf.ndim == 2 and place[0] == place[1] and leaf.shape[0] == leaf.shape[1]:
                place = (0, 1)
            values = []
            for sign in (1, -1):
                moved = leaf.at[place].add(sign * 1e-5)
                if any(x is leaf for x in model.inside()):
                    moved = moved.at[place[::-1]].add(sign * 1e-5)
                changed = jax.tree.unflatten(structure, [*leaves[:k], moved, *leaves[k + 1 :]])
                values.append(float(log_likelihood(changed, rows)))
            np.testing.assert_allclose(slope[place], (values[1] - values[0]) / 2e-5, atol=1e-6)


@pytest.mark.slow
def test_by_belief_propagation_on_a_tree():
    with oracle.x64(True):
        model, _ = oracle.random_tree_rbm(np.random.default_rng(1), 4, 3, dtype="float64")
        exact, by_bp = (
            ebm.MLE(inference).step(model, None, GAPS, key=KEY, epoch=0)[0]
            for inference in (ebm.Exact(), ebm.BP(30))
        )
        # Of two units that are not joined, belief propagation says nothing together.
        joined = np.asarray(model.weights) != 0
        exact, by_bp = (jax.tree.leaves(x) for x in (exact, by_bp))
        for a, b in zip(exact, by_bp, strict=True):
            keep = joined if a.ndim == 2 else np.ones(a.shape, bool)
            np.testing.assert_allclose(a[keep], b[keep], atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "model"),
    [
        (ebm.MLE(ebm.BP(5)), ebm.RBM.init(4, 3, key=0)),
        (ebm.SAP(num_chains=5, inference=ebm.BP(5)), ebm.RBM.init(4, 3, key=0)),
        (ebm.QueryTraining(), ebm.QueryModel(ebm.RBM.init(4, 3, key=0), 4)),
    ],
)
def test_fit_goes_on_to_learn(learner, model):
    rows = np.tile(GAPS, (4, 1))
    rows[:, 2] = 1
    found = ebm.fit(
        model,
        learner,
        rows,
        optimizer=optax.adam(0.1),
        epochs=20,
        batch_size=6,
        key=KEY,
        progress=False,
    )
    inference = None if isinstance(model, ebm.QueryModel) else ebm.Exact()
    answer = ebm.query(found.model, np.array([1, np.nan, np.nan, 0]), None, inference)
    assert answer[2] > 0.8


@pytest.mark.slow
def test_a_query_that_says_nan_is_one_with_a_mask():
    model = ebm.RBM.init(4, 3, key=0, scale=1.0)
    there = ~np.isnan(GAPS)
    by_mask = ebm.query(model, np.nan_to_num(GAPS), there, ebm.Exact())
    np.testing.assert_array_equal(ebm.query(model, GAPS, None, ebm.Exact()), by_mask)
    fewer = there & np.array([True, True, True, False])
    found = ebm.query(model, GAPS, np.array([True, True, True, False]), ebm.Exact())
    np.testing.assert_array_equal(found, ebm.query(model, np.nan_to_num(GAPS), fewer, ebm.Exact()))


@pytest.mark.slow
def test_the_loss_of_queries_does_not_look_at_gaps():
    model = ebm.QueryModel(ebm.RBM.init(4, 3, key=0, scale=1.0), 4)
    learner = ebm.QueryTraining(
        ebm.queries.FixedTargets([True, True, False, False], [False, False, True, True])
    )
    rows = np.array([[1, np.nan, 0, np.nan]])
    gradient, _, info = learner.step(model, None, rows, key=KEY, epoch=0)
    p = ebm.query(model, np.array([1, 0, 0, 0.0]), np.array([True, False, False, False]))[2]
    np.testing.assert_allclose(info.loss, -jnp.log1p(-p), rtol=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_learners_that_need_all_values_say_so():
    model = ebm.RBM.init(4, 3, key=0)
    for learner in (
        ebm.CD(),
        ebm.PercLoss(),
        ebm.MSSVM(ebm.BP(5, product="mixed")),
        ebm.LSSVM(ebm.BP(5, product="max")),
        ebm.PseudoLikelihood(),
    ):
        name = type(learner).__name__
        with pytest.raises(ValueError, match=f"`batch` must hold no missing values for {name}"):
            learner.step(model, None, GAPS, key=KEY, epoch=0)
    with pytest.raises(ValueError, match="`data` must hold no missing values here"):
        ebm.log_likelihood(model, GAPS, 0.0)


@pytest.mark.slow
def test_batches_of_a_loader_may_have_gaps():
    """One batch of all rows is the same as the rows themselves, up to their order."""
    model = ebm.RBM.init(4, 3, key=0, scale=0.5)
    options: Any = dict(optimizer=optax.sgd(0.1), epochs=3, key=KEY, progress=False)
    found = ebm.fit(model, ebm.MLE(ebm.Exact()), [GAPS], **options).model
    want = ebm.fit(model, ebm.MLE(ebm.Exact()), GAPS, batch_size=3, **options).model
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_what_is_augmented_has_no_gaps():
    model = ebm.RBM.init(4, 3, key=0)
    with pytest.raises(ValueError, match=r"`augment` must return a batch without missing values"):
        ebm.fit(model, ebm.MLE(ebm.BP(2)), GAPS, augment=lambda batch, key: batch)
    ebm.fit(
        model,
        ebm.MLE(ebm.BP(2)),
        GAPS,
        augment=lambda batch, key: jnp.nan_to_num(batch),
        epochs=1,
        progress=False,
    )
