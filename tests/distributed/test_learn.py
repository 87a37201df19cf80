"""Learners of bounded memory on Dask arrays: the same as in memory, whatever the blocks."""

import socket
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import retarget as rt
from retarget import distributed as rd
from retarget.errors import InvalidInputError, InvalidTypeError
from support.problems import assert_same


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def random_stream(n=90, d=4, c=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 1
    return X, np.sin(X[:, :1]) + X @ rng.normal(size=(d, c)), rng.normal(size=(6, d)) + 1


def network(c=2):
    torch.manual_seed(0)
    layers = nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, c)
    return nn.Sequential(*layers).double()


def cubes(X):
    return np.hstack([X, X**2, X**3])


LEARNERS = {
    "function": lambda: rt.StreamingRidge(cubes, 0.3),
    "intercept": lambda: rt.StreamingRidge(cubes, intercept=True),
    "random": lambda: rt.StreamingRidge(rt.RBF(2.0), 0.3, features=20, seed=2),
    "network": lambda: rt.StreamingRidge(network(), 0.3),
    "tangent": lambda: rt.TangentLearner(network(), 0.3, 12, combinations=2, seed=3),
    "feature extractor": lambda: rt.TangentLearner(network(7), 0.3, 12),
}


@pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS)
def test_it_is_learned_as_in_memory(make):
    X, Y, queries = random_stream()
    learner = make()
    with dask.config.set(scheduler="threads"):
        found = rd.learn(learner, da.from_array(X, chunks=(17, 3)), da.from_array(Y, chunks=13))
    assert found is learner
    assert learner.samples == 90
    whole = make().learn(X, Y)
    assert learner.gamma_ == pytest.approx(whole.gamma_)
    assert_same(learner.predict(queries), whole.predict(queries))


@settings(max_examples=25)
@given(data=st.data(), intercept=st.booleans(), n=st.integers(1, 40))
def test_any_blocks(data, intercept, n):
    X, Y, queries = random_stream(n)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, n - 1)), max_size=6)))
    sizes = tuple(int(size) for size in np.diff([0, *(cut for cut in cuts if cut < n), n]))
    learner = rt.StreamingRidge(cubes, 0.3, intercept=intercept)
    rd.learn(learner, da.from_array(X, chunks=(sizes, 4)), Y)
    whole = learner.empty().learn(X, Y)
    assert_same(learner.predict(queries), whole.predict(queries), 1e-9)


def test_it_goes_on_from_what_was_learned():
    X, Y, queries = random_stream()
    learner = rt.StreamingRidge(cubes, 0.3).learn(X[:20], Y[:20])
    blocks = da.from_array(X, chunks=(25, 4))
    rd.learn(learner, blocks[20:], Y[20:])
    assert_same(learner.predict(queries), learner.empty().learn(X, Y).predict(queries))
    assert rd.learn(learner, blocks[:0], Y[:0]).samples == 90


def test_axes_types_and_sizes_of_samples():
    X, Y, queries = random_stream(c=1)
    single = [array.astype(np.float32) for array in (X, Y, queries)]
    learner = rt.StreamingRidge(rt.RBF(2.0), 0.3, features=20)
    blocks = da.from_array(single[0], chunks=(25, 4))
    rd.learn(learner, blocks, single[1][:, 0])
    found = learner.predict(single[2])
    assert (found.shape, found.dtype) == ((6,), np.float32)
    with pytest.raises(InvalidInputError, match="values in a sample of X is 3"):
        learner.predict(queries[:, :3])
    images = da.from_array(X.reshape(90, 2, 2), chunks=(25, 1, 2))
    flat = rd.learn(rt.StreamingRidge(rt.Linear(), 0.3), images, Y)
    peer = rt.StreamingRidge(rt.Linear(), 0.3).learn(X, Y)
    assert_same(flat.predict(queries), peer.predict(queries))


def test_blocks_that_nobody_has_counted():
    X, Y, queries = random_stream()
    blocks, chosen = da.from_array(X, chunks=(25, 4)), X[:, 0] > 0.4
    lazy = da.from_array(chosen, chunks=25)
    learner = rt.StreamingRidge(cubes, 0.3)
    rd.learn(learner, blocks[lazy], da.from_array(Y, chunks=(25, 2))[lazy])
    expected = learner.empty().learn(X[chosen], Y[chosen])
    assert learner.samples == chosen.sum()
    assert_same(learner.predict(queries), expected.predict(queries))
    with pytest.raises(InvalidInputError, match=r"4 blocks of rows and Y has 1"):
        rd.learn(learner, blocks[lazy], Y[chosen])
    with pytest.raises(InvalidInputError, match=r"in the block.*: X has \d+ rows"):
        rd.learn(learner, blocks[lazy], da.from_array(Y, chunks=(25, 2)))


@pytest.mark.parametrize("name", ["function", "tangent"])
def test_a_failed_call_changes_nothing(name, tmp_path):
    X, Y, _ = random_stream()
    learner = LEARNERS[name]().learn(X[:9], Y[:9])
    learner.save(tmp_path / "before")
    blocks = da.from_array(X, chunks=(25, 4))
    bad = da.from_array(np.where(np.arange(90)[:, None] == 80, np.nan, X), chunks=(25, 4))
    odd = rt.StreamingRidge(lambda X: X[:, : 2 + len(X) % 2])
    differs = rt.StreamingRidge(lambda X: X if X.sum() > 100 else X[:, :3])
    for arguments, message in (
        ((learner, bad, Y), "in the block that begins at row 75: .* holds nan"),
        ((learner, blocks, Y[1:]), "X has 90 rows and Y has 89"),
        ((learner, blocks, Y[:, [0, 1, 0]]), "outputs of Y is 3; expected 2"),
        ((learner, blocks, np.ones((90, 2), dtype=int)), "Y has dtype int64"),
        ((learner, blocks, Y[:, :, None]), r"Y has shape \(90, 2, 1\); expected"),
        ((learner, X, Y), "X is a ndarray; expected a Dask array"),
        ((learner, blocks.sum(), Y), "X is a single number"),
        ((rt.RBF(1.0), blocks, Y), "learner is a RBF; expected a StreamingRidge"),
        ((odd, blocks, Y), "features of X is [23]"),
        ((differs, blocks, Y), "features and another|features of X"),
    ):
        wrong_type = any(word in message for word in ("dtype", "ndarray", "is a RBF"))
        error = InvalidTypeError if wrong_type else InvalidInputError
        with pytest.raises(error, match=message):
            rd.learn(*arguments)
    learner.save(tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()


@pytest.mark.slow
def test_on_worker_processes():
    X, Y, queries = random_stream(n=400)
    bad = X.copy()
    bad[230] = np.nan
    with rd.connect("local:2", memory_limit="1GB"):
        for name in ("random", "tangent", "intercept"):
            learner = rd.learn(LEARNERS[name](), da.from_array(X, chunks=(50, 4)), Y)
            with pytest.raises(InvalidInputError, match="in the block that begins at row 200"):
                rd.learn(learner, da.from_array(bad, chunks=(50, 4)), Y)
            assert_same(learner.predict(queries), learner.empty().learn(X, Y).predict(queries))


@pytest.mark.slow
def test_the_page_shows_what_works_between_two_processes(environment, tmp_path):
    """The script of docs/distributed.md, as it is printed there."""
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text("utf-8")
    script = page.partition("# two_processes.py\n")[2].partition("```")[0]
    (tmp_path / "two_processes.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = subprocess.run(
        [sys.executable, tmp_path / "two_processes.py"],
        env=environment | {"MASTER_PORT": port},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # the two may write at the same time
    assert done.stdout.count("1000 samples learned; as alone: True") == 2, done.stderr
