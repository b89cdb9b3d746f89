"""The modules that a module imports, directly or indirectly, by its source; and digests of their code."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from erl_pipeline.plan.fingerprint import normalised_tree
from storage.artifacts.recipe import ID_LENGTH


@dataclass(frozen=True)
class SourceTree:
    """Modules as files below a folder.

    Only modules of `packages` are followed. `plugged_in` maps a group of plug-ins, for which code calls
    `plugins("GROUP")`, to the packages that this call may give.
    """

    folder: Path
    packages: Sequence[str]
    plugged_in: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def path(self, module: str) -> Path | None:
        """The file of a module; None for one that is not in this tree."""
        if module.partition(".")[0] not in self.packages:
            return None
        base = self.folder.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        return None

    def reach(self, module: str) -> set[str]:
        """The module and all modules that it imports, directly or indirectly, at the top of a file or within
        functions. Imports that only a type checker sees are left out."""
        found: set[str] = set()
        waiting = [module]
        while waiting:
            name = waiting.pop()
            path = self.path(name)
            if path is None or name in found:
                continue
            found.add(name)
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            imports, groups = _followed(path, package)
            waiting += imports
            for group in groups:
                for plugin in self.plugged_in.get(group, ()):
                    waiting += self._modules_of(plugin)
        return found

    def digest(self, module: str) -> str:
        """The digest of a module's code, without docstrings and without the versions of its stages."""
        path = self.path(module)
        assert path is not None
        return hashlib.sha256(normalised_tree(_bare(_parsed(path)))).hexdigest()[:ID_LENGTH]

    def _modules_of(self, package: str) -> Iterator[str]:
        for path in self.folder.joinpath(*package.split(".")).rglob("*.py"):
            parts = path.relative_to(self.folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def stage_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The places where a module makes a stage object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Stage":
            yield node


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _followed(path: Path, package: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules that a module of `package` imports, and the groups of plug-ins that it asks for, each once.
    Many stages reach the same modules, so a file is read once in a process."""
    tree = _parsed(path)
    return tuple(dict.fromkeys(_imports(tree, package))), tuple(dict.fromkeys(_asked_groups(tree)))


def _imports(tree: ast.Module, package: str) -> list[str]:
    """Modules that a module of `package` imports, and the packages that they are in."""
    found: list[str] = []
    for node in _running(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for each in found for name in _with_parents(each)]


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those that only a type checker sees."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _running(other)
        else:
            yield from _running(child)


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _asked_groups(tree: ast.Module) -> Iterator[str]:
    """Groups of plug-ins that a module asks for by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "plugins":
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def _bare(tree: ast.Module) -> ast.Module:
    """The same tree without docstrings and without the versions of stages; the tree itself is changed."""
    for call in stage_calls(tree):
        call.keywords = [keyword for keyword in call.keywords if keyword.arg != "version"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is only a string: a docstring, of its block or of the line before it."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
