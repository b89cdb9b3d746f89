"""The check of stage versions: a stage whose code has changed needs a new version, or a recorded reason why
its bytes stay the same.

`erl_pipeline/stages/versions.toml` holds, for every stage, its version and the fingerprint of all definitions
that its `compute` and the model of its settings reach. `python -m tests.stage_versions` compares the
file with the code, and so does a test. The code of environments and methods is left out, because recipes hold
its fingerprint.
"""

import argparse
import ast
import hashlib
import importlib
import json
import pkgutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from erl_pipeline.config.plugins import Group, plugins
from erl_pipeline.plan.module_source import Name
from erl_pipeline.plan.plugin_code import left_out
from erl_pipeline.plan.source_tree import SourceTree
from erl_pipeline.plan.sources import CodeOwner
from erl_pipeline.plan.stage import Stage
from storage.artifacts.recipe import ID_LENGTH

FOLDER = Path(__file__).parents[1]
STAGES = ("erl_pipeline.stages", "erl_pipeline.methods")
FILE = FOLDER / "erl_pipeline/stages/versions.toml"

_RUN_NO_STAGES = ("runners", "scorers")
_COMMAND = "python -m tests.stage_versions"
_HEAD = f"""\
# The versions of all stages, and fingerprints of the code that gives their bytes.
# Written by `{_COMMAND}`, whose --help says how.
"""


@dataclass(frozen=True)
class Recorded:
    """One stage in the file.

    `fingerprint` is that of the code when it was last recorded. `moved_no_byte` is the reason why the version
    could stay the same then; empty if it was raised. The reasons before it are in the repository's history.
    """

    name: str
    compute: str
    version: int
    fingerprint: str
    moved_no_byte: str = ""


@dataclass(frozen=True)
class VersionFile:
    """The file: stages by their `compute` functions, and the digest of each module as last accepted."""

    stages: Mapping[str, Recorded]
    modules: Mapping[str, str]


@dataclass(frozen=True)
class StageCode:
    """A stage as its code is now.

    `fingerprint` is that of the definitions that it reaches. `modules`: name of a module that has some of
    them -> the digest of all definitions in there that any stage reaches, to say where something changed.
    """

    name: str
    compute: str
    version: int
    fingerprint: str
    modules: Mapping[str, str]


def in_tree() -> SourceTree:
    """The project's own modules. Its own plug-ins count as part of the stages that ask for one."""
    plugged_in: dict[str, list[Name]] = {}
    records: list[Any] = []
    for group in (each for each in get_args(Group) if each not in _RUN_NO_STAGES):
        for plugin in (each for each in plugins(group).found.values() if each.is_own):
            module, _, name = plugin.target.partition(":")
            plugged_in.setdefault(group, []).append((module, name))
            records.append(plugin.value)
    roots = {name: FOLDER / name for name in ("storage", "erl_pipeline")}
    return SourceTree(roots, plugged_in, left_out(records), cautious=False)


def find_stages(packages: Iterable[str] = STAGES) -> list[Stage[Any]]:
    """The stage objects in all modules of these packages and their subpackages, each once."""
    found: dict[int, Stage[Any]] = {}
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Stage):
                    found[id(value)] = value
    return sorted(found.values(), key=lambda stage: (stage.name, stage.compute.__qualname__))


def stage_codes(tree: SourceTree, stages: Iterable[Stage[Any]]) -> list[StageCode]:
    """The code of stages as it is now. Stages that share a `compute` share a version, and count as one."""
    found: dict[str, tuple[Stage[Any], dict[Name, str]]] = {}
    everything: dict[Name, str] = {}
    for stage in stages:
        compute = f"{stage.compute.__module__}.{stage.compute.__qualname__}"
        if compute in found:
            continue
        starts = [(each.__module__, each.__qualname__) for each in (stage.compute, stage.settings)]
        held = _held_by_recipes(stage)
        reached = tree.reach(starts)
        counted = {name: each for name, each in reached.items() if not f"{name[0]}.".startswith(held)}
        found[compute] = stage, counted
        everything.update(counted)
    modules = {module: _fingerprint(everything, module) for module, _ in everything}
    return [
        StageCode(
            stage.name,
            compute,
            stage.version,
            _fingerprint(counted),
            {module: modules[module] for module in sorted({module for module, _ in counted})},
        )
        for compute, (stage, counted) in found.items()
    ]


def _fingerprint(definitions: Mapping[Name, str], module: str | None = None) -> str:
    """The digest of definitions, of one module or of all."""
    lines = [
        f"{each}\0{name}\0{digest}\n"
        for (each, name), digest in sorted(definitions.items())
        if module in (None, each)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:ID_LENGTH]


def _held_by_recipes(stage: Stage[Any]) -> tuple[str, ...]:
    """Name prefixes of the modules that a stage leaves out, because its recipes hold their fingerprint: those
    of all environments or methods. What these use of other modules counts."""
    groups: tuple[tuple[CodeOwner, Group], ...] = (("environment", "environments"), ("method", "methods"))
    return tuple(
        f"{package}."
        for owner, group in groups
        if owner in stage.code
        for each in plugins(group).found.values()
        for package in each.packages
    )


def problem(code: StageCode, file: VersionFile) -> str | None:
    """What is wrong with a stage's version, and how to fix it; None if nothing is wrong."""
    stage, bump = f"stage {code.name} ({code.compute})", f"{_COMMAND} --bump {code.compute}"
    recorded = file.stages.get(code.compute)
    if recorded is None:
        return f"{stage} is not in versions.toml: {bump}"
    if recorded.version != code.version:
        return f"{stage} has version {code.version}, and versions.toml knows {recorded.version}: {bump}"
    if code.fingerprint == recorded.fingerprint:
        return None
    changed = [name for name, digest in code.modules.items() if file.modules.get(name) != digest]
    what = ", ".join(changed) or "it reaches other definitions than before"
    return (
        f"{stage} still has version {code.version}, but its code has changed: {what}. "
        f"If it may give other bytes: {bump}. "
        f'If it cannot: {_COMMAND} --record {code.compute} --reason "WHY"'
    )


def record(
    file: VersionFile, codes: Sequence[StageCode], chosen: Iterable[StageCode], reason: str
) -> VersionFile:
    """The file after recording that the chosen stages' changed code gives the bytes of their version.

    Raises ValueError, with the way to fix it, for a stage whose version the file does not know.
    """
    stages = dict(file.stages)
    for code in chosen:
        known = stages.get(code.compute)
        if known is None or known.version != code.version:
            raise ValueError(problem(code, file))
        if code.fingerprint != known.fingerprint:
            stages[code.compute] = replace(known, fingerprint=code.fingerprint, moved_no_byte=reason)
    return _brought_up(VersionFile(stages, file.modules), codes)


def begin_versions(file: VersionFile, codes: Sequence[StageCode], chosen: Iterable[StageCode]) -> VersionFile:
    """The file after recording the chosen stages' present code as the first of their version."""
    begun = {
        each.compute: Recorded(each.name, each.compute, each.version, each.fingerprint) for each in chosen
    }
    return _brought_up(VersionFile({**file.stages, **begun}, file.modules), codes)


def raise_version(code: StageCode, tree: SourceTree) -> StageCode:
    """Add one to the version in the source of a stage, and print the line; return the changed stage."""
    module, _, function = code.compute.rpartition(".")
    path = tree.path(module)
    assert path is not None
    text = path.read_text(encoding="utf-8")
    raised = replace(code, version=code.version + 1)
    for call in _stage_calls(ast.parse(text)):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if ast.unparse(given["compute"]) == function:
            value = given["version"]
            lines = text.splitlines(keepends=True)
            line = lines[value.lineno - 1]
            before, after = line[: value.col_offset], line[value.end_col_offset :]
            lines[value.lineno - 1] = f"{before}{raised.version}{after}"
            path.write_text("".join(lines), encoding="utf-8")
            shown = path.relative_to(tree.roots[module.partition(".")[0]].parent)
            print(f"{shown}:{value.lineno}: {code.name} has version {raised.version}")
            return raised
    raise ValueError(f"{path} makes no stage with compute={function}")


def _stage_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The places where a module makes a stage object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Stage":
            yield node


def read_file(path: Path = FILE) -> VersionFile:
    """The content of the file; empty if there is none."""
    if not path.exists():
        return VersionFile({}, {})
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    stages = {compute: Recorded(compute=compute, **entry) for compute, entry in content["stages"].items()}
    return VersionFile(stages, content["modules"])


def file_text(file: VersionFile) -> str:
    """The file as TOML."""
    parts = [_HEAD]
    for compute, stage in sorted(file.stages.items()):
        reason = f"moved_no_byte = {json.dumps(stage.moved_no_byte)}\n" if stage.moved_no_byte else ""
        parts.append(
            f'[stages."{compute}"]\nname = "{stage.name}"\nversion = {stage.version}\n'
            f'fingerprint = "{stage.fingerprint}"\n{reason}'
        )
    digests = "".join(f'"{name}" = "{digest}"\n' for name, digest in sorted(file.modules.items()))
    return "\n".join([*parts, f"[modules]\n{digests}"])


def main(arguments: Sequence[str] | None = None, path: Path = FILE) -> int:
    """Print the state of every stage, after the change that the options ask for; return 1 if a stage still
    has a problem."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description="Versions of stages, and their code.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--record", metavar="STAGE|all", help="its changed code gives the same bytes")
    choice.add_argument("--bump", metavar="STAGE|all", help="raise its version: it may give other bytes")
    parser.add_argument("--reason", help="why the bytes are the same")
    given = parser.parse_args(arguments)
    if (given.record is None) != (given.reason is None):
        parser.error("--record and --reason go together")
    tree, file = in_tree(), read_file(path)
    codes = stage_codes(tree, find_stages())
    wanted = given.record or given.bump
    chosen = [code for code in codes if wanted in ("all", code.name, code.compute)]
    if wanted and not chosen:
        names = ", ".join(sorted({code.name for code in codes}))
        parser.error(f"no stage is named {wanted}; there are {names}")
    if given.bump:
        # If somebody raised the version in the source already, it is not raised again.
        chosen = [raise_version(code, tree) if _knows(file, code) else code for code in chosen]
        raised = {code.compute: code for code in chosen}
        codes = [raised.get(code.compute, code) for code in codes]
        file = begin_versions(file, codes, chosen)
    elif given.record:
        file = record(file, codes, chosen, given.reason)
    if wanted:
        path.write_text(file_text(file), encoding="utf-8")
    found = [problem(code, file) for code in codes]
    for code, said in zip(codes, found, strict=True):
        print(said or f"{code.name} ({code.compute}): version {code.version}, as recorded")
    return int(any(found))


def _knows(file: VersionFile, code: StageCode) -> bool:
    return code.compute in file.stages and file.stages[code.compute].version == code.version


def _brought_up(file: VersionFile, codes: Sequence[StageCode]) -> VersionFile:
    """The file without stages that no longer exist, and with the present digests of modules. The modules of a
    stage that still has a problem keep their old digests, so that the change can be named."""
    stages = {code.compute: file.stages[code.compute] for code in codes if code.compute in file.stages}
    modules = {name: digest for code in codes for name, digest in code.modules.items()}
    for code in codes:
        if problem(code, file) is not None:
            for name in code.modules:
                modules[name] = file.modules.get(name, "")
    return VersionFile(stages, {name: digest for name, digest in modules.items() if digest})


if __name__ == "__main__":
    sys.exit(main())
