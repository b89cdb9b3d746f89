"""Fingerprints of what in the code of plug-ins gives the bytes of artifacts.

Of an environment's or a method's record, the fields whose metadata say so (`NO_BYTES`) do not count: what is
behind them draws, explains, checks or plans. From all other fields, and from the `compute` of a method's
stages, definitions are followed through the packages that the plug-in names (`plan.source_tree`). Data files
of these packages count with all their bytes. A package of another project, such as a game's rules, counts
whole.
"""

import ast
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from erl_pipeline.config.plugins import Plugin, makes_bytes
from erl_pipeline.plan.fingerprint import package_fingerprint, package_place
from erl_pipeline.plan.module_source import OWN, Name
from erl_pipeline.plan.source_tree import SourceTree
from storage.artifacts.recipe import ID_LENGTH

SCHEME = 2
"""The number of the way in which fingerprints are taken; it begins each of them, so that a later way changes
all ids at once and says why."""

STAGE_FIELDS = frozenset({"version", "slice", "needs", "retry_seconds", "part_of"})
"""What of a stage object gives no bytes by its code: recipes have the version and the settings."""


def plugin_fingerprints(found: Sequence[Plugin], *, whole: bool = False) -> dict[str, str]:
    """Package -> fingerprint, for all packages that some plug-ins name.

    Args:
        whole: all fields count, for an examination of everything that an environment offers.

    Raises ConfigError for a package that has no source files on this machine.
    """
    tree = _tree(found, whole)
    reached = _reached(tree, found)
    # A record that no statement of its package makes gives nothing to follow.
    lost = {each.packages[0] for each in found if not _is_reached(each, reached)}
    return {
        package: f"{SCHEME}-"
        + (
            _reached_in(package, tree, reached)
            if package in tree.roots and package not in lost
            else package_fingerprint(package)
        )
        for package in dict.fromkeys(package for each in found for package in each.packages)
    }


def reached_code(found: Sequence[Plugin]) -> dict[Name, str]:
    """The definitions of some plug-ins that give bytes, and the digest of each."""
    return _reached(_tree(found, whole=False), found)


def _reached(tree: SourceTree, found: Sequence[Plugin]) -> dict[Name, str]:
    return tree.reach([*(_start(each) for each in found), *_computed(tree)])


def _tree(found: Sequence[Plugin], whole: bool) -> SourceTree:
    """The packages that are followed."""
    named = [(each, package) for each in found for package in each.packages]
    roots = {package: package_place(package) for each, package in named if _is_followed(each, package)}
    return SourceTree(roots, left_out=left_out([each.value for each in found], whole))


def left_out(records: Iterable[Any], whole: bool = False) -> dict[str, frozenset[str]]:
    """Class -> its fields that give no bytes: of stages, of plug-ins' records, and of the records in their
    fields.

    Args:
        whole: all fields of plug-ins count but the names of packages.
    """
    found = {"Stage": STAGE_FIELDS}
    for record in records:
        if not dataclasses.is_dataclass(record) or isinstance(record, type):
            continue
        fields = dataclasses.fields(record)
        names = [
            each.name for each in fields if (each.name == "packages" if whole else not makes_bytes(each))
        ]
        found[type(record).__name__] = frozenset(names)
        found.update(left_out([getattr(record, each.name) for each in fields], whole))
    return found


def _is_followed(plugin: Plugin, package: str) -> bool:
    """Whether a package is of the plug-in's own project, or of this one."""
    return package.partition(".")[0] in (plugin.target.partition(":")[0].partition(".")[0], OWN)


def _start(plugin: Plugin) -> Name:
    module, _, name = plugin.target.partition(":")
    return module, name.partition(".")[0]


def _is_reached(plugin: Plugin, reached: Mapping[Name, str]) -> bool:
    """Whether the record was found, also where its module only imports it."""
    return any(name == _start(plugin)[1] for _, name in reached)


def _computed(tree: SourceTree) -> Iterator[Name]:
    """What the stages of these packages compute, and the models of their settings."""
    for root in tree.roots:
        for module in tree.modules(root):
            source = tree.source(module)
            if source is None:
                continue
            for bound, statements in source.bound.items():
                for call in _calls(statements):
                    given = {each.arg: each.value for each in call.keywords}
                    if "compute" in given:
                        for part in (given["compute"], given.get("settings")):
                            yield module, part.id if isinstance(part, ast.Name) else bound


def _calls(statements: Iterable[ast.stmt]) -> Iterator[ast.Call]:
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _reached_in(package: str, tree: SourceTree, reached: Mapping[Name, str]) -> str:
    digest = hashlib.sha256()
    for (module, name), each in sorted(reached.items()):
        if f"{module}.".startswith(f"{package}."):
            digest.update(f"{module}\0{name}\0{each}\n".encode())
    for name, path in tree.files_of_no_module(package):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:ID_LENGTH]
