"""A source file by the names that it binds at its top, and what each of them refers to."""

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import lru_cache

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
# Any other may note what it decorates elsewhere, where it is found without its name.
HARMLESS_DECORATORS = {"cache", "contextmanager", "dataclass", "lru_cache"}


@dataclass(frozen=True)
class SourceModule:
    """A parsed module.

    Attributes:
        name: As it is imported.
        is_package: Whether it is the `__init__.py` of a package.
        bound: The statements at its top by the names that they bind.
        always: Those that do something else, or more, when the module is imported.
    """

    name: str
    is_package: bool
    bound: dict[str, list[ast.stmt]]
    always: list[ast.stmt]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parsed(name: str, is_package: bool, text: str) -> "SourceModule":
        """A module from its text."""
        bound: dict[str, list[ast.stmt]] = {}
        always = []
        for place, statement in enumerate(ast.parse(text).body):
            names = list(_bound_names(statement))
            for each in names:
                bound.setdefault(each, []).append(statement)
            if _registers(statement) if names else not _says_nothing(statement, place):
                always.append(statement)
        return SourceModule(name, is_package, bound, always)

    def imported(self, name: str) -> list[str]:
        """The path of names that an import bound to this one; empty if it is no import."""
        statement = self.bound[name][-1]
        return dict(self.imports(statement)).get(name, []) if isinstance(statement, IMPORTS) else []

    def imports(self, statement: ast.AST) -> Iterator[tuple[str, list[str]]]:
        """The names that imports in a statement bind, each with the path that it stands for."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    path = alias.name.split(".")
                    yield alias.asname or path[0], path if alias.asname else path[:1]
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                for alias in node.names:
                    # of everything: the module itself stands for all that it binds
                    path = origin if alias.name == "*" else [*origin, alias.name]
                    yield alias.asname or alias.name, path

    def _origin(self, node: ast.ImportFrom) -> list[str]:
        named = node.module.split(".") if node.module else []
        if not node.level:
            return named
        parents = self.name.split(".")
        up = node.level - self.is_package
        return [*parents[: len(parents) - up], *named]


def references(source: SourceModule, statement: ast.stmt) -> Iterator[tuple[list[str], bool]]:
    """Every path of names in a statement, and whether it starts at an import within it."""
    imports = dict(source.imports(statement))
    for path in _paths(statement):
        within = path[0] in imports
        yield ([*imports[path[0]], *path[1:]] if within else path), within
    if not isinstance(statement, DEFINITIONS):
        # try: import this; except ImportError: that
        yield from ((path, True) for path in imports.values())


def modules_by_text(statement: ast.stmt, modules: Container[str]) -> Iterator[str]:
    """Modules that are imported by a text: import_module("a.b"), import_module(f"a.{name}")."""
    if not any(path[-1] == "import_module" for path in _paths(statement)):
        return
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Constant))
    texts = [node.value for node in nodes if isinstance(node.value, str)]
    starts = ["", *(text for text in texts if text.endswith("."))]
    yield from (start + text for start in starts for text in texts if start + text in modules)


def canonical(node: object) -> str:
    """Code as text without positions, docstrings and what differs from one Python to another."""
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        body = getattr(node, "body", None)
        if isinstance(node, DEFINITIONS) and body and _is_text(body[0]):
            fields = ((name, body[1:] if name == "body" else value) for name, value in fields)
        shown = (
            f"{name}={canonical(value)}"
            for name, value in fields
            if name not in ("kind", "type_comment") and value is not None and value != []
        )
        return f"{type(node).__name__}({', '.join(shown)})"
    if isinstance(node, list):
        return f"[{', '.join(map(canonical, node))}]"
    return repr(node)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, DEFINITIONS):
        yield statement.name
        return
    if isinstance(statement, IMPORTS):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    if isinstance(statement, ast.If) and _is_for_types(statement):
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _bound_names(node)  # type: ignore[arg-type]
        elif not isinstance(node, ast.Attribute | ast.Subscript):
            inner = (part for part in ast.walk(node) if isinstance(part, ast.Name))
            yield from (part.id for part in inner if isinstance(part.ctx, ast.Store))


def _paths(node: ast.AST) -> Iterator[list[str]]:
    """The names in some code, each with the attributes that are asked of it."""
    if isinstance(node, ast.Name):
        yield [node.id]
        return
    if isinstance(node, ast.Attribute):
        path, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            path, inner = [inner.attr, *path], inner.value
        if isinstance(inner, ast.Name):
            yield [inner.id, *path]
            return
        node = inner
    for child in ast.iter_child_nodes(node):
        yield from _paths(child)


def _registers(statement: ast.stmt) -> bool:
    if not isinstance(statement, DEFINITIONS):
        return False
    used = [path[-1] for node in statement.decorator_list for path in list(_paths(node))[:1]]
    return any(name not in HARMLESS_DECORATORS for name in used)


def _says_nothing(statement: ast.stmt, place: int) -> bool:
    return (place == 0 and _is_text(statement)) or (
        isinstance(statement, ast.If) and _is_for_types(statement)
    )


def _is_for_types(statement: ast.If) -> bool:
    return isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING"


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
