"""What a module of Python binds, and what its statements mention, by its source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Name = tuple[str, str]
"""A module, and a name that it binds; an empty name is what the module does when it is imported."""

LeftOut = tuple[tuple[str, frozenset[str]], ...]

OWN = "erl_pipeline"
"""The package of this project that plug-ins import."""
ALL = "*"
"""Stands for all names of a module."""
_BINDS_ONLY = frozenset(
    {"dataclass", "cache", "lru_cache", "contextmanager", "asynccontextmanager", "runtime_checkable"}
    | {"overload", "final", "total_ordering", "singledispatch", "wraps", "no_grad", "inference_mode"}
)
"""Decorators that register nothing: a function or class with any other counts when its module is imported."""
_ONLY_TYPED = frozenset({"dataclass", "NamedTuple", "Protocol", "TypedDict"})
"""Classes whose fields' types do nothing, unlike those of pydantic models."""


@dataclass(frozen=True, eq=False)
class ModuleSource:
    """A module. `bound`: name -> the statements that bind it. `imported`: name -> the modules and the names
    in them that it may stand for, without a name for the module itself; several where a condition decides.
    `effects`: statements that do more than bind. `stars`: modules of which all names are imported."""

    module: str
    package: str
    left_out: LeftOut
    bound: dict[str, list[ast.stmt]]
    imported: dict[str, list[Name]]
    effects: list[ast.stmt]
    stars: list[str]

    def take(self, statements: Iterable[ast.stmt], *, nested: ast.stmt | None = None) -> None:
        """Sort statements; `nested` is the compound statement that they are in."""
        for each in statements:
            holder = nested or each
            if isinstance(each, ast.Import | ast.ImportFrom):
                for name, target in _imports(each, self.package):
                    if name == ALL:
                        self.stars.append(target[0])
                    else:
                        _add(self.imported, name, target)
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.bound.setdefault(each.name, []).append(holder)
                if any(_last_name(decorator) not in _BINDS_ONLY for decorator in each.decorator_list):
                    self.effects.append(holder)
            elif isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                parts = [part for target in targets for part in _parts(target)]
                for part in parts:
                    if isinstance(part, ast.Name):
                        self.bound.setdefault(part.id, []).append(holder)
                if not all(isinstance(part, ast.Name) for part in parts):
                    self.effects.append(holder)
            elif isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
                self.take(each.orelse, nested=nested)
            elif isinstance(each, ast.If) and ast.unparse(each.test).startswith("__name__ =="):
                continue
            elif not _is_text(each) and not isinstance(each, ast.Pass):
                self.effects.append(holder)
                for inner in ("body", "orelse", "finalbody"):
                    self.take(getattr(each, inner, ()), nested=holder)
                for inner in ("handlers", "cases"):
                    for part in getattr(each, inner, ()):
                        self.take(part.body, nested=holder)


@dataclass(frozen=True)
class Uses:
    """What a statement mentions. `chains`: dotted names, such as `game.board.width`; `types`: those in the
    types of parameters and results."""

    chains: frozenset[tuple[str, ...]]
    types: frozenset[tuple[str, ...]]
    imported: Mapping[str, Sequence[Name]]
    groups: tuple[str, ...]
    texts: tuple[str, ...]
    words: frozenset[str]
    docstrings: tuple[str, ...]


@cache
def read_module(path: Path, _changed: int, module: str, left_out: LeftOut) -> ModuleSource | None:
    """Read a module; again only after its file has changed. None for one that this Python cannot parse."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    source = ModuleSource(module, package, left_out, {}, {}, [], [])
    try:
        source.take(ast.parse(path.read_bytes()).body)
    except (SyntaxError, ValueError):
        return None
    return source


@cache
def uses_of(statement: ast.stmt, source: ModuleSource) -> Uses:
    """What a statement of a module mentions. Takes its docstrings out of it, and what does not count in its
    calls."""
    chains: set[tuple[str, ...]] = set()
    types: set[tuple[str, ...]] = set()
    imported: dict[str, list[Name]] = {}
    groups: list[str] = []
    texts: list[str] = []
    words: set[str] = set()
    docstrings: list[str] = []
    dropped = dict(source.left_out)
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, target in _imports(node, source.package):
                _add(imported, name, target)
            words.update(alias.name for alias in node.names)
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Attribute | ast.Name):
            names, base = _dotted(node)
            words.update(names)
            if base is None:
                chains.add(names)
            else:
                waiting.append(base)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstrings += [ast.unparse(each) for each in node.body if _is_text(each)]
            node.body = [each for each in node.body if not _is_text(each)]
        if isinstance(node, ast.Call):
            called = _last_name(node.func)
            if called in dropped and _is_of_this_project(node.func, source):
                node.keywords = [each for each in node.keywords if each.arg not in dropped[called]]
            if called == "plugins":
                groups += [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words.add(node.name)
            # What a function is given was made elsewhere: types of parameters count for schemas only.
            types.update(_names_in_types(node))
            waiting += [*node.decorator_list, *node.args.defaults, *node.body]
            waiting += [each for each in node.args.kw_defaults if each is not None]
            continue
        elif isinstance(node, ast.ClassDef):
            words.add(node.name)
            kinds = {_last_name(each) for each in (*node.decorator_list, *node.bases)}
            if not kinds.isdisjoint(_ONLY_TYPED):
                typed = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                waiting += [*node.decorator_list, *node.bases]
                waiting += [each.value for each in typed if each.value is not None]
                waiting += [each for each in node.body if not isinstance(each, ast.AnnAssign)]
                continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module(node.value):
            texts.append(node.value)
        waiting += ast.iter_child_nodes(node)
    return Uses(
        frozenset(chains),
        frozenset(types),
        imported,
        tuple(groups),
        tuple(texts),
        frozenset(words),
        tuple(docstrings),
    )


def _names_in_types(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ...]]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg, function.returns]
    for each in named:
        for node in ast.walk(each) if each is not None else ():
            if isinstance(node, ast.Attribute | ast.Name):
                names, base = _dotted(node)
                if base is None:
                    yield names


def _add(imported: dict[str, list[Name]], name: str, target: Name) -> None:
    """Note what an import binds; `import a.b` and `import a.c` bind `a` to the same."""
    targets = imported.setdefault(name, [])
    if target not in targets:
        targets.append(target)


def _is_of_this_project(called: ast.expr, source: ModuleSource) -> bool:
    """Whether a class is one of this project's, and not one of a plug-in that has the same name."""
    first = _dotted(called)[0][0]
    imported = [module for module, _ in source.imported.get(first, ())]
    modules = [source.module] if first in source.bound else imported
    return any(module.partition(".")[0] == OWN for module in modules)


def _is_module(text: str) -> bool:
    """Whether a text may name a module, or something in a module."""
    return "." in text and text.replace(".", "_").replace(":", "_").isidentifier()


def _imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Name]]:
    """The names that an import binds, and what they stand for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            yield alias.asname or alias.name, (alias.name, "")
            if not alias.asname:
                yield first, (first, "")
        return
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        yield alias.asname or alias.name, (base, alias.name)


def _dotted(node: ast.expr) -> tuple[tuple[str, ...], ast.expr | None]:
    """The names of `a.b.c`, and the expression that they belong to where that is not a name itself."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ((node.id, *names), None) if isinstance(node, ast.Name) else (tuple(names), node)


def _last_name(node: ast.expr) -> str:
    """`c` of `a.b.c` and of a call of it; empty for any other expression."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _parts(each)
    else:
        yield target


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is only a string: a docstring, of its block or of the line before it."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
