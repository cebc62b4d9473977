# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Pictures are tested by drawing them: onto axes that are there, and onto new ones."""

import functools
from typing import Any, cast

import errors
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

import ebmlearn as ebm


matplotlib.use("Agg")
import matplotlib.pyplot as plt

from ebmlearn import plotting
from ebmlearn.estimate import AISEstimate
from ebmlearn.training import History


KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def onto(draw, *args, **kwargs) -> Any:
    """Draws onto axes that were given, which are returned and make no figure; then onto new ones,
    which are laid out and rendered to the end.
    """
    plt.close("all")
    figure, ax = plt.subplots()
    assert draw(*args, **kwargs, ax=ax) is ax
    assert plt.get_fignums() == [figure.number]
    new = draw(*args, **kwargs)
    assert new.figure is not figure
    assert len(plt.get_fignums()) == 2
    new.figure.canvas.draw()
    return new


def only(things) -> Any:
    (thing,) = things
    return thing


def estimate(log_z, error=0.1):
    return AISEstimate(jnp.asarray(log_z), jnp.asarray(error), jnp.zeros(3), jnp.ones(()), 10)


@functools.cache
def tempered():
    rbm = ebm.RBM.init(visible=6, hidden=4, key=KEY, scale=1.0)
    sampler = ebm.ParallelTempering([0.0, 0.3, 0.6, 1.0])

    def step(state, key):
        state, info = sampler.step(rbm, state, key=key)
        return state, (info, state.walker)

    state = sampler.init(rbm, 3, key=KEY)
    _, (info, walker) = jax.lax.scan(step, state, jax.random.split(KEY, 40))
    return sampler, info, walker


def lines(ax) -> dict[Any, Any]:
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


def test_images():
    x = RNG.random((7, 12)).astype(np.float32)
    ax = onto(plotting.images, x, (3, 4), columns=3)
    picture = only(ax.get_images())
    mosaic = picture.get_array()
    assert mosaic.shape == (3 * 4 - 1, 3 * 5 - 1)
    np.testing.assert_allclose(mosaic[4:7, 5:9], x[4].reshape(3, 4))
    # Frames, and the two places that are left over.
    assert mosaic.mask.sum() == mosaic.size - x.size
    assert picture.get_clim() == (0, 1)
    assert picture.get_cmap().name == "gray_r"
    (empty,) = ax.patches
    assert empty.get_bbox().bounds == (3.5, 7.5, 10, 3)
    assert not ax.axison
    assert ax.get_title() == ""


@pytest.mark.parametrize(
    ("x", "options", "limits"),
    [
        (RNG.integers(0, 2, 12).astype(bool), {}, (0, 1)),
        (jnp.arange(12), {}, (0, 11)),
        (jnp.arange(12) - 3, {"signed": True}, (-8, 8)),
        (jnp.zeros(12), {"signed": True}, (-1, 1)),
        (jnp.arange(12.0), {"limits": (2, 5)}, (2, 5)),
        (jnp.arange(12.0).astype(jnp.bfloat16), {"gap": 0}, (0, 11)),
        (jnp.full(12, jnp.nan), {}, (0, 1)),
    ],
)
def test_images_choose_limits(x, options, limits):
    picture = only(plotting.images(x, (4, 3), **options).get_images())
    assert picture.get_clim() == limits
    assert picture.get_array().shape == (4, 3)
    assert (picture.get_cmap().name == "RdBu_r") == options.get("signed", False)


SIZES = {"visible": 6, "hidden": 4, "key": KEY}
MODELS = {
    "RBM": lambda: ebm.RBM.init(**SIZES),
    "CRBM": lambda: ebm.CRBM.init(**SIZES, features=2),
    "GaussianRBM": lambda: ebm.GaussianRBM.init(**SIZES),
    "SemiRestrictedBM": lambda: ebm.SemiRestrictedBM.init(**SIZES),
    "DBM": lambda: ebm.DBM.init(6, (4, 3), key=KEY),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_filters(make):
    model = make()
    ax = onto(plotting.filters, model, (2, 3), columns=2)
    picture = only(ax.get_images())
    weights = jax.tree.leaves(model.weights)[0]
    np.testing.assert_allclose(picture.get_array()[:2, 4:], weights[:, 1].reshape(2, 3))
    assert picture.get_clim()[1] == pytest.approx(float(jnp.abs(weights).max()))


def test_filters_of_a_layer_and_by_size():
    model = MODELS["DBM"]()
    ax = cast(Any, plotting.filters(model, (2, 3), layer=1, number=1))
    found = ax.get_images()[0].get_array()
    product = np.asarray(model.weights[0] @ model.weights[1])
    largest = np.linalg.norm(product, axis=0).argmax()
    np.testing.assert_allclose(found, product[:, largest].reshape(2, 3), rtol=1e-5)


def test_marginals():
    p = np.array([[0.0, 0.5, 1.0, 0.25], [0.2, 0.4, 0.6, 0.8]])
    observed = np.array([True, False, True, False])
    ax = onto(plotting.marginals, p, (2, 2), observed=observed)
    picture = only(ax.get_images()).get_array()
    assert picture.shape == (2, 5, 3)
    np.testing.assert_allclose(picture[0, 1], 0.5)
    np.testing.assert_allclose(picture[1, 1], 0.75)
    red, _, blue = picture[0, 0]
    assert blue > red + 0.1  # a known 0 is pale blue,
    assert picture[1, 0, 2] < blue  # a known 1 dark blue.
    ax = cast(Any, plotting.marginals(p, (2, 2), observed=observed, evidence=1 - p))
    told = ax.get_images()[0]
    np.testing.assert_allclose(told.get_array()[1, 0], picture[0, 0])
    np.testing.assert_allclose(told.get_array()[0, 1], picture[0, 1])
    plain = cast(Any, plotting.marginals(p[0], (2, 2))).get_images()[0].get_array()
    np.testing.assert_allclose(plain, np.repeat(1 - p[0].reshape(2, 2, 1), 3, axis=2))


def record(loss):
    loss = np.asarray(loss)
    return History({"gap": np.arange(6.0)}, {"loss": loss, "metric": loss / 2}, {})


def test_history():
    histories = {"one": record([3, 2, 1]), "two": record([5, 4])}
    ax = onto(plotting.history, histories, "loss")
    found = lines(ax)
    np.testing.assert_allclose(found["one"], [[1, 3], [2, 2], [3, 1]])
    np.testing.assert_allclose(found["two"], [[1, 5], [2, 4]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "loss")
    alone = plotting.history(record([3, 2, 1]), "gap", per="steps")
    np.testing.assert_allclose(only(alone.get_lines()).get_ydata(), np.arange(6))
    assert alone.get_legend() is None
    assert alone.get_xlabel() == "step"
    # By default, what all of them have.
    assert plotting.history(histories).get_ylabel() == "validation metric"
    del histories["two"].epochs["metric"]
    assert plotting.history(histories).get_ylabel() == "loss"


@pytest.mark.slow
def test_convergence():
    rbm = ebm.RBM.init(visible=5, hidden=3, key=KEY, scale=1.0)
    batch = rbm.with_unary((jax.random.normal(KEY, (30, 5)), rbm.hidden_bias))
    beliefs = ebm.BP(iterations=6, tol=1e-3)(batch)
    ax = onto(plotting.convergence, {"BP": beliefs})
    converged, iterations = np.asarray(beliefs.converged), np.asarray(beliefs.iterations)
    x, share = lines(ax)["BP"].T
    for k, y in zip(x, share, strict=True):
        assert y == pytest.approx((converged & (iterations <= k)).mean())
    assert 0 < share[-1] == pytest.approx(converged.mean())


def test_residuals():
    values = 10.0 ** -np.arange(1, 6)[:, None] * np.array([1.0, 2.0, 5.0])
    ax = onto(plotting.residuals, values, tol=1e-3)
    curve, mark = ax.get_lines()
    np.testing.assert_allclose(curve.get_ydata(), values[:, 1])
    np.testing.assert_allclose(mark.get_ydata(), 1e-3)
    assert len(ax.collections) == 1
    assert ax.get_yscale() == "log"
    assert not plotting.residuals(values[:, 0]).collections


def test_ais_bracket():
    forward, reverse = [estimate(1.0), estimate(2.0)], [estimate(1.5), estimate(2.25, 0.2)]
    ax = onto(plotting.ais_bracket, forward, reverse, x=[10, 20], exact=[1.2, 2.1])
    low, high = ax.containers
    np.testing.assert_allclose(low[0].get_xydata(), [[10, 1], [20, 2]])
    np.testing.assert_allclose(high[0].get_xydata(), [[10, 1.5], [20, 2.25]])
    bars = [segment[:, 1] for segment in high[2][0].get_segments()]
    np.testing.assert_allclose(bars, [[1.3, 1.7], [1.85, 2.65]])
    texts = {text.get_text() for text in ax.get_legend().get_texts()}
    assert texts == {"AIS", "reverse AIS", "exact"}
    assert ax.get_ylabel() == "log Z"


def test_ais_bracket_of_the_likelihood():
    ax = plotting.ais_bracket(estimate(3.0, float("nan")), unnormalised=-5.0)
    np.testing.assert_allclose(only(ax.containers)[0].get_ydata(), [-8])
    assert ax.get_ylabel().startswith("log-likelihood")


def test_ais_bracket_of_one_model():
    ax = plotting.ais_bracket(estimate(1.0), estimate(1.5), exact=1.25)
    np.testing.assert_allclose(
        [one[0].get_xydata()[0] for one in ax.containers], [[0, 1], [1, 1.5]]
    )
    assert [text.get_text() for text in ax.get_xticklabels()] == ["AIS", "reverse AIS"]
    np.testing.assert_allclose(lines(ax)["exact"][:, 1], 1.25)


def test_spectra():
    model = MODELS["DBM"]()
    seen = [ebm.samplers.singular_values(model), ebm.samplers.singular_values(model.tempered(2.0))]
    ax = onto(plotting.spectra, seen, x=[0, 5], block=1)
    assert len(ax.get_lines()) == 3
    np.testing.assert_allclose(ax.get_lines()[-1].get_ydata(), [seen[0][1][0], seen[1][1][0]])
    np.testing.assert_allclose(ax.get_lines()[0].get_xdata(), [0, 5])
    logarithmic = plotting.spectra(jnp.ones((4, 2)), log=True)
    assert logarithmic.get_yscale() == "log"


def test_discrepancy():
    curves = {"Gibbs": [0.1, 0.05], "PMP": jnp.array([0.04, 0.01])}
    ax = onto(plotting.discrepancy, curves, [10, 100], floor=0.002)
    found = lines(ax)
    np.testing.assert_allclose(found["PMP"], [[10, 0.04], [100, 0.01]], rtol=1e-6)
    np.testing.assert_allclose(found["data and data"][:, 1], 0.002)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_tempering():
    sampler, info, walker = tempered()
    ax = onto(plotting.swaps, info, sampler.betas)
    heights = [bar.get_height() for bar in only(ax.containers)]
    tried = np.asarray(info.tried)
    for pair, height in enumerate(heights):
        expected = np.asarray(info.swapped)[tried[:, pair], pair].mean()
        assert height == pytest.approx(expected, abs=1e-6)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0–0.3", "0.3–0.6", "0.6–1"]

    ax = onto(plotting.walkers, walker, chain=1)
    place = np.stack([line.get_ydata() for line in ax.get_lines()])
    for step, here in enumerate(np.asarray(walker)[:, :, 1]):
        np.testing.assert_array_equal(place[here, step], np.arange(4))
    followed = cast(Any, plotting.walkers(walker[:, :, 0], follow=[3]))
    assert [text.get_text() for text in followed.get_legend().get_texts()] == ["replica 3"]
    assert len(followed.get_lines()) == 4

    ax = onto(plotting.round_trips, info)
    trips = np.asarray(info.trips)
    assert len(ax.get_lines()) == 4
    np.testing.assert_allclose(ax.get_lines()[-1].get_ydata(), trips.mean(1))


def test_swaps_that_were_never_tried():
    first = jax.tree.map(lambda x: x[:1], tempered()[1])
    heights = [bar.get_height() for bar in only(plotting.swaps(first).containers)]
    assert [np.isnan(height) for height in heights] == [False, True, False]


BAD = {
    "pixels": (lambda: plotting.images(np.ones((2, 5)), (2, 2)), ValueError, "`x`", "4", r"2, 5"),
    "axes": (lambda: plotting.images(np.ones((2, 2, 2)), (2, 1)), ValueError, "`x`", "2 axes"),
    "text": (lambda: plotting.images(np.array(["a"]), (1, 1)), TypeError, "`x`", "real"),
    "none": (lambda: plotting.images(np.ones((0, 4)), (2, 2)), ValueError, "`x`", "empty"),
    "shape": (lambda: plotting.images(np.ones(4), (4,)), ValueError, "`shape`", "width"),
    "columns": (lambda: plotting.images(np.ones(4), (2, 2), columns=0), ValueError, "`columns`"),
    "gap": (lambda: plotting.images(np.ones(4), (2, 2), gap=-1), ValueError, "`gap`"),
    "limits": (
        lambda: plotting.images(np.ones(4), (2, 2), limits=(1, 1)),
        ValueError,
        "`limits`",
        "higher",
    ),
    "ax": (lambda: plotting.images(np.ones(4), (2, 2), ax=3), TypeError, "`ax`", "int"),
    "no weights": (
        lambda: plotting.filters(ebm.BoltzmannMachine.init(4, key=KEY), (2, 2)),
        TypeError,
        "`model`",
        "BoltzmannMachine",
    ),
    "filter shape": (
        lambda: plotting.filters(MODELS["RBM"](), (2, 2)),
        ValueError,
        "`shape`",
        "6",
    ),
    "layer": (
        lambda: plotting.filters(MODELS["RBM"](), (2, 3), layer=1),
        ValueError,
        "`layer`",
        "1",
    ),
    "no hidden": (
        lambda: plotting.filters(ebm.CRBM.init(visible=4, hidden=0, features=1, key=KEY), (2, 2)),
        ValueError,
        "`model`",
        "hidden",
    ),
    "probabilities": (
        lambda: plotting.marginals(np.full(4, 1.5), (2, 2)),
        ValueError,
        "`probabilities`",
        "1.5",
    ),
    "observed": (
        lambda: plotting.marginals(np.ones(4), (2, 2), observed=np.ones(4)),
        TypeError,
        "`observed`",
        "booleans",
    ),
    "observed shape": (
        lambda: plotting.marginals(np.ones(4), (2, 2), observed=np.ones(3, bool)),
        ValueError,
        "`observed`",
        "3,",
    ),
    "evidence alone": (
        lambda: plotting.marginals(np.ones(4), (2, 2), evidence=np.ones(4)),
        ValueError,
        "`observed`",
    ),
    "history": (lambda: plotting.history([1, 2]), TypeError, "`history`", "list"),
    "histories": (lambda: plotting.history({}), ValueError, "`history`", "empty"),
    "name": (lambda: plotting.history(record([1]), "lost"), ValueError, "`name`", "metric", "lost"),
    "per": (lambda: plotting.history(record([1]), per="hour"), ValueError, "`per`", "hour"),
    "beliefs": (lambda: plotting.convergence(3), TypeError, "`beliefs`", "int"),
    "tol": (lambda: plotting.residuals(np.ones(3), tol=0), ValueError, "`tol`"),
    "forward": (lambda: plotting.ais_bracket([1.0]), TypeError, "`forward`", "float"),
    "no estimate": (lambda: plotting.ais_bracket([]), ValueError, "`forward`", "empty"),
    "reverse": (
        lambda: plotting.ais_bracket([estimate(1.0)] * 2, [estimate(1.0)]),
        ValueError,
        "`reverse`",
        "2",
        "1",
    ),
    "x": (lambda: plotting.ais_bracket(estimate(1.0), x=[1, 2]), ValueError, "`x`", "1", "2"),
    "exact": (
        lambda: plotting.ais_bracket(estimate(1.0), exact=[1, 2]),
        ValueError,
        "`exact`",
        "2,",
    ),
    "block": (
        lambda: plotting.spectra([(np.ones(2),)], block=1),
        ValueError,
        "`block`",
        "1",
    ),
    "ragged": (lambda: plotting.spectra([np.ones(2), np.ones(3)]), ValueError, "`values`"),
    "curves": (lambda: plotting.discrepancy([1, 2], [1, 2]), TypeError, "`curves`", "list"),
    "curve": (
        lambda: plotting.discrepancy({"a": [1, 2]}, [1, 2, 3]),
        ValueError,
        r"`curves\['a'\]`",
        "3",
    ),
    "zero": (lambda: plotting.discrepancy({"a": [0.0]}, [1]), ValueError, "curves", "positive"),
    "info": (lambda: plotting.swaps(3), TypeError, "`info`", "int"),
    "one step": (
        lambda: plotting.swaps(jax.tree.map(lambda x: x[0], tempered()[1])),
        ValueError,
        "`info`",
        "several steps",
    ),
    "betas": (lambda: plotting.swaps(tempered()[1], [0, 1]), ValueError, "`betas`", "4", "2"),
    "walker": (lambda: plotting.walkers(np.zeros((3, 2), int)), ValueError, "`walker`", "once"),
    "chain": (
        lambda: plotting.walkers(np.zeros((3, 1, 2), int), chain=2),
        ValueError,
        "`chain`",
        "2",
    ),
    "follow": (
        lambda: plotting.walkers(np.zeros((3, 1), int), follow=[1]),
        ValueError,
        "`follow`",
        "1",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_errors(case, as_a_user):
    errors.check(case)
    assert not plt.get_fignums()
