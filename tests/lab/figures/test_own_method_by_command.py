"""A method of one's own from a file of experiments, in processes of their own."""

import json

import pytest

from support.own_methods import Clipped

pytestmark = pytest.mark.usefixtures("not_saved")

CLIPPED = "support.own_methods:Clipped"
MINE = """
family = "cifar curves"
title = "gradients that are cut"
seeds = [0, 1]
[parameters]
protocol = "domain pairs"
per_class = 2
test_per_class = 2
lr = 0.05
[cases.short]
parameters = { method = "vanilla" }
"""


def test_an_own_method_in_other_processes(command, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    arguments = ["reproduce", file, "--out", tmp_path / "results"]
    options = ["--method", CLIPPED, "--set", "options={longest=0.01}"]
    code, shown = command(*arguments, *options, "--jobs", 2)
    assert code == 0, shown
    assert "Runs computed: 2" in shown
    (path, _) = sorted((tmp_path / "results" / "runs").glob("*/run.json"))
    config = json.loads(path.read_text())["identity"]["config"]
    assert config["method"] == CLIPPED
    assert config["options"] == {"longest": 0.01}
    assert len(config["method_code"]) == 64
    # the same runs in this process, another option, and what the file says
    assert "already done: 2" in command(*arguments, *options, "--jobs", 1)[1]
    assert "Runs computed: 2" in command(*arguments, "--method", CLIPPED, "--jobs", 1)[1]
    assert "Runs computed: 2" in command(*arguments, "--jobs", 1)[1]
    assert Clipped().longest == 1.0


def test_options_may_be_swept(command, tmp_path):
    file = tmp_path / "mine.toml"
    swept = '[cases.memory]\nparameters = { method = "er" }\n[cases.memory.grid]\n'
    file.write_text(MINE + swept + "options = [{ batch_size = 1 }, { batch_size = 3 }]\n")
    code, shown = command("reproduce", file, "--out", tmp_path / "results", "--jobs", 1)
    assert code == 0, shown
    assert "Runs computed: 6" in shown


def test_an_unknown_method_on_the_command_line(command, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    for name, message in (("vanila", "did you mean 'vanilla'"), ("os:getcwd", "is no method")):
        code, shown = command("reproduce", file, "--method", name)
        assert code == 2
        assert message in shown
