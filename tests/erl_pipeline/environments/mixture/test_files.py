"""Parts that build files: two HotpotQAs, each with the index of its own pages, and a FrozenLake."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import environment_sources
from erl_pipeline.stages.names import TRAINING
from erl_pipeline.stages.tasks.environment_stages import (
    BUILD_ENVIRONMENT_FILES,
    BUILT_FILES,
    BuiltFilesSettings,
    built_inputs,
    with_built_files,
)
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS, read_tasks
from tests.erl_pipeline.environments.hotpotqa.small_file import MAYOR, question, write
from tests.erl_pipeline.stages.calls import Bench

LAKE: dict[str, Any] = {"type": "frozen_lake", "format": "prose", "training_boards": 6, "rows": [3, 3]}


def environment(folder: Path) -> dict[str, Any]:
    """A mixture whose second HotpotQA has only the pages of two peaks in each question."""
    for name in ("towns", "peaks"):
        (folder / name).mkdir()
    asked = {"type": "hotpotqa", "search": "full_text", "tool_format": "plain", "test_share": 0.0}
    return {
        "type": "mixture",
        "parts": {
            "lake": {"environment": LAKE},
            "peaks": {
                "environment": {**asked, "task_file": write(folder / "peaks", *map(question, range(9)))}
            },
            "towns": {
                "environment": {
                    **asked,
                    "task_file": write(folder / "towns", MAYOR, *map(question, range(20, 29))),
                }
            },
        },
    }


def config(environment: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "mixed",
            "iterations": 1,
            "environment": environment,
            "policy": {"type": "pretrained", "model": "/models/llama"},
            "evaluation": {"tasks": 3},
        }
    )


def first_turn(plugin: EnvironmentPlugin[Any], config: RunConfig, task: Task, said: str) -> str:
    """The environment's answer to a first turn."""

    async def turn() -> str:
        opened = plugin.open(config.environment, task)
        await opened.reset()
        try:
            moved = await opened.step(AssistantTurn(said))
        finally:
            await opened.close()
        return moved.messages[0]["content"]

    return asyncio.run(turn())


def test_each_part_is_opened_with_its_own_files(tmp_path: Path) -> None:
    mixed, bench = config(environment(tmp_path)), Bench(tmp_path)
    sources = environment_sources(mixed)
    planner = Planner(mixed, sources)
    built = bench.compute(
        BUILD_ENVIRONMENT_FILES, planner.settings(BUILD_ENVIRONMENT_FILES), {}, sources.locations
    )
    assert built.manifest.counters == {
        "peaks_passages": 18,
        "peaks_embedded": 0,
        "towns_passages": 21,
        "towns_embedded": 0,
    }
    inputs = {BUILT_FILES: built.manifest.artifact_id}
    made = bench.compute(PREPARE_TASKS, planner.settings(PREPARE_TASKS), inputs, sources.locations)
    plugin = with_built_files(plugins("environments")["mixture"].value, made, bench.resources)

    def answered(part: str, said: str) -> str:
        tasks = read_tasks(made, TRAINING, bench.resources)
        return first_turn(plugin, mixed, next(each for each in tasks if each.task_id.startswith(part)), said)

    assert answered("towns/", "Search: mayor of the town").startswith("[1] Bragg: Bragg is a town.")
    assert answered("peaks/", "Search: mayor of the town").startswith("No page was found.")
    assert "Steps left" in answered("lake/", "[up]")


def test_files_follow_from_the_parts_that_build_them_alone(tmp_path: Path) -> None:
    asked = environment(tmp_path)

    def files_of(changed: dict[str, Any]) -> BuiltFilesSettings:
        mixed = config({**asked, "parts": {**asked["parts"], **changed}})
        return Planner(mixed, environment_sources(mixed)).settings(BUILD_ENVIRONMENT_FILES)

    found, peaks = files_of({}), asked["parts"]["peaks"]
    assert isinstance(found.environment, MixtureConfig)
    assert list(found.environment.parts) == ["peaks", "towns"]
    assert list(found.files) == [f"parts.{name}.environment.task_file" for name in ("peaks", "towns")]
    assert files_of({"lake": {"environment": {**LAKE, "rows": [4, 4]}}}) == found
    assert files_of({"peaks": {**peaks, "weight": 2.0}}) == found
    assert files_of({"peaks": {"environment": {**peaks["environment"], "max_turns": 9}}}) == found
    other = {**peaks["environment"], "task_file": write(tmp_path / "peaks", *map(question, range(8)))}
    assert files_of({"peaks": {"environment": other}}) != found


def test_a_mixture_of_parts_without_files_builds_none() -> None:
    parts = {"large": {"environment": {**LAKE, "rows": [4, 4]}}, "small": {"environment": LAKE}}
    mixed = config({"type": "mixture", "parts": parts})
    assert built_inputs(Planner(mixed, environment_sources(mixed))) == {}
