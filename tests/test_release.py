"""What a release is made of agrees: versions, dependencies, addresses."""

import importlib.util
import json
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import retarget

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def build_hook(monkeypatch):
    """hatch_build.py, beside a stand-in for hatchling, which only builds have."""
    name = "hatchling.metadata.plugin.interface"
    stand_in = types.ModuleType(name)
    stand_in.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, name, stand_in)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filled_in(build_hook):
    hook = build_hook.CustomMetadataHook()
    hook.root = str(ROOT)
    metadata = {"version": "1.2.3"}
    hook.update(metadata)
    return metadata


def test_without_addresses_none_are_invented(build_hook, monkeypatch):
    monkeypatch.delenv("RETARGET_REPOSITORY", raising=False)
    monkeypatch.delenv("RETARGET_EMAIL", raising=False)
    metadata = filled_in(build_hook)
    assert "urls" not in metadata
    assert metadata["authors"] == [{"name": "The retarget developers"}]
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()


def test_links_of_the_readme(build_hook, monkeypatch):
    monkeypatch.setenv("RETARGET_REPOSITORY", "https://host.example/us/retarget/")
    monkeypatch.setenv("RETARGET_EMAIL", "us@host.example")
    metadata, base = filled_in(build_hook), "https://host.example/us/retarget"
    assert metadata["urls"]["Changelog"] == f"{base}/blob/v1.2.3/CHANGELOG.md"
    assert metadata["authors"][0]["email"] == "us@host.example"
    texts = (ROOT / "README.md").read_text(), metadata["readme"]["text"]
    for old, new in zip(*(re.findall(r"\]\(([^)]+)\)", text) for text in texts), strict=True):
        kind = "raw" if old.endswith(".png") else "blob"
        outside = old.startswith(("https://", "#"))
        assert new == (old if outside else f"{base}/{kind}/v1.2.3/{old}")


def test_one_version_everywhere():
    version = re.escape(retarget.__version__)
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert re.search(rf"^## \[{version}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_recipe_and_the_package():
    recipe = (ROOT / "packaging" / "recipe.yaml").read_text()
    listed = recipe.split("\n  run:\n")[1].split("\n\n")[0]
    found = [Requirement(line.strip(" -")) for line in listed.splitlines()[1:]]  # Python's is first
    wanted = [Requirement(each.replace("torch", "pytorch")) for each in PROJECT["dependencies"]]
    assert {each.name: each.specifier for each in found} == {
        each.name: each.specifier for each in wanted
    }


def test_zenodo_and_citation_name_the_same_paper():
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    (paper,) = zenodo["related_identifiers"]
    assert paper["identifier"] in (ROOT / "CITATION.cff").read_text()
    assert zenodo["license"] == PROJECT["license"]
