from inspect import signature

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.cli import diagnose as diagnose_command
from retarget.errors import InvalidInputError, InvalidTypeError
from support.diagnosis_options import ELSEWHERE, options_for
from support.hand_made_diagnosis import standing_in

rng = np.random.default_rng(0)
X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
PAIRS = rt.SGD(lr=0.1, batch_size=2, reduction="sum")
FRAME = pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "t": np.arange(50)[::-1].copy()})


@pytest.fixture
def stand(monkeypatch):
    return standing_in(monkeypatch)


def test_arrays(stand):
    diagnosis = rt.diagnose(X, y)
    assert isinstance(diagnosis, rt.Diagnosis)
    assert stand.stream.feature_names == ("x0", "x1", "x2")
    assert (stand.stream.target_names, stand.options) == (("y",), options_for())
    assert [len(asked) for asked in stand.asked.values()] == [10, 10]
    # rows held out were not looked at
    np.testing.assert_allclose(stand.stream.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(stand.stream.Y.std(axis=0), 1, atol=1e-12)
    rt.diagnose(X, y, evaluation="progressive")
    np.testing.assert_allclose(stand.stream.Y.mean(), 0, atol=1e-12)
    rt.diagnose(torch.tensor(X), torch.tensor(np.column_stack([y, y**2])))
    assert stand.stream.target_names == ("y0", "y1")
    rt.diagnose(
        X.tolist(),
        ["cat", "dog"] * 25,
        group=["u", "v"] * 25,
        time=np.arange(50)[::-1],
        evaluation="next",
    )
    assert stand.stream.target_names == ("cat", "dog")
    assert list(stand.stream.groups[:2]) == ["v", "u"]
    assert (stand.stream.rows[0], stand.stream.group_column) == (50, "group")


def test_frames(stand):
    rt.diagnose(FRAME.drop("b"), "y", time="t", standardize=False, evaluation="next")
    assert stand.stream.feature_names == ("a",)
    np.testing.assert_array_equal(stand.stream.X[:, 0], X[::-1, 0][:40])
    rt.diagnose(FRAME.lazy(), ["y", "a"], group="t")
    assert (stand.stream.target_names, stand.stream.group_column) == (("y", "a"), "t")
    rt.diagnose(FRAME.drop("y"), FRAME["y"])
    assert stand.stream.target_names == ("y",)
    rt.diagnose({"a": y, "t": y**2, "group": y**3}, ["no", "yes"] * 25, group=np.arange(50) % 3)
    assert stand.stream.group_column == "group_"
    assert stand.stream.feature_names == ("a", "t", "group")


def test_the_learner_is_described_or_its_rate_chosen(stand):
    rt.diagnose(X, y, learner=rt.SGD(lr=0.1, batch_size=5, reduction="mean"), gamma=2.0, seed=7)
    assert stand.options == options_for(lr=0.1, batch_size=5, reduction="mean", gamma=2.0, seed=7)
    rt.diagnose(X, y, lr=0.3)
    assert stand.options == options_for(lr=0.3)
    with pytest.raises(InvalidInputError, match="lr is 0.2 together with a learner"):
        rt.diagnose(X, y, learner=rt.SGD(lr=0.1), lr=0.2)
    with pytest.raises(InvalidInputError, match="a schedule of 2 rates"):
        rt.diagnose(X, y, learner=rt.SGD(lr=[0.1, 0.2]))


def test_what_the_command_takes_python_takes_as_well():
    """But for what a frame, a learner or a model says itself; with the same defaults."""
    command, known = (
        signature(function).parameters for function in (diagnose_command.diagnose, rt.diagnose)
    )
    assert len(known) <= 25
    of_files = {
        "file",
        "example",
        "target",
        "out",
        "as_object",
        "open_report",
        "compare",
        "fail_above",
        "summary",
        "verbose",
    }
    assert set(command) - set(known) - of_files == ELSEWHERE
    assert set(known) - set(command) == {"X", "Y", "learner"}
    for name in set(known) & set(command):
        assert known[name].default == command[name].default


def test_chosen_from_the_data_is_auto(stand):
    chosen = ("width", "gamma", "block_size", "ridge", "features", "max_memory")
    rt.diagnose(X, y, **dict.fromkeys(chosen, "auto"))
    assert stand.options == options_for()
    for name in set(chosen) - {"features"}:  # None: no features, the exact kernel
        with pytest.raises(
            (InvalidInputError, InvalidTypeError), match=rf"{name}( .--.*.)? is None"
        ):
            rt.diagnose(X, y, **{name: None})
    rt.diagnose(X, y, max_memory="1.5GB", features=None)
    assert stand.options == options_for(max_memory=1_500_000_000, features=None)


def test_test_sets(stand):
    rt.diagnose(X, y, test=(X[:9] + 1, y[:9]))
    assert list(stand.asked) == ["test"]
    np.testing.assert_allclose(stand.stream.X.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(stand.test.X, stand.stream.X[:9] + 1 / X.std(axis=0), atol=1e-12)
    rt.diagnose(FRAME, "y", time="t", test=FRAME[:7].drop("t"))
    assert len(stand.test) == 7
    rt.diagnose(FRAME.drop("y"), FRAME["y"], test=(FRAME[:7].drop("y"), FRAME["y"][:7]))
    assert len(stand.test) == 7
    table = FRAME.with_columns(c=pl.Series(["u", "v"] * 25))
    rt.diagnose(table, "y", test=table[:5].with_columns(c=pl.lit("new")))
    assert stand.stream.notes[-1].startswith("Test set: In 5 rows, 'c' holds a category that")
    assert len([note for note in stand.stream.notes if "Made one feature" in note]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"Y": y[:9]}, "X has 50 rows and Y has 9; expected the same"),
        ({"group": y[:9]}, "X has 50 rows and group has 9"),
        ({"X": FRAME, "Y": FRAME["y"]}, "X together with Y has more than one column named 'y'"),
        ({"test": X}, "test is a ndarray; expected .X, Y., or a frame if Y names columns"),
        ({"test": (X, FRAME["y"].alias("z"))}, "test set's targets are called z; expected y"),
        ({"test": (X, y), "evaluation": "next"}, "'next' and there is a test set"),
        ({"evaluation": "test"}, "is 'test' and there is no test set; give test .--test."),
        (
            {"test_share": 1.0},
            "test_share .--test-share. is 1.0; expected a share above 0",
        ),
        ({"evaluation": "later"}, "evaluation .--evaluation. is 'later'; expected one of"),
        ({"metric": "best"}, "metric .--metric. is 'best'; expected one of auto, squared"),
        ({"hold_out": "some"}, "hold_out .--hold-out. is 'some'; expected one of rows, group"),
        ({"max_memory": -1}, "max_memory .--max-memory. is -1; expected an amount such as 4GB"),
        ({"features": 1}, "features .--features. is 1; expected a whole number, 2 or more"),
        ({"features": 1.5}, "features .--features. is .*; expected a whole number"),
        ({"lr": 0.0}, "lr is 0"),
        ({"gamma": -1.0}, "gamma .--gamma. is -1"),
        ({"gamma": 1e308}, r"gamma .--gamma. is 1e\+308; expected at most 1e\+100"),
        ({"gamma": "best"}, "gamma .--gamma. is 'best'; expected a number or 'auto'"),
        ({"ridge": -1.0}, "ridge is -1"),
        ({"block_size": 5, "learner": PAIRS}, "block_size is 5; expected a positive multiple"),
        ({"learner": torch.optim.SGD}, "learner is a type; expected rt.SGD"),
        ({"kernel": "linear", "width": 2.0}, "only the kernels laplace, .*rbf take it"),
        ({"X": FRAME, "Y": "Y"}, "Y .--target.: there is no column 'Y'; did you mean 'y'"),
        *(
            ({"aim": text}, "aim .--aim. is .*expected 'all', 'window:N'")
            for text in ("some", "window:0", "discount:1", "discount:x")
        ),
        ({"lr": [0.1, 0.2]}, "lr is .*; expected one number"),
        *(
            (
                {"seed": seed},
                "seed .--seed. is .*; expected a whole number from 0 to 922337",
            )
            for seed in (-1, 2**80, 1.5, "7", None)
        ),
        ({"X": X[:1], "Y": y[:1]}, "1 rows; expected at least 4 .*, or 2 with evaluation=.prog"),
    ],
)
def test_wrong_arguments(stand, arguments, message):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        rt.diagnose(**{"X": X, "Y": y, **arguments})
    assert stand.stream is None


def test_the_kernel_of_a_network(stand, monkeypatch, tmp_path):
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n"
        "def small():\n    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))\n"
        "def other():\n    return nn.Linear(8, 1)\n"
        "def broken():\n    raise RuntimeError('out of order')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rt.diagnose(X, y, kernel="my_networks:small")
    kernel = stand.options.kernel
    assert isinstance(kernel, rt.EmpiricalNTK)
    K = kernel(stand.stream.X[:5])
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K, K.T)
    own = rt.EmpiricalNTK(nn.Linear(3, 1).double())
    rt.diagnose(X, y, kernel=own)
    assert stand.options.kernel is own
    for name, message in (("other", "does not accept rows of 3 feat"), ("broken", "out of order")):
        with pytest.raises(InvalidInputError, match=f"'my_networks:{name}' .*{message}"):
            rt.diagnose(X, y, kernel=f"my_networks:{name}")
