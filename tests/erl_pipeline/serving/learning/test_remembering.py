"""The memory of a served run over several nights, whose reflections are written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.embedding import SentenceEmbedder
from erl_pipeline.serving.learning.remembering import remember
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.reflect_on_feedback import ASKED, REFLECT_ON_FEEDBACK
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.versions import latest_version
from storage.memory.view import ReflectionMemory
from storage.runs.run import Run, RunStore
from storage.tables.trajectories import write_trajectories
from tests.erl_pipeline.runs.small_runs import small
from tests.erl_pipeline.stages.extractor.rows import attempt


def night(store: ArtifactStore, number: int, note: str) -> Run:
    """A run that has written one reflection."""
    row = attempt(
        number,
        role="reflection",
        task_type="chat",
        parent_trajectory_id=f"conversation {number}",
        text=note,
        task_payload=json.dumps({ASKED: f"question {number}"}),
    )
    name = f"small-night-{number:03d}"
    recipe = Recipe(REFLECT_ON_FEEDBACK.name, 1, {}, {}, number, kind="trajectories")
    with store.create(recipe, run=name, iteration=1) as staging:
        staging.commit(rows={TRAJECTORIES: write_trajectories(staging.path / TRAJECTORIES, [row])})
    run = RunStore(store.uri).create(name, {})
    with run.lock():
        run.record(1, recipe.stage, recipe.artifact_id, kind="trajectories", reused=False, seconds=0.0)
    return run


def remembered(folder: Path, config: RunConfig, notes: list[str]) -> list[str]:
    """The notes that are left after a night for each of these, sorted."""
    store = ArtifactStore(str(folder))
    served = RunStore(store.uri).create("small", {})
    for number, note in enumerate(notes, start=1):
        of_night = night(store, number, note)
        with served.lock():
            remember(store, served, of_night, config)
    view = ReflectionMemory(store.uri, "small", store, SentenceEmbedder()).at(latest_version(served))
    return sorted(hit.entry.text for hit in view.search(["question"], top_k=9)[0])


@pytest.mark.parametrize(
    ("notes", "left"),
    [
        (["a", "b", "c"], ["b", "c"]),
        (["c", "b", "a"], ["a", "b"]),
        (["b", "a", "c"], ["a", "c"]),
        (["a", "b", "a", "c"], ["a", "c"]),
    ],
)
def test_the_note_of_the_earliest_night_leaves_a_full_memory(
    tmp_path: Path, notes: list[str], left: list[str]
) -> None:
    """There is room for two; a note that is written again is as new as that night."""
    config = small(distillation=False, method={"type": "erl", "memory": {"max_entries": 2}})
    assert remembered(tmp_path, config, notes) == left
