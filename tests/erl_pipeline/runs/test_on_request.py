"""Evaluations on request of a small run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.plan import Place
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.on_request import evaluate_on_request
from storage.errors import InputError
from tests.erl_pipeline.runs.small_runs import Notes, go, ids, small


def requested(store: Path, samples: int = 0, **asked: Any) -> StageOutcome:
    """Evaluate the last checkpoint of the run."""
    notes = Notes()
    checkpoint = ids(store)[Place(2, "fine_tune", "")]
    with open_run(small(), str(store), notes, notes.stop) as opened:
        return evaluate_on_request(opened, 2, checkpoint, None, samples, **asked)


def test_a_checkpoint_is_evaluated_on_as_many_tasks_as_asked_for(store: Path) -> None:
    outcome = requested(store, samples=1, count=3)
    assert outcome.counters["episodes"] == 3 * 2
    assert (outcome.stage, outcome.iteration) == ("evaluate_on_request", 2)
    assert outcome.artifact_id in ids(store).values()


def test_the_same_question_is_answered_from_the_store(store: Path) -> None:
    first, second = requested(store, count=3), requested(store, count=3)
    assert (first.reused, second.reused) == (False, True)
    assert first.artifact_id == second.artifact_id


def test_the_tasks_of_a_file_are_taken(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task_id": "mine", "board": ["SFG", "HHF", "FFF"], "max_steps": 2}\n')
    outcome = requested(store, file=file)
    assert outcome.counters["episodes"] == 1
    moved = tmp_path / "elsewhere.jsonl"
    file.rename(moved)
    assert requested(store, file=moved).reused
    with pytest.raises(InputError, match=r"tasks\.jsonl"):
        requested(store, file=file)


def test_training_goes_on_as_if_nothing_had_been_asked(store: Path) -> None:
    requested(store, count=3)
    assert go(small(), store).made == []
