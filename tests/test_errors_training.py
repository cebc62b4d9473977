# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false

"""Wrong input to learners and `fit`: an error that names the argument, what was expected and what
came, and nothing half-written.
"""

from pathlib import Path
from typing import Any

import errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

import ebmlearn as ebm


pytestmark = pytest.mark.usefixtures("as_a_user")


KEY = jax.random.key(0)
CRBM = ebm.CRBM.init(3, 2, 4, key=KEY)
RBM = ebm.RBM.init(3, 2, key=KEY)
X, V = np.zeros((6, 4), np.float32), np.ones((6, 3), np.uint8)
LEARNER = ebm.MLE(ebm.MeanField(1))
ADAM = optax.adam(0.1)


def fit(model: Any = CRBM, learner: Any = LEARNER, data: Any = (X, V), **options: Any):
    defaults: dict[str, Any] = dict(optimizer=ADAM, epochs=1, batch_size=2, key=KEY, progress=False)
    return ebm.fit(model, learner, data, **{**defaults, **options})


def step(model: Any, batch: Any, learner: Any = LEARNER, **options: Any):
    return learner.step(model, None, batch, **{"key": KEY, "epoch": 0, **options})


CASES = {
    # data
    "rows": (lambda: fit(data=(X[:5], V)), ValueError, "`data`", "same length", "5, 6"),
    "rows of a batch": (lambda: step(CRBM, (X[:5], V)), ValueError, "`batch`", "same number of rows", "5 and 6"),
    "not binary": (lambda: fit(data=(X, V * 2)), ValueError, r"`data\[1\]`", "0 and 1", "2 in row 0"),
    "halves": (
        lambda: fit(RBM, data=np.array([[0, 1, 0], [0, 0.5, 1]])),
        ValueError, "`data`", "0 and 1", "0.5 in row 1",
    ),
    "NaN": (lambda: fit(data=(X * np.nan, V)), ValueError, r"`data\[0\]`", "finite", "nan in row 0"),
    "empty": (lambda: fit(data=(X[:0], V[:0])), ValueError, "`data`", "at least one row", "0"),
    "no arrays": (lambda: fit(data=()), ValueError, "`data`", "at least one array", r"\(\)"),
    "no batches": (lambda: fit(data=[], batch_size=None), ValueError, "`data`", "at least one batch", "0"),
    "one-way": (
        lambda: fit(data=iter([(X, V)]), batch_size=None), ValueError, "`data`", "again in each epoch", "iterator",
    ),
    "no data": (lambda: fit(data=3), TypeError, "`data`", "iterable", "3"),
    "large batch": (lambda: fit(batch_size=7), ValueError, "`batch_size`", "at most the 6 rows", "7"),
    "no batch size": (lambda: fit(batch_size=2.5), TypeError, "`batch_size`", "integer", "2.5"),
    "batch size of batches": (
        lambda: fit(data=[(X, V)], batch_size=2), ValueError, "`batch_size`", "None", "2",
    ),
    "features are missing": (lambda: fit(data=V), ValueError, "`data`", r"pair \(features, visible\)", "one array"),
    "features of an RBM": (lambda: fit(RBM), ValueError, "`data`", "one array of visible units", "2"),
    "columns": (lambda: fit(data=(X, X)), ValueError, r"`data\[1\]`", r"\(\.\.\., 3\)", r"\(6, 4\)"),
    "axes": (lambda: step(RBM, V[0]), ValueError, "`batch`", "2 axes", r"\(3,\)"),
    "text": (lambda: step(RBM, "data"), TypeError, "`batch`", "an array", "'data'"),
    "later batches": (
        lambda: fit(data=[(X, V), (X, V * 3)], batch_size=None), ValueError, r"`data\[1\]`", "0 and 1", "3",
    ),
    "a conditioned model": (
        lambda: fit(CRBM.condition(X), data=V), ValueError, "`model`", "CRBM that they come from", r"\(6,\)",
    ),
    "no model": (lambda: fit(X), TypeError, "`model`", "RBM", r"\(6, 4\)"),
    "validation": (lambda: fit(validation=(X, V * 2)), ValueError, r"`validation\[1\]`", "0 and 1", "2"),
    # arguments
    "learner": (lambda: fit(learner="mle"), TypeError, "`learner`", r"MLE\(BP", "'mle'"),
    "query model": (
        lambda: fit(ebm.QueryModel(RBM), data=V), TypeError, "`model`", "QueryTraining", "got a QueryModel",
    ),
    "optimizer": (lambda: fit(optimizer=0.1), TypeError, "`optimizer`", "Optax", "0.1"),
    "epochs": (lambda: fit(epochs=0), ValueError, "`epochs`", "at least 1", "0"),
    "key": (lambda: fit(key=jnp.zeros(3)), TypeError, "`key`", "integer seed", "float32"),
    "key of a step": (lambda: step(RBM, V, key="0"), TypeError, "`key`", "integer seed", "'0'"),
    "epoch": (lambda: step(RBM, V, epoch=-1), ValueError, "`epoch`", "negative", "-1"),
    "patience": (lambda: ebm.Validation(patience=2), ValueError, "`data`", "`patience`", "None"),
    "metric is no function": (
        lambda: ebm.Validation(metric=1), TypeError, "`metric`", "function", "1",
    ),
    "metric of 0.2": (
        lambda: fit(metric=len), TypeError, "`metric`", "no argument", r"validation=Validation\(data, metric\)",
    ),
    "resume of 0.2": (
        lambda: fit(resume=False), TypeError, "`resume`", "no argument", r"Checkpoint\(folder, resume=False\)",
    ),
    "average": (lambda: fit(average=1.0), ValueError, "`average`", r"\(0, 1\)", "1.0"),
    "mesh": (lambda: fit(mesh=2), TypeError, "`mesh`", "Mesh", "2"),
    # learners
    "sum for MSSVM": (
        lambda: ebm.MSSVM(ebm.BP(3)), ValueError, "`inference`", 'product="mixed"', "BP, which gives marginals",
    ),
    "mixed for LSSVM": (
        lambda: ebm.LSSVM(ebm.BP(3, product="mixed")), ValueError, "`inference`", 'product="max"',
        "BP, which maximises over the visible units",
    ),
    "max for MLE": (
        lambda: ebm.MLE(ebm.BP(3, product="max")), ValueError, "`inference`", "marginals",
        "BP, which maximises over all units",
    ),
    "MPLP for MLE": (
        lambda: ebm.MLE(ebm.MPLP()), ValueError, "`inference`", "marginals", "MPLP, which maximises",
    ),
    "MPLP of a schedule for MLE": (
        lambda: ebm.MLE(lambda epoch: ebm.MPLP(10 + epoch)), ValueError, "`inference`", "marginals",
        "MPLP, which maximises",
    ),
    "MPLP for CD": (
        lambda: ebm.CD(1, inference=ebm.MPLP()), ValueError, "`inference`", "marginals",
        "MPLP, which maximises",
    ),
    "no inference": (lambda: ebm.MLE(10), TypeError, "`inference`", "function from the epoch", "10"),
    "no inference for an epoch": (
        lambda: ebm.MLE(lambda epoch: epoch), TypeError, "`inference`", "for each epoch", "0",
    ),
    "cost": (
        lambda: ebm.MSSVM(ebm.BP(1, product="mixed"), cost=2), TypeError, "`cost`", "function", "2",
    ),
    "shape of a cost": (
        lambda: step(RBM, V, ebm.LSSVM(ebm.BP(1, product="max"), cost=lambda s, t: (s - t).sum(-1))),
        ValueError, "`cost`", r"\(6, 3\)", r"\(6,\)",
    ),
    "k": (lambda: ebm.CD(0), ValueError, "`k`", "at least 1", "0"),
    "start": (lambda: ebm.CD(1, start="zero"), ValueError, "`start`", "'data', 'random'", "'zero'"),
    "chain": (
        lambda: ebm.sample(CRBM, ebm.Gibbs(), 2, key=KEY),
        TypeError, "`model`", "layers of units, or a graph, for Gibbs", "CRBM",
    ),
    "centred": (lambda: ebm.CD(1, centred=1), TypeError, "`centred`", "boolean", "1"),
    "decay": (
        lambda: ebm.MLE(ebm.BP(1), weight_decay=-1.0), ValueError, "`weight_decay`", r"\[0, inf\)", "-1",
    ),
    # prediction
    "no features": (lambda: ebm.predict(CRBM, inference=ebm.BP(1)), ValueError, "`features`", "CRBM", "None"),
    "features too many": (
        lambda: ebm.predict(RBM, X, inference=ebm.BP(1)), ValueError, "`features`", "None", "RBM",
    ),
    "shapes": (lambda: ebm.error_rate(V, X), ValueError, "`predicted`", r"\(6, 4\)", r"\(6, 3\)"),
    "labels": (lambda: ebm.error_rate(V, 4 * V), ValueError, "`truth`", "0 and 1", "got 4 in row 0"),
    "where": (lambda: ebm.error_rate(V, V, where=X > 0), ValueError, "`where`", r"\(6, 3\)", r"\(6, 4\)"),
    # estimates
    "mmd": (lambda: ebm.estimate.mmd(V, V + 1), ValueError, "`y`", "0 and 1", "got 2"),
    "units": (lambda: ebm.estimate.mmd(V, X), ValueError, "`x` and `y`", "the same number of units", "3 and 4"),
    "no rows of mmd": (lambda: ebm.estimate.mmd(V[:0], V), ValueError, "`x`", "one row and one unit", r"\(0, 3\)"),
    "likelihood of a batch": (
        lambda: ebm.log_likelihood(CRBM.condition(X[:4]), V, 0.0), ValueError, "`model`", "6 rows", r"\(4,\)",
    ),
    "base": (lambda: ebm.ais(RBM, key=KEY, base=np.zeros(4)), ValueError, "`base`", r"\(3,\)", r"\(4,\)"),
    "betas of AIS": (
        lambda: ebm.ais(RBM, key=KEY, betas=np.array([0.5, 1.0])), ValueError, "`betas`", "from 0 to 1", r"\(2,\)",
    ),
    "start of reverse AIS": (
        lambda: ebm.reverse_ais(RBM, V, key=KEY), ValueError, "`start`", "all units", r"\(6, 3\)",
    ),
    "likelihood of a DBM": (
        lambda: ebm.log_likelihood(ebm.DBM.init(3, (2, 2), key=KEY), V, 0.0), TypeError, "`model`",
        "hidden layers that are not joined", "DBM",
    ),
    # samplers
    "no chains": (lambda: ebm.Gibbs().init(RBM, 0, key=KEY), ValueError, "`num_chains`", "at least 1", "0"),
    "falling ladder": (
        lambda: ebm.TemperedTransitions([1.0, 0.5]), ValueError, "`betas`", "increase", r"\[1.0, 0.5\]",
    ),
    "ladder that ends early": (
        lambda: ebm.ParallelTempering([0.1, 0.9]), ValueError, "`betas`", "to 1", r"\[0.1, 0.9\]",
    ),
    "no ladder": (lambda: ebm.ParallelTempering("hot"), TypeError, "`betas`", "numbers", "'hot'"),
    "long ladder": (
        lambda: ebm.ParallelTempering(np.linspace(2, 1, 50)), ValueError, "`betas`", "increase", r"\[2.0, .*, 1.0\]",
    ),
    "mask": (
        lambda: ebm.Gibbs().init(RBM, 5, key=KEY, start=ebm.Layers(V[0], None), clamped=ebm.Layers(np.ones(4, bool), None)),
        ValueError, "`clamped", r"\(5, 3\)", r"\(4,\)",
    ),
    "mask without a start": (
        lambda: ebm.Gibbs().init(RBM, 5, key=KEY, clamped=ebm.Layers(np.ones(3, bool), None)),
        ValueError, "`start`", "clamped", "None",
    ),
    "mask of integers": (
        lambda: ebm.Gibbs().init(RBM, 5, key=KEY, start=ebm.Layers(V[0], None), clamped=ebm.Layers(V[0], None)),
        TypeError, "`clamped", "booleans", "uint8",
    ),
    "boolean states": (
        lambda: ebm.Gibbs().init(RBM, 6, key=KEY, start=ebm.Layers(V > 0, None)), TypeError, "`start", "integers", "bool",
    ),
    "states as floats": (
        lambda: ebm.Gibbs().init(RBM, 6, key=KEY, start=ebm.Layers(V * 1.0, None)), TypeError, "`start", "integers", "float",
    ),
    "states that are not binary": (
        lambda: ebm.Gibbs().init(RBM, 6, key=KEY, start=ebm.Layers(V * 2, None)), ValueError, "`start", "0 and 1", "2",
    ),
    "states by another name": (
        lambda: ebm.Gibbs().init(RBM, 6, key=KEY, start=ebm.models.Units(V)), TypeError, "`start`", r"Layers\(visible, hidden\)", "Units",
    ),
    "chains of a CRBM": (lambda: ebm.Gibbs().init(CRBM, 6, key=KEY), TypeError, "`model`", "condition", "CRBM"),
    "chains of nothing": (lambda: ebm.Gibbs().init(X, 6, key=KEY), TypeError, "`model`", "RBM", r"\(6, 4\)"),
    "chains of a batch": (
        lambda: ebm.Gibbs().init(CRBM.condition(X), 5, key=KEY), ValueError, "`num_chains`", r"\(6,\)", "5",
    ),
    "beta": (lambda: ebm.Gibbs(beta=-1.0), ValueError, "`beta`", r"\[0, inf\)", "-1"),
    "flips": (lambda: ebm.GibbsWithGradients(0), ValueError, "`flips`", "at least 1", "0"),
    "no sampler": (lambda: ebm.sample(RBM, "gibbs", 3, key=KEY), TypeError, "`sampler`", "Gibbs", "'gibbs'"),
    "no samples": (lambda: ebm.sample(RBM, ebm.Gibbs(), 0, key=KEY), ValueError, "`num_samples`", "at least 1", "0"),
    "sampler of SAP": (lambda: ebm.SAP("gibbs"), TypeError, "`sampler`", "Gibbs", "'gibbs'"),
    "betas of Trans-SAP": (
        lambda: ebm.TransSAP([0, 1]).init(ebm.GaussianRBM.init(3, 2, key=KEY), key=KEY),
        ValueError, "`betas`", "positive", r"\[0.0, 1.0\]",
    ),
    "every of Trans-SAP": (lambda: ebm.TransSAP([0.5, 1], every=0), ValueError, "`every`", "at least 1", "0"),
    # checkpoints
    "every": (lambda: ebm.Checkpoint("run", every=0), ValueError, "`every`", "at least 1", "0"),
    "keep": (lambda: ebm.Checkpoint("run", keep=0), ValueError, "`keep`", "at least 1", "0"),
    "folder": (lambda: ebm.Checkpoint(3), TypeError, "`folder`", "path", "3"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_errors_name_what_is_wrong(name):
    assert len(CASES[name]) == 5
    errors.check(CASES[name])


def saved(tmp_path):
    path = tmp_path / "model.ebm"
    ebm.save(path, CRBM)
    return path


def test_a_file_of_another_model(tmp_path):
    path = saved(tmp_path)
    other = ebm.CRBM.init(3, 5, 4, key=KEY)
    with pytest.raises(ValueError, match=r"'.weights' of shape \(3, 5\).*got shape \(3, 2\)"):
        ebm.load(path, like=other)
    with pytest.raises(
        ValueError, match=r"must hold only what `like` holds, got '.visible_features'"
    ):
        ebm.load(path, like=RBM)
    ebm.save(path, RBM)
    with pytest.raises(ValueError, match=r"must hold '.visible_features', as `like` does"):
        ebm.load(path, like=CRBM)


@pytest.mark.parametrize("cut", [3, 30, 200, -1])
def test_truncated_files(tmp_path, cut):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"model\.ebm` must be a whole file .* truncated"):
        ebm.load(path, like=CRBM)


def test_damaged_and_missing_files(tmp_path):
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="agree with its checksum"):
        ebm.load(path, like=CRBM)
    path.write_bytes(b"ebmlearn arrays, format 9\n")
    with pytest.raises(ValueError, match=r"must be a whole file that `save` wrote.*another format"):
        ebm.load(path, like=CRBM)
    path.write_bytes(safetensors.numpy.save({}, {"format": "pt"}))
    with pytest.raises(ValueError, match=r"`ebmlearn.save` wrote, got .* another program"):
        ebm.load(path, like=CRBM)


@pytest.mark.parametrize("cut", [10, 200, -1])
def test_truncated_files_of_earlier_versions(tmp_path, cut):
    content = (Path(__file__).parent / "golden_0_2/rbm.ebm").read_bytes()
    path = tmp_path / "model.ebm"
    path.write_bytes(content)
    np.testing.assert_array_equal(ebm.load(path).weights, np.arange(6).reshape(3, 2))
    assert ebm.training.load_info(path) == {"written": "by 0.2"}
    path.write_bytes(content[:cut])
    with pytest.raises(ValueError, match=r"model\.ebm` must be a whole file .* truncated"):
        ebm.load(path)


def test_safetensors_reads_files(tmp_path):
    found = safetensors.numpy.load_file(saved(tmp_path))
    np.testing.assert_array_equal(found[".weights"], CRBM.weights)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere` must be a file that can be read"):
        ebm.load(tmp_path / "nowhere", like=CRBM)
    with pytest.raises(OSError, match=r"must be a file that can be written"):
        ebm.save(tmp_path / "no" / "folder.ebm", CRBM)


def test_checkpoints_of_another_run(tmp_path):
    fit(checkpoint=tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"`checkpoint` .*`batch_size` 2, got 3.*resume=False"):
        fit(checkpoint=tmp_path, batch_size=3)
    with pytest.raises(ValueError, match=r"`model` 'CRBM', got 'RBM'"):
        fit(RBM, data=V, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"`learner` .*MeanField.*got .*CD"):
        fit(learner=ebm.CD(1), checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"`key` \[0, 0\], got \[0, 1\]"):
        fit(key=jax.random.key(1), checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"`checkpoint` .*`data` '[0-9a-f]{8}', got"):
        fit(data=(X, 1 - V), checkpoint=tmp_path)
    with pytest.raises(
        ValueError, match=r"`model`.*weights. of shape \(3, 5\).*got shape \(3, 2\)"
    ):
        fit(ebm.CRBM.init(3, 5, 4, key=KEY), checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"`optimizer`.*as `like` does"):
        fit(optimizer=optax.sgd(0.1, momentum=0.9), checkpoint=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    newest = tmp_path / before[-1]
    newest.write_bytes(newest.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"step-000000003\.ebm.*truncated"):
        fit(checkpoint=tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="`checkpoint` must be a folder that can be written"):
        fit(checkpoint=tmp_path / "file" / "run")


def test_an_augmentation_that_does_not_fit_the_model():
    with pytest.raises(ValueError, match=r"`data` must be the pair \(features, visible\)"):
        fit(data=V, augment=lambda v, key: v)


def test_a_mesh_of_one_device_is_fine():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    assert jnp.isfinite(fit(mesh=mesh).last.weights).all()


def test_what_a_file_says_is_json(tmp_path):
    path, model = tmp_path / "x.ebm", ebm.RBM.init(2, 1, key=0)
    with pytest.raises(TypeError, match=r"`info` must hold what JSON can hold.*float\(x\)"):
        ebm.save(path, model, {"loss": np.float32(1)})
    assert not any(tmp_path.iterdir())
    ebm.save(path, model, [])
    assert ebm.training.load_info(path) == []


def test_validation_may_be_lists_as_data_may():
    lists, arrays = (X.tolist(), V.tolist()), (X, V)
    found, want = (fit(data=x, validation=x).history.validations["metric"] for x in (lists, arrays))
    assert len(found) == 1
    np.testing.assert_array_equal(found, want)
