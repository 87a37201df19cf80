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
class Statement:
    """A statement at the top of a module.

    Attributes:
        code: As text that tells whether it changed.
        binds: The names that it gives a meaning.
        import_of: Of an import, the path of names that each of these stands for.
        named: Every path of names in it: `a`, or `a.b.c`.
        imported: The same of what it imports itself, from the top of a package.
        texts: The texts in it, if some module is imported by one.
        acts: Whether it does more than to bind names.
    """

    code: str
    binds: tuple[str, ...]
    import_of: dict[str, list[str]]
    named: list[list[str]]
    imported: list[list[str]]
    texts: list[str]
    acts: bool

    def modules_by_text(self, modules: Container[str]) -> Iterator[str]:
        """Modules that are imported by a text: import_module("a.b"), import_module(f"a.{b}")."""
        starts = ["", *(text for text in self.texts if text.endswith("."))]
        named = (start + text for start in starts for text in self.texts)
        return (name for name in named if name in modules)


@dataclass(frozen=True)
class SourceModule:
    """A parsed module.

    Attributes:
        name: As it is imported.
        bound: The statements at its top by the names that they bind.
        always: Those that act when the module is imported.
    """

    name: str
    bound: dict[str, list[Statement]]
    always: list[Statement]

    @staticmethod
    @lru_cache(maxsize=1024)
    def parsed(name: str, is_package: bool, text: str) -> "SourceModule":
        """A module from its text."""
        package = name.split(".") if is_package else name.split(".")[:-1]
        bound: dict[str, list[Statement]] = {}
        always = []
        for place, node in enumerate(ast.parse(text).body):
            if (place == 0 and _is_text(node)) or _is_for_types(node):
                continue
            statement = _statement(node, package)
            for each in statement.binds:
                bound.setdefault(each, []).append(statement)
            if statement.acts:
                always.append(statement)
        return SourceModule(name, bound, always)

    def imported(self, name: str) -> list[str]:
        """The path of names that an import bound to this one; empty if it is no import."""
        return self.bound[name][-1].import_of.get(name, [])


def _statement(node: ast.stmt, package: list[str]) -> Statement:
    imports = dict(_imports(node, package))
    paths = list(_paths(node))
    imported = [[*imports[path[0]], *path[1:]] for path in paths if path[0] in imports]
    if not isinstance(node, DEFINITIONS):
        imported += imports.values()  # try: import this; except ImportError: that
    by_text = any(path[-1] == "import_module" for path in paths)
    constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    binds = tuple(_bound_names(node))
    return Statement(
        canonical(node),
        binds,
        imports if isinstance(node, IMPORTS) else {},
        [path for path in paths if path[0] not in imports],
        imported,
        [value for value in constants if isinstance(value, str)] if by_text else [],
        not binds or _registers(node),
    )


def _imports(node: ast.AST, package: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The names that imports in a statement bind, each with the path that it stands for."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                path = alias.name.split(".")
                yield alias.asname or path[0], path if alias.asname else path[:1]
        elif isinstance(part, ast.ImportFrom):
            # one dot is the package itself, each further one the package around it
            around = package[: len(package) - part.level + 1] if part.level else []
            origin = [*around, *(part.module.split(".") if part.module else [])]
            for alias in part.names:
                # of everything: the module itself stands for all that it binds
                path = origin if alias.name == "*" else [*origin, alias.name]
                yield alias.asname or alias.name, path


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


def _bound_names(statement: ast.AST) -> Iterator[str]:
    if isinstance(statement, DEFINITIONS):
        yield statement.name
        return
    if isinstance(statement, IMPORTS):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _bound_names(node)
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


def _is_for_types(statement: ast.stmt) -> bool:
    test = statement.test if isinstance(statement, ast.If) else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
