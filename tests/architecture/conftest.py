"""The package as syntax, for tests that hold rules about code without running it."""

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement's target."""

    name: str
    """Dotted, with what is taken from it where that could be a module."""
    line: int
    inside: bool
    """Whether it stands within a function."""
    for_types: bool
    """Whether only a type checker follows it."""

    @property
    def package(self) -> str:
        return self.name.split(".")[0]

    @property
    def subpackage(self) -> str:
        return subpackage_of(self.name)


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file of the package; what is asked of its syntax is found once."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def subpackage(self) -> str:
        """The part of the package it belongs to: `proxy` of `gyre.proxy.session.session`."""
        return subpackage_of(self.name)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in self.nodes if isinstance(node, kinds)]

    @cached_property
    def imports(self) -> list[Import]:
        kinds = (ast.Import, ast.ImportFrom)
        statements = [node for node in self.nodes if isinstance(node, kinds)]
        bodies = [(node.lineno, node.end_lineno or 0) for node in self.functions]
        inner = {
            id(node)
            for node in statements
            if any(first <= node.lineno <= last for first, last in bodies)
        }
        unfollowed = {
            id(node)
            for block in self.tree.body
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in block.body
        }
        found = []
        for node in statements:
            match node:
                case ast.Import(names=names):
                    targets = [alias.name for alias in names]
                case ast.ImportFrom(module=module, level=0, names=names):
                    targets = [f"{module}.{alias.name}" for alias in names]
                case ast.ImportFrom():
                    targets = [f"(relative).{alias.name}" for alias in node.names]
            found += [
                Import(
                    name=name,
                    line=node.lineno,
                    inside=id(node) in inner,
                    for_types=id(node) in unfollowed,
                )
                for name in targets
            ]
        return found

    def at(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


def subpackage_of(name: str) -> str:
    """The second part of a dotted name; the package itself counts as one."""
    package, _, rest = name.partition(".")
    return rest.split(".")[0] or package


def _module(path: Path) -> Module:
    text = path.read_text()
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name=name, path=path, text=text, tree=ast.parse(text))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    return [_module(path) for path in sorted((ROOT / "src" / "gyre").rglob("*.py"))]
