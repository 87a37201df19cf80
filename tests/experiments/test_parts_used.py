"""What re-does which runs: edits in a copy of the package; and what runs really call."""

import functools
import re
import shutil
import sys
from pathlib import Path

import pytest

import retarget as rt
from core50_backbone import made
from made_cifar10 import made_batches, write_made_cifar10
from made_core50 import made_frames, write_made_core50
from made_mnist import write_made_mnist
from retarget.experiments import core50_training
from retarget.experiments.experiment import families
from retarget.experiments.experiment_files import load_experiment, parse_changes
from retarget.experiments.parts_used import NOT_OF_RESULTS, PACKAGE, parts_used
from retarget.experiments.source_module import SourceModule, canonical

FAMILIES = families()


def codes(package=PACKAGE):
    return {
        name: parts_used(family.config, family.run, package=package).code
        for name, family in FAMILIES.items()
    }


BEFORE = codes()
OF_MNIST = {"mnist curves", "mnist sweeps"}
OF_CIFAR, OF_CORE50 = {"cifar curves", "cifar sweeps"}, {"core50 curves", "core50 sweeps"}
OF_NETWORKS = OF_CIFAR | OF_CORE50


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / "retarget"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "static"))
    return folder


@pytest.fixture
def redone(copied):
    """From an edit of a file to the families whose runs it re-does; then the file is as it was."""

    def edit(name, old, new, count=1):
        path = copied / name
        text = path.read_text()
        assert len(re.findall(old, text)) >= 1, (name, old)
        path.write_text(re.sub(old, new, text, count=count))
        try:
            after = codes(copied)
        finally:
            path.write_text(text)
        return {family for family in FAMILIES if after[family] != BEFORE[family]}

    return edit


def test_where_the_package_lies_makes_no_difference(copied):
    assert codes(copied) == BEFORE


def test_families_that_compute_the_same_share_their_runs():
    assert BEFORE["cifar curves"] == BEFORE["cifar sweeps"]
    assert BEFORE["core50 curves"] == BEFORE["core50 sweeps"]
    assert len(set(BEFORE.values())) == len(BEFORE) - 2


@pytest.mark.parametrize(
    "module",
    ["mnist_curves", "mnist_sweeps", "digits", "toy_curves", "toy_shift", "network_curves"],
)
@pytest.mark.parametrize("function", ["draw", "summarise"])
def test_a_figure_drawn_or_told_otherwise_re_does_no_run(redone, module, function):
    changed = rf"def {function}\1\n    table = table.head(1)\n"
    pattern = rf'def {function}(\(table: .*:\n    """(?:[^"]|\n)*""")\n'
    assert redone(f"experiments/{module}.py", pattern, changed) == set()


@pytest.mark.parametrize(
    "name",
    [
        "colours.py",
        "progress.py",
        "errors.py",
        "storage.py",
        "data/download.py",
        "experiments/style.py",
        "experiments/over_seeds.py",
        "experiments/runner.py",
        "experiments/identity.py",
        "experiments/experiment_files.py",
        "cli.py",
        "__init__.py",
        "diagnosis/verdict.py",
    ],
)
def test_what_shows_or_keeps_re_does_nothing(redone, name):
    assert redone(name, r"\Z", "\n\ndef more(x):\n    return x + 1\n\n\nmore(3)\n") == set()


def test_how_experiments_are_read_is_no_part_of_their_runs(redone):
    body = r"\1\n        return []"
    pattern = r"(def planned_runs\(self\).*)"
    assert redone("experiments/experiment.py", pattern, body) == set()
    every = redone("experiments/experiment.py", "    seed: int\n", "    seed: float\n")
    assert every == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        # a kernel that fig2 uses, and fig3b does not; fig1 takes any kernel
        ("kernels/ntk_layers.py", r"\Z", "\n\nprint()\n", OF_MNIST | {"toy shift"}),
        ("kernels/ntk_fused.py", "def probe", "def probe_it", OF_MNIST | {"toy shift"}),
        ("kernels/ntk_sweep.py", r"\Z", "\n\nprint()\n", OF_MNIST | {"toy shift"}),
        ("kernels/gradient_gram.py", r"\Z", "\n\nprint()\n", OF_NETWORKS),
        ("kernels/features.py", r"self\.fn\(", "2 * self.fn(", {"toy curves"}),
        ("continual/ewc.py", r"\Z", "\n\nprint()\n", OF_NETWORKS),
        ("data/cifar10_batches.py", "CLASSES = 10", "CLASSES = 9", OF_CIFAR),
        ("experiments/cifar_net.py", "Conv2d", "LazyConv2d", OF_CIFAR),
        ("experiments/core50_training.py", "HIDDEN, OBJECTS = 100", "HIDDEN, OBJECTS = 99",
         OF_CORE50),
        ("experiments/mnist_curves.py", r"SHOWN_LABELS = \(0, 1, 2\)", "SHOWN_LABELS = (0, 1, 3)",
         {"mnist curves"}),
        ("experiments/mnist_curves.py", " gamma: Positive", " gamma: Count", {"mnist curves"}),
        ("experiments/mnist_problem.py", "1e-6", "1e-7", OF_MNIST),
        ("experiments/digits.py", "classes = digits_stream", "c = digits_stream", {"digits"}),
        ("experiments/toy_shift.py", "1e-9", "1e-8", {"toy shift"}),
        ("data/digits.py", "def one_hot.*", "def one_hot(labels: int, classes: int) -> int:",
         {"digits", *OF_MNIST}),
    ],
)  # fmt: skip
def test_a_change_re_does_what_uses_it_and_nothing_else(redone, name, old, new, expected):
    assert redone(name, old, new) == expected


def test_the_theory_is_of_all(redone):
    assert redone("learners.py", "class SGD", "class SGD(object)") == set(FAMILIES)


def test_comments_docstrings_and_line_breaks_re_do_nothing(copied):
    for path in copied.rglob("*.py"):
        text = path.read_text()
        # a docstring's first line in other words; a comment and an empty line at every end
        text = re.sub(r'^( *r?""")(?=[A-Z])', r"\1In other words: ", text, flags=re.MULTILINE)
        text = re.sub(r"^(def |class |@|from )", r"# noted\n\n\1", text, flags=re.MULTILINE)
        path.with_suffix(".other").write_text(text)
    other = copied.parent / "other" / "retarget"
    for path in copied.rglob("*.other"):
        target = other / path.relative_to(copied).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    changed = (other / "experiments" / "digits.py").read_text()
    assert changed != (copied / "experiments" / "digits.py").read_text()
    assert "In other words: Accuracy along the stream" in changed
    assert codes(other) == BEFORE


# What runs really call is the oracle: no function of the package may be missed.


def called(function):
    """The functions of the package that a call leads to, as parts."""
    seen = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            seen.add((code.co_filename, code.co_qualname.partition(".")[0]))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    for name, part in sorted(seen):
        module = ".".join(Path(name).relative_to(PACKAGE.parent).with_suffix("").parts)
        if module not in NOT_OF_RESULTS and not part.startswith("<"):
            yield f"{module}:{part}"


def write_data(folder):
    write_made_mnist(folder, train=60, test=20)
    write_made_cifar10(folder, images=60)
    frames = made_frames(range(1, 12), range(1, 51), (1,), size=(5, 4))
    write_made_core50(folder, "zip", frames)


SMALL = {
    "digits": ["block_size=300", "curve_every=500", "lr=0.1"],
    "fig1": [],
    "fig2": ["train=40", "test=20", "evaluate_every=20"],
    "fig3a": ["per_class=4", "test_per_class=1", "evaluate_every=20", "block_size=4"],
    "fig3a-methods": ["per_class=4", "test_per_class=1", "evaluate_every=20", "block_size=4"],
    "fig3b": ["frames_per_session=1", "image_size=4", "epochs=1", "replay_passes=1"],
    "fig4": [],
    "fig5": ["train=40", "test=20", "evaluate_every=20", "sweep_points=2", "block_sizes=[4]"],
}


@pytest.mark.parametrize("name", SMALL)
def test_every_function_that_a_run_calls_is_among_its_parts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path / "cache"))
    core50_training._data.cache_clear()
    write_data(tmp_path)
    experiment = load_experiment(name).changed(parse_changes(SMALL[name], seeds=[3]))
    experiment = experiment.where_it_fits(backbone="core50_backbone:made")
    family = FAMILIES[experiment.family]
    configs = experiment.runs()
    found = list(called(lambda: [list(family.run([config], None)) for config in configs]))
    assert len(found) > 20
    missed = set(found) - set(parts_used(family.config, family.run).definitions)
    assert missed == set()


def test_the_made_data_are_large_enough_for_every_class():
    assert all(len(set(labels.tolist())) == 10 for _, labels in made_batches(60))
    assert made()(rt.kernels.base.torch.zeros(1, 3, 4, 4)).shape == (1, 6)


# How code is followed


def written(folder, modules):
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


A = """
import numpy as np
from retarget import b
from retarget.pack import given, hidden as shown
from .c import *

if TYPE_CHECKING:
    from retarget.d import never
try:
    import scipy as fast
except ImportError:
    fast = None
try:
    import sklearn
except ImportError:
    pass
TABLE = {}
TABLE["x"] = given


def start(x: never):
    return b.used(x) + shown.inner(x) + starred


def other(x):
    from retarget.late import late as now

    return now(np.sum(x))


def quick(x):
    return fast.go(x)


def slow(x):
    return sklearn.go(x)


def by_text(n):
    return import_module(f"retarget.engine.{n}") or "one"


def last():
    return engine.K


from retarget.engine import one as engine
"""
ONE = """
@register
def noted():
    pass


def plain():
    pass


class K:
    pass
"""


@pytest.fixture
def tiny(tmp_path):
    modules = {
        "__init__": "",
        "a": A,
        "b": "def used(x): return deep(x)\ndef deep(x): return x\ndef unused(x): return x",
        "pack/__init__": "from retarget.pack.given import given\nfrom retarget.pack import hidden",
        "pack/given": "def given(x): return x\ndef beside(x): return x",
        "pack/hidden": "def inner(x): return x",
        "c": "starred = 3",
        "d": "never = int",
        "late": "def late(x): return x",
        "engine/one": ONE,
    }
    return written(tmp_path / "retarget", modules)


def parts(package, name):
    """The parts that a function of the tiny package uses, without its package's name."""

    def start():
        pass

    start.__module__, start.__qualname__ = "retarget.a", name
    found = parts_used(start, package=package)
    return {each.removeprefix("retarget.") for each in found.definitions}, found.packages


def test_names_lead_through_imports_and_what_packages_give_on(tiny):
    found, packages = parts(tiny, "start")
    always = {"a:", "a:TABLE", "pack.given:given"}  # done whenever the module is imported
    assert found == {"a:start", "b:used", "b:deep", "pack.hidden:inner", "c:starred"} | always
    assert packages == set()


def test_imports_within_functions_and_in_attempts(tiny):
    found, packages = parts(tiny, "other")
    assert {"a:other", "late:late"} <= found
    assert packages == {"numpy"}
    found, packages = parts(tiny, "quick")
    assert "a:fast" in found
    assert packages == {"scipy"}
    assert parts(tiny, "slow")[1] == {"sklearn"}


def test_modules_that_are_imported_by_a_text_are_used_whole(tiny):
    assert {"engine.one:noted", "engine.one:plain", "engine.one:K"} <= parts(tiny, "by_text")[0]


def test_what_registers_itself_is_used_with_its_module(tiny):
    found, _ = parts(tiny, "last")
    assert {"engine.one:K", "engine.one:noted"} <= found
    assert "engine.one:plain" not in found


def test_functions_made_by_functions_are_followed():
    family = FAMILIES["digits"]
    inner = parts_used(functools.partial(family.run, 3))
    assert "retarget.experiments.digits:run" in inner.definitions
    assert parts_used(family.run).code == inner.code
    own = parts_used(made)  # of a module that is no part of the package
    assert own.definitions == ("core50_backbone:made",)
    assert own.packages == {"torch"}


def test_code_that_is_in_no_file():
    scope = {"__name__": "no_module"}
    exec("def run(configs): return iter(())", scope)
    with pytest.raises(rt.InvalidInputError, match="the code of run is in no file.*in a module"):
        parts_used(scope["run"])


def test_code_as_text():
    def text(code):
        return canonical(SourceModule.parsed("m", False, code).bound["f"][0])

    same = text("def f(x):\n  'Says.'\n  return x + 'u'")
    assert text("def f(x): return (x +\n\n u'u')  # so") == same
    assert text("def f(x):\n  return x - 'u'") != same
    assert text("def f(x):\n  x\n  return x + 'u'") != same
    assert text("class f:\n  'Says.'") == text("class f:\n  'Other.'")
    assert text("def f():\n  return None") != text("def f():\n  return 'None'")
    assert text("def f():\n  return 1") != text("def f():\n  return 1.0")
