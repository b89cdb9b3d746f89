"""The definitions that code reaches by its source, and digests of them.

A definition is what the top level of a module binds to a name: a function, a class, a constant. It reaches
the definitions whose names it mentions, in its own module or through imports, also through imports within
functions. What a module does when it is imported, beyond binding names, is reached with every import of it.
So code that stands beside what is reached, such as the drawing of a board, does not count.

Docstrings do not count, unless the code that is reached reads docstrings or makes schemas of them: then a
policy may see them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

from erl_pipeline.plan.fingerprint import normalised_tree, package_files
from storage.artifacts.recipe import ID_LENGTH

Name = tuple[str, str]
"""A module, and a name that it binds; an empty name is what the module does when it is imported."""

LeftOut = tuple[tuple[str, frozenset[str]], ...]

OWN = "erl_pipeline"
"""The package of this project that plug-ins import."""
_ALL = "*"
_READS_DOCSTRINGS = frozenset(
    {"__doc__", "getdoc", "description", "get_json_schema", "model_json_schema", "json_schema"}
)
_MAKES_SCHEMAS = frozenset({"get_json_schema"})
"""Functions of libraries that write the types of parameters into prompts."""
_FINDS_CODE_BY_ITSELF = frozenset(
    {"import_module", "__import__", "pkgutil", "globals", "exec", "eval"}
    | {"__init_subclass__", "__subclasses__"}
)
_BINDS_ONLY = frozenset(
    {"dataclass", "cache", "lru_cache", "contextmanager", "asynccontextmanager", "runtime_checkable"}
    | {"overload", "final", "total_ordering", "singledispatch", "wraps", "no_grad", "inference_mode"}
)
"""Decorators that register nothing: a function or class with any other counts when its module is imported."""
_ONLY_TYPED = frozenset({"dataclass", "NamedTuple", "Protocol", "TypedDict"})
"""Classes whose fields' types do nothing, unlike those of pydantic models."""


@dataclass(frozen=True)
class SourceTree:
    """Modules that are followed. All others, such as those of libraries, count only by their names.

    `roots`: module -> its file, or the folder of a package. `plugged_in`: a group of plug-ins, for which code
    calls `plugins("GROUP")` -> the definitions that this call may give. `left_out`: name of a class -> the
    keywords that do not count in a call of it.
    """

    roots: Mapping[str, Path]
    plugged_in: Mapping[str, Sequence[Name]] = field(default_factory=dict)
    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cautious: bool = True
    """Where reached code finds other code by itself, as by importing modules whose names it makes, all
    modules of its root count. Not needed for code that is known to find none that gives bytes."""
    _paths: dict[str, Path | None] = field(default_factory=dict)
    _sources: dict[str, _Source | None] = field(default_factory=dict)

    def path(self, module: str) -> Path | None:
        """The file of a module; None for one that is not in this tree."""
        if module not in self._paths:
            self._paths[module] = self._find(module)
        return self._paths[module]

    def _find(self, module: str) -> Path | None:
        for root, place in self.roots.items():
            if module == root and place.suffix == ".py":
                return place
            if module == root or module.startswith(f"{root}."):
                base = place.joinpath(*module[len(root) + 1 :].split("."))
                for path in (base / "__init__.py", base.with_suffix(".py")):
                    if path.is_file():
                        return path
        return None

    def modules(self, root: str) -> Iterator[str]:
        """All modules of a root. Files in folders that are no packages are none, unless code imports them."""
        place = self.roots[root]
        if place.suffix == ".py":
            yield root
            return
        for path in sorted(place.rglob("*.py")):
            inner = path.relative_to(place)
            if path.stem.isidentifier() and all(
                (place / above / "__init__.py").is_file() for above in inner.parents
            ):
                parts = (root, *inner.with_suffix("").parts)
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def files_of_no_module(self, root: str) -> list[tuple[str, Path]]:
        """The names and paths of a root's files that are no modules: data, also where they end in `.py`."""
        place = self.roots[root]
        code = {self.path(module) for module in self.modules(root) if self.source(module) is not None}
        return [(name, path) for name, path in package_files(place) if path not in code]

    def reach(self, starts: Iterable[Name]) -> dict[Name, str]:
        """The definitions that some reach, themselves included, and the digest of each."""
        return _Walk(self).from_starts(starts)

    def source(self, module: str) -> _Source | None:
        """What a module binds; None for a module that is not in this tree, or that is not Python."""
        path = self.path(module)
        if path is None:
            return None
        if module not in self._sources:
            self._sources[module] = _source(
                path, path.stat().st_mtime_ns, module, tuple(self.left_out.items())
            )
        return self._sources[module]


def stage_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The places where a module makes a stage object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Stage":
            yield node


@dataclass(frozen=True, eq=False)
class _Source:
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
                    if name == _ALL:
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
class _Uses:
    """What a statement mentions. `chains`: dotted names, such as `game.board.width`; `types`: those in the
    types of parameters and results."""

    chains: frozenset[tuple[str, ...]]
    types: frozenset[tuple[str, ...]]
    imported: Mapping[str, Sequence[Name]]
    groups: tuple[str, ...]
    texts: tuple[str, ...]
    words: frozenset[str]
    docstrings: tuple[str, ...]


class _Walk:
    """One walk from definition to definition."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._waiting: list[Name] = []
        self._seen: set[Name] = set()
        self._executed: set[str] = set()
        self._found: dict[Name, list[tuple[_Source, ast.stmt, list[str]]]] = {}
        self._reads_docstrings = False
        self._makes_schemas = False
        self._typed: set[Name] = set()

    def from_starts(self, starts: Iterable[Name]) -> dict[Name, str]:
        self._waiting += starts
        while self._waiting:
            while self._waiting:
                module, name = self._waiting.pop()
                if (module, name) not in self._seen:
                    self._seen.add((module, name))
                    self._visit(module, name)
            if self._makes_schemas:
                self._follow_types()
        return {name: self._digest(parts) for name, parts in self._found.items() if parts}

    def _visit(self, module: str, name: str) -> None:
        source = self._tree.source(module)
        if source is None:
            return
        self._execute(module)
        if name == _ALL:
            self._waiting += [(module, each) for each in source.bound]
            self._waiting += [target for each in source.imported.values() for target in each if target[1]]
            return
        statements = source.effects if name == "" else source.bound.get(name)
        if statements is None or name in source.imported or source.stars:
            self._follow(source, (name,), {}, [])
        if statements is None:
            return
        found = self._found.setdefault((module, name), [])
        for statement in statements:
            outside: list[str] = []
            found.append((source, statement, outside))
            self._follow_all(source, statement, outside)

    def _follow_types(self) -> None:
        """Follow the types of parameters and results of all functions that are reached by now."""
        for name in self._found.keys() - self._typed:
            self._typed.add(name)
            for source, statement, outside in self._found[name]:
                uses = _uses(statement, source)
                for dotted in uses.types:
                    self._follow(source, dotted, uses.imported, outside)

    def _follow_all(self, source: _Source, statement: ast.stmt, outside: list[str]) -> None:
        uses = _uses(statement, source)
        for dotted in uses.chains:
            self._follow(source, dotted, uses.imported, outside)
        for target, name in chain.from_iterable(uses.imported.values()):
            self._execute(target)
            if name:
                self._execute(f"{target}.{name}")
        for group in uses.groups:
            self._waiting += self._tree.plugged_in.get(group, ())
        for text in uses.texts:
            module, _, name = text.partition(":")
            if self._tree.path(module) is not None:
                self._waiting.append((module, name.partition(".")[0] or _ALL))
        self._reads_docstrings = self._reads_docstrings or not uses.words.isdisjoint(_READS_DOCSTRINGS)
        self._makes_schemas = self._makes_schemas or not uses.words.isdisjoint(_MAKES_SCHEMAS)
        if self._tree.cautious and not uses.words.isdisjoint(_FINDS_CODE_BY_ITSELF):
            for root in self._tree.roots:
                if f"{source.module}.".startswith(f"{root}."):
                    self._waiting += [(module, _ALL) for module in self._tree.modules(root)]

    def _follow(
        self,
        source: _Source,
        dotted: tuple[str, ...],
        imported: Mapping[str, Sequence[Name]],
        outside: list[str],
    ) -> None:
        """Follow a dotted name to all that it may stand for; note in `outside` where it leaves the tree."""
        first = dotted[0]
        if first in source.bound:
            self._waiting.append((source.module, first))
        # An import within one function of a class does not hide that of the module from the others.
        targets = dict.fromkeys([*imported.get(first, ()), *source.imported.get(first, ())])
        if not targets:
            self._waiting += [(star, first) for star in source.stars if self._tree.path(star) is not None]
        for module, name in targets:
            rest = [*([name] if name else []), *dotted[1:]]
            while (
                rest
                and self._tree.path(f"{module}.{rest[0]}") is not None
                and not self._binds(module, rest[0])
            ):
                module = f"{module}.{rest.pop(0)}"
            if self._tree.path(module) is None:
                outside.append(f"{first}={'.'.join((module, *rest))}")
            else:
                self._waiting.append((module, rest[0] if rest else _ALL))

    def _binds(self, module: str, name: str) -> bool:
        source = self._tree.source(module)
        if source is None:
            return False
        return name in source.bound or any(each != (module, name) for each in source.imported.get(name, ()))

    def _digest(self, parts: Sequence[tuple[_Source, ast.stmt, list[str]]]) -> str:
        digest = hashlib.sha256()
        for source, statement, outside in parts:
            digest.update(_normalised(statement))
            uses = _uses(statement, source)
            texts = uses.docstrings if self._reads_docstrings else ()
            digest.update("\n".join([*sorted(outside), *texts]).encode())
        return digest.hexdigest()[:ID_LENGTH]

    def _execute(self, module: str) -> None:
        """Count what the import of a module does, and the imports of that module."""
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if name in self._executed:
                continue
            self._executed.add(name)
            source = self._tree.source(name)
            if source is None:
                continue
            if source.effects:
                self._waiting.append((name, ""))
            waiting.append(name.rpartition(".")[0])
            for target, inner in chain.from_iterable(source.imported.values()):
                waiting += [target, f"{target}.{inner}"] if inner else [target]
            waiting += source.stars


@cache
def _source(path: Path, _changed: int, module: str, left_out: LeftOut) -> _Source | None:
    """Read a module; again only after its file has changed. None for one that this Python cannot parse."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    source = _Source(module, package, left_out, {}, {}, [], [])
    try:
        source.take(ast.parse(path.read_bytes()).body)
    except (SyntaxError, ValueError):
        return None
    return source


@cache
def _uses(statement: ast.stmt, source: _Source) -> _Uses:
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
    return _Uses(
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


def _is_of_this_project(called: ast.expr, source: _Source) -> bool:
    """Whether a class is one of this project's, and not one of a plug-in that has the same name."""
    first = _dotted(called)[0][0]
    imported = [module for module, _ in source.imported.get(first, ())]
    modules = [source.module] if first in source.bound else imported
    return any(module.partition(".")[0] == OWN for module in modules)


def _is_module(text: str) -> bool:
    """Whether a text may name a module, or something in a module."""
    return "." in text and text.replace(".", "_").replace(":", "_").isidentifier()


@cache
def _normalised(statement: ast.stmt) -> bytes:
    return normalised_tree(statement)


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
