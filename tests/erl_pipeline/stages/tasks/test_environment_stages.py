"""The search index of HotpotQA as an artifact: it is built once, and opened by all stages that play the
tasks."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.environments.hotpotqa import ENVIRONMENT
from erl_pipeline.environments.hotpotqa.index import index_settings
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import Dependencies, EnvironmentPlugin, Transition
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.stages.names import TRAINING
from erl_pipeline.stages.tasks.environment_stages import (
    BUILD_ENVIRONMENT_FILES,
    BUILT_FILES,
    BuiltFilesSettings,
    ready_to_open,
    with_built_files,
)
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS, TaskSettings, read_tasks
from storage.errors import InputError
from tests.erl_pipeline.environments.hotpotqa.small_file import mayor_task, write
from tests.erl_pipeline.runs.planned_runs import SOURCES, ids, inputs, plan, stages
from tests.erl_pipeline.stages.calls import Bench

WORDS = HotpotQAConfig(search="full_text", tool_format="plain")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def one_search(plugin: EnvironmentPlugin[HotpotQAConfig], config: HotpotQAConfig, query: str) -> Transition:
    """Play the first turn of an attempt at the mayor's question."""

    async def turn() -> Transition:
        environment = plugin.open(config, mayor_task(config))
        await environment.reset()
        try:
            return await environment.step(AssistantTurn(f"Search: {query}"))
        finally:
            await environment.close()

    return asyncio.run(turn())


def test_tasks_are_opened_with_the_index_that_they_name(bench: Bench, tmp_path: Path) -> None:
    config = WORDS.model_copy(update={"task_file": write(tmp_path)})
    digest = hashlib.sha256(Path(str(config.task_file)).read_bytes()).hexdigest()
    files, locations = {"task_file": digest}, {digest: str(config.task_file)}
    built = bench.compute(
        BUILD_ENVIRONMENT_FILES,
        BuiltFilesSettings(environment=index_settings(WORDS), files=files),
        locations=locations,
    )
    assert built.manifest.counters == {"passages": 21, "embedded": 0}
    assert (built.manifest.kind, built.manifest.determinism) == ("environment_files", "approximate")
    made = bench.compute(
        PREPARE_TASKS,
        TaskSettings(environment=WORDS, files=files, held_out=2, seed=0),
        {BUILT_FILES: built.manifest.artifact_id},
        locations,
    )
    assert len(read_tasks(made, TRAINING, bench.resources)) == 6
    plugin = with_built_files(ENVIRONMENT, made, bench.resources)
    turn = one_search(plugin, config, "a town on the River Ode")
    assert turn.metrics["supporting_found"] == 2.0
    assert turn.messages[0]["content"].startswith("[1] River Ode: The River Ode is in Norland.")


def test_an_environment_is_made_ready_outside_a_run(bench: Bench, tmp_path: Path) -> None:
    config = WORDS.model_copy(update={"task_file": write(tmp_path)})
    folder = tmp_path / "index"
    folder.mkdir()
    plugin = ready_to_open(ENVIRONMENT, config, bench.resources, folder)
    assert one_search(plugin, config, "mayor").metrics["supporting_found"] == 1.0
    with pytest.raises(InputError, match="searches an index that is built beforehand"):
        ENVIRONMENT.open(config, mayor_task(config))
    without = replace(ENVIRONMENT, dependencies=Dependencies())
    assert ready_to_open(without, config, bench.resources, folder) is without


def test_runs_share_the_index_whatever_their_seeds_and_tasks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = replace(SOURCES, files={"questions.json": "f" * 64}, weights="w" * 64)
    monkeypatch.setattr("tests.erl_pipeline.runs.planned_runs.SOURCES", sources)
    asked = {
        "environment": {"type": "hotpotqa", "task_file": "questions.json"},
        "policy": {"type": "pretrained", "model": "/models/llama"},
    }
    made = plan(**asked)
    assert stages(made, 0)[:2] == ["build_environment_files", "prepare_tasks"]
    assert inputs(made, 0, "prepare_tasks") == {BUILT_FILES: "build_environment_files"}

    def shares(*settings: str) -> tuple[bool, bool]:
        """Whether a run with these settings has the same index, and the same tasks."""
        other = ids(plan(*settings, **asked))
        index, tasks = (
            artifact_id == other[place]
            for place, artifact_id in ids(made).items()
            if place.stage in ("build_environment_files", "prepare_tasks")
        )
        return index, tasks

    assert shares() == (True, True)
    assert shares("seed=5") == (True, False)
    assert shares("environment.max_turns=9") == (True, False)
    assert shares("environment.search=vector") == (True, False)
    assert shares("environment.search=full_text") == (False, False)
    assert shares("environment.embedded_characters=50") == (False, False)
