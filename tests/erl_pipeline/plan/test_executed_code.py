"""What a stage executes is what its version or its recipe answers for."""

from __future__ import annotations

import ast
import sys
import threading
from collections import defaultdict
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.module_source import Name
from erl_pipeline.plan.plugin_code import reached_code
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from tests.erl_pipeline.runs.small_runs import go, small
from tests.stage_versions import FOLDER, in_tree

SERVED = ("erl_pipeline.plan.", "erl_pipeline.runs.log", "storage.artifacts.", "storage.filesystem")
"""What a stage is given: progress, which a log hears of too, resources, and the store with its checks. It
gives no bytes."""


def test_all_that_a_run_of_erl_executes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function that a stage of one iteration calls, in any thread, is among the definitions that the
    version guard or a plug-in's fingerprint has for that stage."""
    executed: dict[str, set[Name]] = defaultdict(set)
    stages: dict[str, Stage[Any]] = {}
    compute = Stage.__getattribute__

    def watched(stage: Stage[Any], name: str) -> Any:
        real = compute(stage, name)
        if name != "compute":
            return real

        def watch(call: StageCall[Any]) -> StageResult:
            stages[stage.name] = stage
            profile = _noting(executed[stage.name])
            threading.setprofile(profile)
            sys.setprofile(profile)
            try:
                result: StageResult = real(call)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
            return result

        return watch

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "__getattribute__", watched)
        go(small(iterations=1), tmp_path)
    assert {"bootstrap", "rollout_shard", "update_policy", "index_memory", "evaluate"} <= executed.keys()

    tree = in_tree()
    found = [plugins("environments")["frozen_lake"], plugins("methods")["erl"]]
    of_plugins = reached_code(found)
    for name, definitions in executed.items():
        stage = stages[name]
        starts = [(each.__module__, each.__qualname__) for each in (stage.compute, stage.settings)]
        missing = definitions - tree.reach(starts).keys() - of_plugins.keys()
        assert sorted(each for each in missing if not each[0].startswith(SERVED)) == [], name


_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


def _noting(into: set[Name]) -> Any:
    """A profiler that notes the definitions of this project that are called."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        # A class body or a module runs when it is imported, and takes no part.
        if not code.co_flags & CO_OPTIMIZED:
            return
        path = Path(code.co_filename)
        if path.is_relative_to(FOLDER / "erl_pipeline") or path.is_relative_to(FOLDER / "storage"):
            module = ".".join(path.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__init__")
            name = code.co_qualname.partition(".")[0]
            if name in _COMPREHENSIONS:
                return  # of a module, when it is imported
            # A lambda of a module is part of what the module binds there.
            into.add((module, _bound_at(path, code.co_firstlineno) if name == "<lambda>" else name))

    return note


def _bound_at(path: Path, line: int) -> str:
    """The name that the statement of a module in this line binds."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if statement.lineno <= line <= (statement.end_lineno or line) and isinstance(statement, ast.Assign):
            (target,) = statement.targets
            assert isinstance(target, ast.Name)
            return target.id
    raise AssertionError(f"{path}:{line} binds no name")
