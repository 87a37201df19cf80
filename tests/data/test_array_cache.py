import multiprocessing
import time

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import save_file

from retarget.data.cache import cached_array, content_digest

ARRAY = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


class Computation:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAY


@pytest.fixture
def compute():
    return Computation()


def stored(folder):
    (path,) = folder.glob("*.safetensors")
    return path


def test_computed_once_for_the_same_content(tmp_path, compute):
    for content in (["a", ARRAY], ["a", ARRAY], ["a", ARRAY.copy(order="F")]):
        np.testing.assert_array_equal(cached_array(tmp_path, "x", content, compute), ARRAY)
    assert compute.calls == 1
    for content in (["b", ARRAY], ["a", ARRAY + 1], ["a", ARRAY.astype(float)], ["a", ARRAY.T]):
        cached_array(tmp_path, "x", content, compute)
    assert compute.calls == 5


def test_every_flipped_bit_is_found(tmp_path, compute):
    cached_array(tmp_path, "x", ["a"], compute)
    path = stored(tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for position in [*rng.integers(len(whole), size=60), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        found = cached_array(tmp_path, "x", ["a"], compute)
        np.testing.assert_array_equal(found, ARRAY)
    # bits of the values: always computed again
    calls = compute.calls
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    cached_array(tmp_path, "x", ["a"], compute)
    assert compute.calls == calls + 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("damage", [b"", b"damaged", None])
def test_a_damaged_file_is_made_again(tmp_path, compute, damage):
    cached_array(tmp_path, "x", ["a"], compute)
    path = stored(tmp_path)
    path.write_bytes(path.read_bytes()[:-7] if damage is None else damage)
    np.testing.assert_array_equal(cached_array(tmp_path, "x", ["a"], compute), ARRAY)
    cached_array(tmp_path, "x", ["a"], compute)
    assert compute.calls == 2


def test_a_file_without_a_checksum_is_made_again(tmp_path, compute):
    cached_array(tmp_path, "x", ["a"], compute)
    save_file({"x": ARRAY + 1}, stored(tmp_path))
    np.testing.assert_array_equal(cached_array(tmp_path, "x", ["a"], compute), ARRAY)
    save_file({"y": ARRAY}, stored(tmp_path), {"sha256": content_digest([ARRAY])})
    cached_array(tmp_path, "x", ["a"], compute)
    assert compute.calls == 3


def test_a_computation_that_fails_leaves_the_place_to_the_next(tmp_path, compute):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cached_array(tmp_path, "x", ["a"], fail)
    np.testing.assert_array_equal(cached_array(tmp_path, "x", ["a"], compute), ARRAY)


def test_what_is_there_needs_no_lock(tmp_path, compute):
    cached_array(tmp_path, "x", ["a"], compute)
    with FileLock(stored(tmp_path).with_suffix(".lock")):
        cached_array(tmp_path, "x", ["a"], compute)
    assert compute.calls == 1


def compute_slowly(folder, log, start):
    def compute():
        with (folder / log).open("a") as file:
            file.write("computed\n")
        time.sleep(0.3)
        return ARRAY

    start.wait()
    np.testing.assert_array_equal(cached_array(folder / "arrays", "x", ["a"], compute), ARRAY)


def test_of_two_processes_one_computes(tmp_path):
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    processes = [
        context.Process(target=compute_slowly, args=(tmp_path, "log", start)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "computed\n"
