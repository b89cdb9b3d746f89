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
from erl_pipeline.plan.module_source import ALL, ModuleSource, Name, read_module, uses_of
from storage.artifacts.recipe import ID_LENGTH

_READS_DOCSTRINGS = frozenset(
    {"__doc__", "getdoc", "description", "get_json_schema", "model_json_schema", "json_schema"}
)
_MAKES_SCHEMAS = frozenset({"get_json_schema"})
"""Functions of libraries that write the types of parameters into prompts."""
_FINDS_CODE_BY_ITSELF = frozenset(
    {"import_module", "__import__", "pkgutil", "globals", "exec", "eval", "getmembers"}
    | {"__init_subclass__", "__subclasses__"}
)
_MODULES_BY_NAME = ("sys", "modules")
_LAZY_NAMES = "__getattr__"
"""A module's function that gives the names which it does not bind."""


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
    _sources: dict[str, ModuleSource | None] = field(default_factory=dict)

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

    def source(self, module: str) -> ModuleSource | None:
        """What a module binds; None for a module that is not in this tree, or that is not Python."""
        path = self.path(module)
        if path is None:
            return None
        if module not in self._sources:
            self._sources[module] = read_module(
                path, path.stat().st_mtime_ns, module, tuple(self.left_out.items())
            )
        return self._sources[module]


class _Walk:
    """One walk from definition to definition."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._waiting: list[Name] = []
        self._seen: set[Name] = set()
        self._executed: set[str] = set()
        self._found: dict[Name, list[tuple[ModuleSource, ast.stmt, list[str]]]] = {}
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
        if name == ALL:
            self._waiting += [(module, each) for each in source.bound]
            self._waiting += [target for each in source.imported.values() for target in each if target[1]]
            return
        statements = source.effects if name == "" else source.bound.get(name)
        if statements is None or name in source.imported or source.stars:
            self._follow(source, (name,), {}, [])
        if statements is None:
            if name and name not in source.imported and _LAZY_NAMES in source.bound:
                self._count_whole_package(source)
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
                uses = uses_of(statement, source)
                for dotted in uses.types:
                    self._follow(source, dotted, uses.imported, outside)

    def _follow_all(self, source: ModuleSource, statement: ast.stmt, outside: list[str]) -> None:
        uses = uses_of(statement, source)
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
                self._waiting.append((module, name.partition(".")[0] or ALL))
        self._reads_docstrings = self._reads_docstrings or not uses.words.isdisjoint(_READS_DOCSTRINGS)
        self._makes_schemas = self._makes_schemas or not uses.words.isdisjoint(_MAKES_SCHEMAS)
        by_name = any(each[: len(_MODULES_BY_NAME)] == _MODULES_BY_NAME for each in uses.chains)
        if by_name or not uses.words.isdisjoint(_FINDS_CODE_BY_ITSELF):
            self._count_whole_package(source)

    def _count_whole_package(self, source: ModuleSource) -> None:
        """Follow all definitions of a module's package: nobody can see which of them it uses."""
        for root in self._tree.roots if self._tree.cautious else ():
            if f"{source.module}.".startswith(f"{root}."):
                self._waiting += [(module, ALL) for module in self._tree.modules(root)]

    def _follow(
        self,
        source: ModuleSource,
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
                self._waiting.append((module, rest[0] if rest else ALL))

    def _binds(self, module: str, name: str) -> bool:
        source = self._tree.source(module)
        if source is None:
            return False
        return name in source.bound or any(each != (module, name) for each in source.imported.get(name, ()))

    def _digest(self, parts: Sequence[tuple[ModuleSource, ast.stmt, list[str]]]) -> str:
        digest = hashlib.sha256()
        for source, statement, outside in parts:
            digest.update(_normalised(statement))
            uses = uses_of(statement, source)
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
def _normalised(statement: ast.stmt) -> bytes:
    return normalised_tree(statement)
