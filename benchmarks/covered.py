"""Sources that results made by hand depend on: symbols, whichever file they stand in."""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("covered.json")
"""Of each result its entries: a pattern of files, or `file.py::Name Name`; `!` leaves out."""


def digest(name: str, root: Path = ROOT) -> str:
    """Sixteen hex digits that change with any symbol that results of this name depend on."""
    found = hashlib.sha256()
    for one in sorted(said for path, names in covered(name, root) for said in said_in(path, names)):
        found.update(hashlib.sha256(one.encode()).digest())
    return found.hexdigest()[:16]


def covered(name: str, root: Path = ROOT) -> Iterator[tuple[Path, "Wanted"]]:
    """Files with which of their symbols count."""
    only: dict[Path, set[str] | None] = {}
    without: dict[Path, set[str] | None] = {}
    for entry in json.loads(TABLE.read_text())[name]:
        pattern, mark, names = entry.removeprefix("!").partition("::")
        for path in root.glob(pattern):
            chosen = without if entry.startswith("!") else only
            chosen[path] = set(names.split()) if mark else None
    for path, wanted in sorted(only.items()):
        if path not in without or without[path] is not None:
            yield path, (wanted, without.get(path) or set())


Wanted = tuple[set[str] | None, set[str]]
"""Names that count, all of them where None; and names that do not."""


def said_in(path: Path, wanted: Wanted = (None, set())) -> list[str]:
    """Top-level statements without docstrings, imports, comments and names of modules."""
    only, without = wanted
    tree = _Plain(path).visit(ast.parse(path.read_text()))
    return [
        _dumped(node)
        for node in tree.body
        for names in [names_of(node)]
        if (only is None or names & only) and not names & without
        if not isinstance(node, ast.Pass)
    ]


SHOW_EMPTY = {"show_empty": True} if sys.version_info >= (3, 13) else {}


def _dumped(node: ast.AST) -> str:
    """The same in every version of Python: functions have type parameters since 3.12."""
    return ast.dump(node, **SHOW_EMPTY).replace(", type_params=[]", "")


def names_of(node: ast.stmt) -> set[str]:
    """What a statement at the top of a module binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {one.id for target in targets for one in ast.walk(target) if _is_name(one)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


class _Plain(ast.NodeTransformer):
    """Drops what a move changes: imports, names of modules, and whoever is asked by way of one."""

    def __init__(self, path: Path) -> None:
        self._modules: set[str] = set()
        self._renamed: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gyre"):
                for one in node.names:
                    self._learn(str(node.module), one)

    def _learn(self, module: str, one: ast.alias) -> None:
        local, place = one.asname or one.name, ROOT / "src" / module.replace(".", "/") / one.name
        if place.with_suffix(".py").is_file() or place.is_dir():
            self._modules.add(local)
        elif local != one.name:
            self._renamed[local] = one.name

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):
            for part in ("body", "orelse", "finalbody"):
                inside = getattr(node, part, None)
                if isinstance(inside, list) and inside:
                    kept = [one for one in inside if not _is_idle(one)]
                    setattr(node, part, kept or ([ast.Pass()] if part == "body" else []))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            return ast.Name(id=node.attr, ctx=node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(id=self._renamed.get(node.id, node.id), ctx=node.ctx)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        said = re.sub(r"\bgyre(\.\w+)+", "gyre", node.value)
        return ast.Constant(value=re.sub(r"^\w+\.py$", ".py", said))


def _is_idle(node: ast.stmt) -> bool:
    """A docstring, an import, or a block of nothing but imports."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False
