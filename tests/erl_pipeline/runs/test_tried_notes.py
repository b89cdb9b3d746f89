"""A small run that tries new notes before its memory keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.history import read_history, training_cost
from erl_pipeline.plan.plan import StageKey
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.trajectories import read_trajectories
from tests.erl_pipeline.runs.small_runs import ids, small
from tests.erl_pipeline.runs.test_selected_runs import MIXTURE
from tests.erl_pipeline.runs.unscored_runs import NOTE, go_with_outcomes


def run(**memory: Any) -> RunConfig:
    return small(
        method={"type": "erl", "memory": {"withhold": 0.0, **memory}},
        rollouts={"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 2},
    )


@pytest.mark.parametrize(("margin", "kept"), [(-2.0, True), (2.0, False)])
def test_a_memory_holds_the_notes_that_passed_their_trials(
    margin: float, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards are within 0 and 1: all pass with a margin of -2, and none with one of 2."""
    config = run(trials={"tasks": 2, "attempts": 1, "margin": margin})
    go_with_outcomes(config, tmp_path, monkeypatch, retried=True)

    def opened(iteration: int, stage: str) -> Artifact:
        return ArtifactStore(str(tmp_path)).open(ids(tmp_path)[StageKey(iteration, stage, "")])

    first, second = (opened(iteration, "try_notes") for iteration in (1, 2))
    [note] = pl.read_parquet(first.path("note_trials.parquet")).to_dicts()
    assert (note["text"], note["copies"], note["successes"]) == (NOTE, 8, 4)
    assert note["kept"] == kept
    # Two tasks, each without the note and with it.
    assert (len(note["task_ids"]), first.manifest.counters["episodes"]) == (2, 4)
    assert opened(1, "index_memory").manifest.counters["entries"] == int(kept)
    # A note that the memory has is not tried again, and one that failed is.
    assert second.manifest.counters["notes_tried"] == int(not kept)
    assert opened(2, "index_memory").manifest.counters["entries"] == int(kept)
    spent = training_cost(
        read_history(ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)).open("small")), "episodes", 1
    )
    assert spent == 8 + 4


def test_in_a_mixture_notes_are_tried_with_the_prompts_of_their_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompts of chats have words that the tiny policy does not know."""
    config = small(
        environment=MIXTURE,
        method={"type": "erl", "memory": {"withhold": 0.0, "trials": {"tasks": 2, "attempts": 1}}},
        rollouts={"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 2},
    )
    go_with_outcomes(config, tmp_path, monkeypatch, retried=True)
    tried = ArtifactStore(str(tmp_path)).open(ids(tmp_path)[StageKey(1, "try_notes", "")])
    asked = [json.loads(row.messages)[0] for row in read_trajectories([tried.path("trajectories.parquet")])]
    assert asked
    assert {message["role"] for message in asked} == {"user"}
    assert all(" notes " in message["content"] for message in asked)


def test_examples_are_not_tried() -> None:
    with pytest.raises(ValidationError, match="examples: on with trials: on"):
        run(trials=True, examples=True)
