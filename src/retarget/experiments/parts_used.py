"""Which parts of the package a run uses, by reading the code: a change elsewhere re-does nothing.

A part is a function, class or value at the top of a module. From the parts that one starts with,
the names in their code lead to others, in the same module or in those that it imports from. Code is
compared as Python parses it: comments, docstrings and line breaks make no difference.
"""

import functools
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import retarget
from retarget.errors import InvalidInputError
from retarget.experiments.source_module import SourceModule, Statement

PACKAGE = Path(retarget.__file__).parent
# They show, keep, refuse or fetch, and never change a number.
NOT_OF_RESULTS = frozenset(
    {
        "retarget.colours",
        "retarget.continual.checkpoint",  # a run that is taken up again is the same run
        "retarget.continual.run_description",
        "retarget.data.download",  # what is read has a checksum, wherever it is from
        "retarget.errors",
        "retarget.experiments.over_seeds",
        "retarget.experiments.style",
        "retarget.progress",
        "retarget.state_files",
        "retarget.storage",
    }
)


@dataclass(frozen=True)
class PartsUsed:
    """What was found.

    Attributes:
        definitions: The parts, as module and name.
        packages: Other packages that they import from, as Python knows them.
        code: A checksum of the parts.
    """

    definitions: tuple[str, ...]
    packages: frozenset[str]
    code: str


def parts_used(*start: Any, package: Path = PACKAGE) -> PartsUsed:
    """The parts that functions and classes use, and they themselves.

    Args:
        start: Functions, also such as were made by others, and classes.
        package: The folder with the sources of retarget.

    Raises:
        InvalidInputError: The code of one of them is in no file.
    """
    search = _Search(package)
    for each in start:
        for thing in _made_of(each):
            search.start_at(thing)
    digest = hashlib.sha256()
    for name, code in sorted(search.found.items()):
        digest.update(f"{name}\0{code}\0".encode())
    return PartsUsed(tuple(sorted(search.found)), frozenset(search.packages), digest.hexdigest())


def _made_of(thing: Any) -> Iterator[Any]:
    """The thing, and the functions that it was made with: `one_by_one(run)` calls `run`."""
    if isinstance(thing, functools.partial):
        for inner in (thing.func, *thing.args, *thing.keywords.values()):
            yield from _made_of(inner)
    elif inspect.isfunction(thing):
        yield thing
        for inner in inspect.getclosurevars(thing).nonlocals.values():
            yield from _made_of(inner)
    elif inspect.isclass(thing):
        yield thing


class _Search:
    """Goes from part to part; every part once."""

    def __init__(self, package: Path) -> None:
        self.found: dict[str, str] = {}
        self.packages: set[str] = set()
        self._files = {_module_name(path, package): path for path in package.rglob("*.py")}
        self._modules: dict[str, SourceModule] = {}
        self._seen: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []

    def start_at(self, thing: Any) -> None:
        """Follows a function or class from where it is defined."""
        module = thing.__module__
        if module not in self._files:
            self._files[module] = _file_of(thing)
        self._reach([*module.split("."), thing.__qualname__.partition(".")[0]])
        while self._waiting:
            self._read(*self._waiting.pop())

    def _reach(self, path: list[str]) -> None:
        """Notes what a path of names leads to, from the top of a package."""
        depth = next((n for n in range(len(path), 0, -1) if ".".join(path[:n]) in self._files), 0)
        if not depth:
            self.packages.add(path[0])
            return
        # `from package import name`: what the package binds hides the module of that name in it.
        if depth == len(path) > 1 and self._leads_elsewhere(path[:-1], path[-1]):
            depth -= 1
        module, rest = ".".join(path[:depth]), path[depth:]
        if module in NOT_OF_RESULTS:
            return
        bound = self._module(module).bound
        if rest and rest[0] in bound:
            self._note(module, rest)
        elif not (rest and rest[0].startswith("__")):  # all of it, or we cannot tell what
            for name in bound:
                self._note(module, [name])

    def _leads_elsewhere(self, package: list[str], name: str) -> bool:
        if ".".join(package) not in self._files:
            return False
        module = self._module(".".join(package))
        return name in module.bound and module.imported(name) != [*package, name]

    def _note(self, module: str, names: list[str]) -> None:
        target = self._module(module).imported(names[0])
        if (module, ".".join(names)) in self._seen:
            return
        self._seen.add((module, ".".join(names)))
        if target:
            self._reach([*target, *names[1:]])
        else:
            self._waiting.append((module, names[0]))

    def _read(self, module: str, name: str) -> None:
        """Keeps the code of a part, and of what its module does when it is imported."""
        source = self._module(module)
        for part in source.always:
            for bound in part.binds:
                self._note(module, [bound])
        unnamed = [part for part in source.always if not part.binds]
        for key, statements in ((name, source.bound[name]), ("", unnamed)):
            place = f"{module}:{key}"
            if place not in self.found and statements:
                self.found[place] = "\n".join(part.code for part in statements)
                for part in statements:
                    self._follow(source, part)

    def _follow(self, source: SourceModule, part: Statement) -> None:
        for path in part.imported:
            self._reach(path)
        for path in part.named:
            if path[0] in source.bound:
                self._note(source.name, path)
            elif "*" in source.bound:  # from somewhere import *
                self._note(source.name, ["*"])
        for module in part.modules_by_text(self._files):
            self._reach(module.split("."))

    def _module(self, name: str) -> SourceModule:
        if name not in self._modules:
            path = self._files[name]
            text = path.read_text("utf-8")
            self._modules[name] = SourceModule.parsed(name, path.name == "__init__.py", text)
        return self._modules[name]


def _file_of(thing: Any) -> Path:
    try:
        path = Path(inspect.getfile(thing))
    except (OSError, TypeError):
        path = Path()
    if not path.is_file():
        raise InvalidInputError(
            f"the code of {thing.__qualname__} is in no file, so that its results could not be "
            "found again; define it in a module"
        )
    return path


def _module_name(path: Path, package: Path) -> str:
    parts: Iterable[str] = path.relative_to(package).with_suffix("").parts
    return ".".join(["retarget", *(part for part in parts if part != "__init__")])
