"""Every kernel that has a name arrives everywhere, a user's own too; and is what it says it is."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF, Matern
from sklearn.metrics import pairwise

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations.river_named import NamedFeatures
from retarget.kernels import kernel_from_dict
from retarget.kernels.feature_maps import feature_map
from retarget.kernels.lookup import kernel_names, takes_width
from retarget.kernels.stationary import Stationary
from support.command_line import run
from support.problems import assert_same, panels_of

OURS = ["affine", "laplace", "linear", "matern32", "matern52", "rbf"]
STATIONARY = [name for name in OURS if takes_width(name)]


class Quartic(rt.Kernel, name="quartic of a test"):
    """A kernel as a user writes it: with a parameter, a width and features."""

    exact_features = True

    def __init__(self, width=2.0, constant=0.5):
        self.width = width
        self.constant = constant

    @classmethod
    def from_width(cls, width, X=None):
        return cls(3.0 if width == "auto" else width)

    def features(self, count, seed):
        return Squares(self.width, self.constant)

    def _gram(self, A, B):
        return (A / self.width).square() @ (B / self.width).square().mT + self.constant**2

    def _diag(self, A):
        return (A / self.width).square().square().sum(1) + self.constant**2


class Squares:
    def __init__(self, width, constant):
        self.width = width
        self.constant = constant

    def __call__(self, X):
        samples = torch.as_tensor(X)
        ones = samples.new_full((len(samples), 1), self.constant)
        return torch.cat([(samples / self.width).square(), ones], 1)


NAMES = [*OURS, "quartic of a test"]


@pytest.fixture
def stream():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 3))
    return X, np.sin(X[:, 0]) + X[:, 1] ** 2


def test_all_names_are_in_these_tests():
    others = {"quadratic"}  # of a docstring, which runs as a test
    in_package = {name for name in kernel_names() if " of a test" not in name}
    assert sorted(in_package - others) == OURS


@pytest.mark.parametrize(("kernel", "oracle"), [
    (rt.Laplace(1.7), lambda A, B: pairwise.laplacian_kernel(A, B, gamma=1 / 1.7)),
    (rt.Laplace("auto"), pairwise.laplacian_kernel),
    (rt.RBF("auto"), pairwise.rbf_kernel),
    (rt.RBF(1.7), RBF(1.7 / np.sqrt(2))),
    (rt.Matern32(1.7), Matern(1.7, nu=1.5)),
    (rt.Matern32("auto"), Matern(2.0, nu=1.5)),  # four columns
    (rt.Matern52(0.6), Matern(0.6, nu=2.5)),
    (rt.Affine(), lambda A, B: 1 + A @ B.T),
    (rt.Linear(), lambda A, B: A @ B.T),
], ids=lambda value: repr(value) if isinstance(value, rt.Kernel) else "")  # fmt: skip
def test_equal_to_scikit_learn(kernel, oracle):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(7, 4)), rng.normal(size=(5, 4))
    A[3] = A[1]
    assert_same(kernel(A, B), oracle(A, B), 1e-13)
    assert_same(kernel(A), oracle(A, A), 1e-7 if isinstance(kernel, Stationary) else 1e-13)
    assert_same(kernel.diag(A), np.diag(oracle(A, A)), 1e-13)
    with panels_of(3):
        K = kernel(A)
    np.testing.assert_array_equal(K, K.T)
    images = B.reshape(5, 2, 2)
    assert_same(kernel(images), kernel(B), 1e-13)
    assert kernel(A.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("name", STATIONARY)
def test_random_features_are_right_on_average(name):
    X = np.random.default_rng(1).normal(size=(6, 3))
    kernel = rt.as_kernel(name, 2.5)
    count, seeds = 128, 60
    grams = []
    for seed in range(seeds):
        phi = feature_map(kernel, count, seed)(X)
        assert_same((phi**2).sum(1), np.ones(6), 1e-12)
        grams.append((phi @ phi.mT).numpy())
    assert np.abs(np.mean(grams, axis=0) - kernel(X)).max() < 4 / np.sqrt(seeds * count)


@pytest.mark.parametrize("name", NAMES)
def test_arrives_everywhere(name, stream, tmp_path):
    X, y = stream
    kernel = rt.as_kernel(name)
    assert type(kernel).name == name
    assert repr(kernel_from_dict(kernel.to_dict())(X)) == repr(kernel(X))

    diagnosis = rt.diagnose(X, y, kernel=name, lr=0.05)
    assert diagnosis.kernel.name == name
    assert (diagnosis.kernel.width is not None) == takes_width(name)

    for estimator in (
        rt.OnlineKernelRegressor(name, lr=0.02),
        rt.StreamingRidgeRegressor(name, 0.1, features=32),
    ):
        assert np.isfinite(estimator.fit(X, y).predict(X)).all()
    model = rt.StreamingRidgeRegressor(name, 0.1, features=32).fit(X, y)
    direct = rt.StreamingRidge(name, 0.1, 32, intercept=True).learn(X, y)
    assert_same(model.predict(X), direct.predict(X), 1e-10)
    direct.save(tmp_path / "ridge")
    again = rt.StreamingRidge.load(tmp_path / "ridge", name)
    assert_same(again.predict(X), direct.predict(X), 0)
    assert again.merge(direct).samples == 120

    options = rt.SGD(0.05), 0.5, 10
    whole = rt.iterative_targets(kernel(X), y, options[0], 0.5, 10)
    assert_same(rt.TargetCorrector(name, *options).correct(X, y), whole, 1e-10)
    bounded = rt.TargetCorrector(name, *options, features=64)
    targets = bounded.correct(X[:40], y[:40])
    bounded.save(tmp_path / "corrector")
    loaded = rt.TargetCorrector.load(tmp_path / "corrector")
    assert_same(loaded.correct(X[40:], y[40:]), bounded.correct(X[40:], y[40:]), 0)
    if kernel.exact_features:
        assert_same(targets, whole[:40], 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_the_kernel(name, stream):
    X, _ = stream
    width = 3.0 if takes_width(name) else "auto"
    kernel = rt.as_kernel(name, width)
    phi = feature_map(kernel, 20_000, 1)(X[:9])
    assert_same(phi @ phi.mT, kernel(X[:9]), 1e-12 if kernel.exact_features else 0.05)


@pytest.mark.parametrize("name", [*STATIONARY, "linear"])
def test_samples_that_are_dicts(name, stream):
    X, _ = stream
    names = ["a", "b", "c"]
    features = NamedFeatures(name, features=20_000, seed=4)
    features.meet_rows(names, X[:9])
    phi = features.rows(names, X[:9])
    turned = NamedFeatures(name, features=20_000, seed=4)
    turned.meet_rows(names[::-1], X[:9, ::-1])
    assert_same(turned.rows(names[::-1], X[:9, ::-1]) @ phi[0], phi @ phi[0], 1e-10)
    if name == "linear":
        assert_same(phi, X[:9], 0)
    else:  # the numbers themselves come after the random features
        assert_same(phi[:, :20_000] @ phi[:, :20_000].T, rt.as_kernel(name)(X[:9]), 0.05)


@pytest.mark.parametrize("name", OURS)
def test_on_the_command_line(name, stream, tmp_path, monkeypatch, capsys):
    X, y = stream
    monkeypatch.chdir(tmp_path)
    rows = ["a,b,c,y", *(",".join(map(str, [*x, t])) for x, t in zip(X, y, strict=True))]
    Path("rows.csv").write_text("\n".join(rows))
    width = ("--width", "1.5") if takes_width(name) else ()
    asked = "rows.csv", "--target", "y", "--kernel", name, *width, "--lr", "0.05"
    code, shown = run(monkeypatch, capsys, "diagnose", *asked)
    assert code == 0, shown
    used = json.loads(Path("results/diagnosis/diagnosis.json").read_text())["kernel"]
    assert used == {"name": name, "width": 1.5 if width else None, "automatic": False}


OWN = """
import retarget as rt

class Cubic(rt.Kernel, name="cubic"):
    def _gram(self, A, B):
        return (1 + A @ B.mT) ** 3
    def _diag(self, A):
        return (1 + A.square().sum(1)) ** 3

def make():
    return Cubic()
"""


@pytest.mark.parametrize("what", ["Cubic", "make"])
def test_a_kernel_from_a_users_file(what, stream, tmp_path):
    X, y = stream
    rows = ["a,b,c,y", *(",".join(map(str, [*x, t])) for x, t in zip(X, y, strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    (tmp_path / "own.py").write_text(OWN)
    call = "import sys; sys.path.insert(0, '.'); from retarget.cli import main; main()"
    command = "diagnose", "rows.csv", "--target", "y", "--kernel", f"own:{what}", "--lr", "0.001"
    arguments = [sys.executable, "-c", call, *command]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = json.loads((tmp_path / "results/diagnosis/diagnosis.json").read_text())["kernel"]
    assert used["name"] == "cubic" if what == "Cubic" else "Cubic" in used["name"]


def test_only_plain_values_are_described():
    assert Quartic(1.5).to_dict() == {"kind": "quartic of a test", "width": 1.5, "constant": 0.5}

    class OfAMatrix(Quartic, name="matrix of a test"):
        def __init__(self):
            super().__init__()
            self.matrix = np.eye(2)

    assert OfAMatrix().to_dict() is None


def test_a_kernel_that_only_a_file_names():
    class Scaled(rt.Kernel, kind="scaled of a test"):
        def __init__(self, inner, factor):
            self.inner = inner
            self.factor = factor

        def to_dict(self):
            inner = self.inner.to_dict()
            return {"kind": "scaled of a test", "inner": inner, "factor": self.factor}

        @classmethod
        def from_dict(cls, inner, factor):
            return cls(kernel_from_dict(inner), factor)

        def _gram(self, A, B):
            return self.factor * self.inner._gram(A, B)

        def _diag(self, A):
            return self.factor * self.inner._diag(A)

    X = np.random.default_rng(2).normal(size=(5, 3))
    again = kernel_from_dict(Scaled(rt.RBF(1.7), 3.0).to_dict())
    assert_same(again(X), 3 * rt.RBF(1.7)(X), 1e-14)
    assert "scaled of a test" not in kernel_names()


def with_name_of_another():
    class Other(rt.Kernel, name="rbf"):
        pass


@pytest.mark.parametrize(("call", "error", "match"), [
    (with_name_of_another, InvalidInputError, "name 'rbf' is taken by retarget.kernels.rbf.RBF"),
    (lambda: rt.as_kernel("linear", 2.0), InvalidInputError, "'linear' has no width; leave"),
    (lambda: rt.as_kernel(rt.RBF(1.0), 2.0), InvalidInputError, "width is 2.0 with the kernel RBF"),
    (lambda: rt.as_kernel("mattern32"), InvalidInputError, "'mattern32'; .* laplace, .* matern32"),
    (lambda: rt.Matern32(-1), InvalidInputError, "width is -1"),
    (lambda: rt.RBF("wide"), InvalidTypeError, "width is 'wide'"),
    (lambda: kernel_from_dict({"kind": "gone"}), InvalidInputError, "'gone'; .* .import the"),
    (lambda: NamedFeatures("affine"), InvalidInputError, "kernel is 'affine'; expected 'linear'"),
    (lambda: NamedFeatures(rt.Features(np.sin)), InvalidInputError, "a kernel of the differences"),
    (lambda: rt.diagnose(np.eye(50), np.ones(50), kernel="affine", width=2.0), InvalidInputError,
     f"only the kernels {STATIONARY[0]}, "),
])  # fmt: skip
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
