"""One name, one type, in the whole package."""

import ast
import inspect
from collections import defaultdict
from pathlib import Path

import retarget
from retarget import lab

SOURCE = Path(retarget.__path__[0])
# Each engine of the infinite kernel has its own form of the same thing, and adapters are named as
# the estimators that their users know.
SAME_IN_ALL_ENGINES = {"Program", "Packed", "Maps"}


def types_of(path):
    """Names of the classes and type aliases that a module defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper() and not name.endswith("T"):  # a TypeVar
                yield name


def test_each_name_is_one_type():
    homes = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in types_of(path):
            homes[name].append(str(path.relative_to(SOURCE)))
    shown = {"StreamingRidgeRegressor", "StreamingRidgeClassifier", "TargetCorrectionRegressor"}
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: twice[name] for name in twice.keys() - SAME_IN_ALL_ENGINES - shown} == {}


def test_a_type_error_names_the_class():
    """Python names the class that defines the constructor: see `own_constructor`."""
    for package in (retarget, lab):
        for name in package.__all__:
            public = getattr(package, name)
            if inspect.isclass(public) and inspect.isfunction(public.__init__):
                assert public.__init__.__qualname__ == f"{public.__qualname__}.__init__"
