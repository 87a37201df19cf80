"""`retarget reproduce`, killed again and again, on disks that are full, in folders that are bad."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from support.made_cifar10 import write_images

pytestmark = pytest.mark.faults
KILLS_AT_LEAST = 5
RETARGET = Path(sys.executable).with_name("retarget")
EXPERIMENT = """
family = "cifar curves"
title = "killed"
seeds = [0, 1]

[parameters]
protocol = "domain pairs"
per_class = 12
test_per_class = 5
evaluate_every = 24
epochs = 40
reshuffle = true

[cases.vanilla.parameters]
method = "vanilla"
lr = 0.01

[cases."EWC".parameters]
method = "ewc"
lr = 0.01
strength = 3.0

[cases."DER, corrected".parameters]
method = "der, corrected"
lr = 0.007
gamma = 30.0
capacity = 20
"""
LONGEST = 60  # kills


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The data, and the experiment that learns them."""
    made = tmp_path_factory.mktemp("killed")
    write_images(made, per_class=5)
    (made / "killed.toml").write_text(EXPERIMENT)
    return made


@pytest.fixture(autouse=True)
def own_data(monkeypatch, folder):
    """The option --data-dir sets it for good."""
    monkeypatch.setenv("RETARGET_DATA", str(folder))


def arguments(folder, out, *options):
    return ("reproduce", folder / "killed.toml", "--out", out, "--data-dir", folder, *options)


def result(out):
    return pl.read_parquet(out / "killed" / "killed.parquet")


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(folder, tmp_path, environment):
    whole = [RETARGET, *arguments(folder, tmp_path / "whole", "--jobs", "0")]
    subprocess.run(whole, check=True, env=environment, capture_output=True)
    kills, rng, out = 0, random.Random(7), tmp_path / "killed"
    start = time.monotonic()
    subprocess.run([RETARGET, "--version"], check=True, env=environment, capture_output=True)
    start = time.monotonic() - start  # about what a process needs before it computes anything
    while True:
        # in a group of its own, so that its processes can be killed with it: a power cut
        running = subprocess.Popen(
            [RETARGET, *arguments(folder, out, "--jobs", "2")],
            env=environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            running.wait(timeout=rng.uniform(start, 4 * start + kills))
            break
        except subprocess.TimeoutExpired:
            kill(running, everything=rng.random() < 0.5)
            kills += 1
        assert kills < LONGEST, "it never gets any further"
    assert running.returncode == 0
    assert kills >= KILLS_AT_LEAST
    assert result(out).equals(result(tmp_path / "whole"), null_equal=True)
    left = {path.name for path in (out / "runs").rglob("*") if path.is_file()} - {"lock"}
    assert left == {"result.parquet", "run.json"}


def kill(running, everything):
    if everything:
        os.killpg(running.pid, signal.SIGKILL)
    else:  # only the one that was started: the others must notice
        running.kill()
    running.wait()


def test_a_full_disk_keeps_what_was_there(folder, small_disk, command):
    code, shown = command(*arguments(folder, small_disk / "results", "--jobs", "0"))
    assert code in (1, 2)
    assert "Traceback" not in shown
    assert "No space left on device" in shown
    for record in (small_disk / "results" / "runs").glob("*/run.json"):
        assert record.read_bytes().endswith(b"}\n")


def test_a_results_folder_that_is_a_file(folder, tmp_path, command):
    (tmp_path / "results").touch()
    code, shown = command(*arguments(folder, tmp_path / "results"))
    assert code == 2
    assert shown.count("Error: ") == 1
    assert "results" in shown
    assert "Traceback" not in shown
