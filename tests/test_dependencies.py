"""Every direct dependency is pinned in constraints.txt, within the range of pyproject.toml."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def requirements():
    project = PROJECT["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    every = [*project["dependencies"], *extras, *PROJECT["build-system"]["requires"]]
    found = [Requirement(each) for each in every]
    return [each for each in found if canonicalize_name(each.name) != "retarget"]


def test_every_pin_is_one_exact_version():
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", pin) for pin in pins())
    names = [canonicalize_name(pin.split("==")[0]) for pin in pins()]
    assert len(names) == len(set(names))
    assert names == sorted(names)


def test_direct_dependencies_are_pinned():
    pinned = dict(pin.split("==") for pin in pins())
    pinned = {canonicalize_name(name): version for name, version in pinned.items()}
    for each in requirements():
        version = Version(pinned[canonicalize_name(each.name)])
        assert each.specifier.contains(version, prereleases=True), each
    assert pinned.keys() == {canonicalize_name(each.name) for each in requirements()}
