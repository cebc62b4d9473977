"""Data sets from made-up originals: converted, loaded, corrupted."""

import gzip
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
import scipy.ndimage

from benchmarks import __main__ as benchmarks
from ebmlearn import datasets
from ebmlearn.datasets.__main__ import main


ROOT = Path(__file__).parents[1]
KEY = jax.random.key(0)


@pytest.fixture
def run(capsys):
    """The command, without a process of its own."""

    def run(*arguments, status=0):
        got = main([str(argument) for argument in arguments])
        out = "".join(capsys.readouterr())
        assert got == status, out
        return out

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setenv("EBMLEARN_DATA", str(path))
    return path


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_digits():
    data = datasets.digits()
    assert [split.x.shape for split in data] == [(1197, 64), (300, 64), (300, 64)]
    assert set(np.unique(data.train.x)) == {0, 1}
    grey = datasets.digits(threshold=None)
    assert grey.train.x.max() == 16
    np.testing.assert_array_equal(grey.test.x > 7, data.test.x)
    assert data.valid.y is not None
    assert set(np.unique(data.valid.y)) == set(range(10))


@pytest.mark.slow
def test_mnist(folder, tmp_path, run):
    rng = np.random.default_rng(0)
    images = np.zeros((60000, 28, 28), np.uint8)
    images[:, 3, 5] = rng.integers(0, 256, 60000)
    labels = rng.integers(0, 10, 60000).astype(np.uint8)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images), 1))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(images[:10000]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(labels[:10000]))
    assert "wrote" in run("convert", "mnist", tmp_path)
    data = datasets.mnist()
    assert [split.x.shape for split in data] == [(50000, 784), (10000, 784), (10000, 784)]
    np.testing.assert_array_equal(data.valid.x[:, 3 * 28 + 5], images[50000:, 3, 5] > 127)
    np.testing.assert_array_equal(data.train.y, labels[:50000])
    assert datasets.mnist(threshold=None).train.x.max() == 255


def test_shifted_digits():
    data = datasets.shifted_digits()
    assert [split.x.shape for split in data] == [(6000, 64), (1185, 64), (1800, 64)]
    assert data.train.x.dtype == np.float32
    assert 0 <= data.train.x.min() <= data.train.x.max() == 1
    # As it is, moved up, down, to the left, to the right.
    plain, *moved = data.valid.x.reshape(5, 237, 8, 8)
    np.testing.assert_array_equal(moved[0][:, :-1], plain[:, 1:])
    np.testing.assert_array_equal(moved[1][:, 1:], plain[:, :-1])
    np.testing.assert_array_equal(moved[2][:, :, :-1], plain[:, :, 1:])
    np.testing.assert_array_equal(moved[3][:, :, 1:], plain[:, :, :-1])
    assert (moved[3][:, :, 0] == 0).all()
    assert data.valid.y is not None
    np.testing.assert_array_equal(data.valid.y[:237], data.valid.y[-237:])
    # Each digit is in one part alone.
    from sklearn.datasets import load_digits

    x = np.concatenate([split.x[: len(split.x) // 5] for split in data])
    known = cast(Any, load_digits()).data.astype(np.float32) / 16
    np.testing.assert_array_equal(np.unique(x, axis=0), np.unique(known, axis=0))
    assert len(x) == len(known)


def test_border_ownership(folder, tmp_path, run):
    images = np.zeros((300, 28, 28), np.uint8)
    images[:, 0:9, 10:15] = 200  # up to the frame
    images[:, 2:6, 12] = 100  # a hole
    for part, rows in (("train", images), ("t10k", images[:100])):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(rows))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(rows[:, 0, 0]))
    run("convert", "border", tmp_path)
    data = datasets.border_ownership()
    assert [part.images.shape for part in data[:2]] == [(300, 30, 30), (100, 30, 30)]
    expected = np.ones((30, 30), int)
    expected[1:11, 10:17] = 0
    expected[10, [10, 16]] = 1
    expected[1:10, 11:16] = 2
    expected[3:7, 13] = 0
    np.testing.assert_array_equal(data.train.labels, np.broadcast_to(expected, (300, 30, 30)))
    seen, label = data.train.images, data.train.labels
    share = seen[label == 0].mean()
    assert abs(share - 0.8) < 5 * (0.16 / (label == 0).sum()) ** 0.5
    np.testing.assert_allclose(data.p_contour, [share, 24 / (label[0] == 1).sum(), 1e-10])
    spurious = seen & (label == 1)
    assert (spurious.sum((1, 2)) == 24).all()
    assert not spurious[:, [0, -1]].any()
    for image in spurious[:20]:
        pieces, number = cast(Any, scipy.ndimage.label(image, np.ones((3, 3))))
        assert number == 8, "apart from each other"
        for k in range(8):
            place = np.argwhere(pieces == k + 1)
            steps = np.diff(place, axis=0)
            assert (steps[0] == steps[1]).all(), "straight"
            assert abs(steps[0]).max() == 1
        assert not (scipy.ndimage.binary_dilation(image, np.ones((3, 3))) & (expected != 1)).any()
    assert not np.array_equal(seen[0], seen[1])
    # What is wrong with a file is said.
    stored = dict(np.load(folder / "border_ownership.npz"))
    np.savez(folder / "border_ownership.npz", **{**stored, "in_test": stored["in_test"][:50]})
    with pytest.raises(ValueError, match=r"`noisy_test` of 'border' .*rows.*100, 100 and 50"):
        datasets.border_ownership()
    np.savez(folder / "border_ownership.npz", **{**stored, "in_test": stored["contour_test"]})
    with pytest.raises(ValueError, match="`contour` of 'border' must be apart from `in`"):
        datasets.border_ownership()


def test_caltech(folder, tmp_path, run):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, (6, 28, 28)).astype(np.uint8)
    turned = images.transpose(0, 2, 1).reshape(6, 784)  # columns first, as MATLAB has them
    names = np.empty((1, 2), object)
    names[0, 0], names[0, 1] = "ant", "bee"
    stored = {"classnames": names}
    for part, rows in (("train", slice(0, 3)), ("val", slice(3, 4)), ("test", slice(4, 6))):
        stored[f"{part}_data"] = turned[rows]
        stored[f"{part}_labels"] = np.arange(1, 7)[rows, None]
    scipy.io.savemat(tmp_path / "c.mat", stored)
    run("convert", "caltech", tmp_path / "c.mat")
    data = datasets.caltech_silhouettes()
    got = np.concatenate([split.x for split in data])
    np.testing.assert_array_equal(got, images.reshape(6, 784))
    assert np.concatenate([cast(Any, split.y) for split in data]).tolist() == [1, 2, 3, 4, 5, 6]


def test_frey_faces(folder, tmp_path, run):
    faces = np.random.default_rng(0).integers(0, 256, (560, 1965)).astype(np.uint8)
    scipy.io.savemat(tmp_path / "f.mat", {"ff": faces})
    run("convert", "frey", tmp_path / "f.mat")
    data = datasets.frey_faces()
    assert [len(split.x) for split in data] == [1572, 0, 393]
    np.testing.assert_array_equal(data.test.x[0], faces[:, 1572])


def test_nade_collection(folder, tmp_path, run):
    paths = [tmp_path / f"{part}.libsvm" for part in ("train", "valid", "test")]
    paths[0].write_text("+1 1:1 3:1\n-1 2:1\n")
    paths[1].write_text("1 4:1 # a comment\n")
    paths[2].write_text("0\n")
    run("convert", "adult", *paths, "--units", 6)
    data = datasets.nade("adult")
    assert data.train.x.tolist() == [[1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]]
    assert data.valid.x.tolist() == [[0, 0, 0, 1, 0, 0]]
    assert data.test.x.tolist() == [[0] * 6]
    assert data.train.y is not None
    assert data.train.y.tolist() == [1, -1]
    dense = tmp_path / "a.amat"
    dense.write_text("0 1 1 7\n1 0 0 3\n")
    run("convert", "ocr_letters", dense, dense, dense)
    data = datasets.nade("ocr-letters")
    assert data.test.x.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert data.test.y is not None
    assert data.test.y.tolist() == [7, 3]
    listed = run("list").splitlines()
    assert [line.split()[1] for line in listed if line.startswith(("adult", "web"))] == [
        "there",
        "missing",
    ]


@pytest.mark.slow
def test_command():
    command = [sys.executable, "-m", "ebmlearn.datasets", "convert", "mnist", "/nowhere"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert out.returncode == 1
    assert out.stderr.startswith("error: `/nowhere` must hold an idx file")


def test_missing_data(folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"mnist\.npz.*LeCun.*convert mnist"):
        datasets.mnist()
    with pytest.raises(FileNotFoundError, match=r"nade_rcv1\.npz.*Larochelle.*convert rcv1"):
        datasets.nade("rcv1")
    with pytest.raises(ValueError, match=r"`name` must be one of 'adult'.*got 'mnist'"):
        datasets.nade("mnist")
    monkeypatch.delenv("EBMLEARN_DATA")
    with pytest.raises(FileNotFoundError, match=r"`EBMLEARN_DATA` must name the folder"):
        datasets.mnist()
    monkeypatch.setenv("EBMLEARN_DATA", "/nowhere")
    with pytest.raises(FileNotFoundError, match=r"must name a folder, got '/nowhere'"):
        datasets.mnist()


def test_files_of_the_wrong_form(folder, tmp_path):
    (folder / "mnist.npz").write_bytes(b"not a zip file")
    with pytest.raises(ValueError, match=r"mnist\.npz` must be an npz file"):
        datasets.mnist()
    (folder / "mnist.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"mnist\.npz` must be an npz file"):
        datasets.mnist()
    np.savez(folder / "frey_faces.npz", faces=np.zeros(3))
    with pytest.raises(ValueError, match=r"must hold the arrays x, got faces"):
        datasets.frey_faces()
    np.savez(folder / "frey_faces.npz", x=np.zeros((3, 28, 20), np.uint8))
    with pytest.raises(ValueError, match=r"shape \(1965, 28, 20\), got .*\(3, 28, 20\)"):
        datasets.frey_faces()
    np.savez(folder / "frey_faces.npz", x=np.array([{}], object))
    with pytest.raises(ValueError, match="plain arrays"):
        datasets.frey_faces()
    packed: dict[str, Any]
    packed = {f"{part}_packed": np.zeros((2, 3), np.uint8) for part in ("train", "valid", "test")}
    np.savez(folder / "nade_web.npz", n_vis=300, **packed)
    with pytest.raises(ValueError, match=r"`train_packed` of 'web' .*\(rows, 38\).*\(2, 3\)"):
        datasets.nade("web")


def test_originals_of_the_wrong_form(folder, tmp_path, run):
    text = tmp_path / "bad"
    text.write_text("1 one:1\n")
    assert "got line 1: '1 one:1'" in run("convert", "dna", text, text, text, status=1)
    text.write_text("1 1:0.5\n")
    assert "0 and 1 only, got 0.5" in run("convert", "dna", text, text, text, status=1)
    assert "three files, got 1" in run("convert", "dna", text, status=1)
    assert "an idx file train-images" in run("convert", "mnist", tmp_path, status=1)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((2, 2), np.uint8))[:-1])
    assert "4 bytes after its header, got 3" in run("convert", "mnist", tmp_path, status=1)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(gzip.compress(b"0" * 100)[:-12])
    assert "must be a whole gzip file" in run("convert", "mnist", tmp_path, status=1)
    assert "must be a .mat file" in run("convert", "frey", text, status=1)
    scipy.io.savemat(tmp_path / "f.mat", {"gg": np.zeros(2)})
    assert "must hold `ff`, got gg" in run("convert", "frey", tmp_path / "f.mat", status=1)
    assert not list(folder.iterdir()), "nothing half-written"


def test_flip():
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, (400, 50)), jnp.uint8)
    y = datasets.flip(x, 0.2, key=KEY)
    assert y.dtype == x.dtype
    share = (np.asarray(x) != np.asarray(y)).mean()
    assert abs(share - 0.2) < 5 * (0.16 / x.size) ** 0.5
    np.testing.assert_array_equal(y, datasets.flip(x, 0.2, key=KEY))
    np.testing.assert_array_equal(datasets.flip(x, 1.0, key=KEY), 1 - np.asarray(x))
    assert datasets.flip(x.astype(bool), 0.2, key=KEY).dtype == bool
    with pytest.raises(ValueError, match=r"`rate` must lie in \[0, 1\], got 2"):
        datasets.flip(x, 2.0, key=KEY)
    with pytest.raises(ValueError, match=r"`x` must hold 0 and 1 only, got [23] in row 0"):
        datasets.flip(x + 2, 0.2, key=KEY)


@pytest.mark.parametrize("value", [0, 1])
def test_occlude(value):
    x = jnp.full((600, 6 * 5), 1 - value, jnp.uint8)
    y = np.asarray(datasets.occlude(x, 2, key=KEY, shape=(6, 5), value=value)).reshape(600, 6, 5)
    changed = y == value
    assert (changed.sum((1, 2)) == 4).all()
    places = {(int(row.any(1).argmax()), int(row.any(0).argmax())) for row in changed}
    assert len(places) == 5 * 4, "every place inside the image, each a square"
    for row in changed:
        top, left = row.any(1).argmax(), row.any(0).argmax()
        assert row[top : top + 2, left : left + 2].all()
    with pytest.raises(ValueError, match=r"`size` must be at most 5"):
        datasets.occlude(x, 6, key=KEY, shape=(6, 5))
    with pytest.raises(ValueError, match=r"`x` must have shape \(\.\.\., 784\)"):
        datasets.occlude(x, 6, key=KEY)
    with pytest.raises(ValueError, match=r"`value` must be 0 or 1, got 5"):
        datasets.occlude(x, 2, key=KEY, shape=(6, 5), value=5)


def test_a_benchmark_without_its_data_is_not_run(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "qt", "--task", "nips"])
    with pytest.raises(SystemExit, match=r"^Not run: There is no .*nade_nips\.npz"):
        benchmarks.main()


def test_images_are_features_at_their_locations():
    features = np.array([[[1, 0], [1, 1]]])
    locations = np.zeros((1, 1, 2, 2), int)
    locations[0, 0, 0, 1] = locations[0, 0, 1, 0] = 1
    (image,) = datasets.convolved(features, locations, 3)
    np.testing.assert_array_equal(image, [[0, 1, 0], [1, 1, 1], [1, 1, 0]])


def test_contours_of_zeros(monkeypatch):
    """Of digits that are squares of four pixels, and of one that is no zero."""
    images = np.zeros((5002, 28, 28), np.int32)
    images[:, 4:6, 7:9] = 1
    x, y = images.reshape(len(images), -1), np.arange(len(images)) == 7
    split, empty = datasets.Split(x, y), datasets.Split(x[:0], y[:0])
    mnist = datasets.Dataset(split, empty, split)
    monkeypatch.setattr("ebmlearn.datasets._load.mnist", lambda: mnist)
    data = datasets.mnist_zeros()
    assert len(data.train.x) == 5000 and len(data.valid.x) == 0 and len(data.test.x) == 1
    contour = data.train.x[0].reshape(30, 30)
    assert contour.sum() == 8 and contour[4, 8] == contour[5, 7] == contour[7, 9] == 1
