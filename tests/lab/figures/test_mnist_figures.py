"""Fig. 2 and Fig. 5 on made images in MNIST's format; on the real ones where they are at hand."""

import os

import numpy as np
import polars as pl
import pytest
from sklearn.kernel_ridge import KernelRidge

import retarget as rt
from retarget.lab.data.fetch import data_folder
from retarget.lab.data.mnist import MNIST
from retarget.lab.figures import mnist
from retarget.lab.figures.mnist import cached_gram
from retarget.lab.reader import load_experiment, parse_changes
from retarget.lab.runs.run import run_experiment
from retarget.learners import LABELS

REAL_MNIST = os.environ.get("RETARGET_DATA")  # before the fixtures point it elsewhere
SMALL = ["train=80", "test=40", "evaluate_every=32"]


pytestmark = pytest.mark.usefixtures("not_saved")


def small(name, *changes, seeds=(0,)):
    return load_experiment(name).changed(parse_changes([*SMALL, *changes], seeds))


def final(table, **where):
    last = table.filter(pl.col("samples") == pl.col("samples").max()).filter(**where)
    return last["accuracy"].mean()


def test_images_are_whitened_over_the_whole_set():
    images = np.random.default_rng(0).integers(256, size=(90, 28, 28)).astype(np.uint8)
    images[:, 0, 0] = 7  # a pixel that never changes
    whitened = mnist._whitened(images, np.arange(90))
    assert whitened.dtype == np.float32
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(whitened.std(axis=0)[1:], 1, rtol=1e-5)
    np.testing.assert_array_equal(whitened[:, 0, 0], 0)


def test_the_problem_is_the_drawn_images_ntk():
    stream = mnist.mnist_stream(small("fig5").runs()[0])
    assert (stream.K.shape, stream.K_test.shape) == ((80, 80), (40, 80))
    np.testing.assert_array_equal(stream.Y.argmax(axis=1), stream.labels)
    assert np.linalg.eigvalsh(stream.K)[0] > 0
    by_class, order = stream.class_by_class(), np.argsort(stream.labels, kind="stable")
    assert (np.diff(by_class.labels) >= 0).all()
    np.testing.assert_array_equal(by_class.K, stream.K[order][:, order])
    np.testing.assert_array_equal(by_class.K_test, stream.K_test[:, order])
    np.testing.assert_array_equal(by_class.Y, stream.Y[order])
    with pytest.raises(rt.errors.InvalidInputError, match="train = 301, but MNIST here has 300"):
        mnist.mnist_stream(small("fig5", "train=301").runs()[0])


def test_fig2_on_made_images(tmp_path):
    table = run_experiment(small("fig2"), tmp_path).table
    for order in ("shuffled", "class by class"):
        assert final(table, order=order, learner="corrected") == pytest.approx(
            final(table, order=order, learner="offline"), abs=1 / 40
        )
        assert final(table, order=order, learner="iterative") > 0.5
    shown = table.filter(pl.col("series") == "effective")
    assert set(shown["label"]) == {0, 1, 2}
    assert mnist.summarize_curves(table)[0].row_count == 4
    # the offline learner along the stream, by another library
    stream = mnist.mnist_stream(small("fig2").runs()[0])
    peer = KernelRidge(alpha=0.01, kernel="precomputed").fit(stream.K[:64, :64], stream.Y[:64])
    expected = np.mean(peer.predict(stream.K_test[:, :64]).argmax(1) == stream.labels_test)
    row = table.filter(seed=0, order="shuffled", learner="offline", samples=64)
    assert row["accuracy"][0] == pytest.approx(expected)


@pytest.mark.slow
def test_fig5_on_made_images_with_rates_that_diverge(tmp_path):
    # far above the stable rates, for longer than float64 lasts
    changes = ("online_lr_powers=[-1.0, 9.0]", "sweep_points=3", "block_sizes=[4, 32]")
    experiment = small("fig5", *changes)
    table = run_experiment(experiment, tmp_path).table
    online = table.filter(panel="B")
    assert online.filter(pl.col("setting") < 1)["accuracy"].min() > 0.3
    assert online.filter(pl.col("setting") > 1e8)["accuracy"].is_nan().all()
    assert set(table.filter(panel="D")["setting"]) == {4.0, 32.0}
    assert final(table, panel="C", setting=0.001) == pytest.approx(
        table.filter(panel="A", setting=0.001)["accuracy"].mean(), abs=1 / 40
    )
    lines = mnist.summarize_sweeps(table)
    assert lines[1].startswith("Online: best at eta = 0.1")


@pytest.mark.filterwarnings("ignore::retarget.errors.DivergenceWarning")
def test_a_diverging_curve_is_kept_so_far():
    stream = mnist.mnist_stream(small("fig5").runs()[0])
    learner = rt.SGD(lr=1e9)
    f = stream.predictions("online", [4, 16, 80], lr=1e9)
    assert np.isfinite(f[:2]).all()
    assert np.isnan(f[2]).all()
    expected = rt.online_learning_curve(
        stream.K[:16, :16], stream.Y[:16], stream.K_test[:, :16], learner, [4, 16]
    )
    np.testing.assert_allclose(f[:2], expected)


def test_kernels_are_computed_once(monkeypatch):
    X = np.random.default_rng(0).normal(size=(12, 3))
    first = cached_gram(rt.RBF(2.0), X)
    monkeypatch.setattr(rt.RBF, "_gram", None)  # any further computing would fail
    np.testing.assert_array_equal(cached_gram(rt.RBF(2.0), X), first)
    for width, samples in ((2.5, X), (2.0, X + 1)):
        with pytest.raises(TypeError):
            cached_gram(rt.RBF(width), samples)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(file.present(data_folder(REAL_MNIST)) for file in MNIST.files),
    reason="RETARGET_DATA names no folder with MNIST",
)
def test_fig2_on_the_real_images(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", REAL_MNIST)
    experiment = load_experiment("fig2").changed(parse_changes([], seeds=[0, 1]))
    table = run_experiment(experiment, tmp_path).table
    for order, gap in (("shuffled", 0.05), ("class by class", 0.2)):
        scores = {k: final(table, order=order, learner=k) for k in LABELS}
        assert scores["offline"] > 0.95
        assert scores["corrected"] == pytest.approx(scores["offline"], abs=0.005)
        assert scores["online"] + gap < scores["iterative"] < scores["offline"]
