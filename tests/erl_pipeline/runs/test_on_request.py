"""Evaluations outside the training of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.history import held_out_evaluations, read_history
from erl_pipeline.evaluation.history import test_evaluations as evaluations_on_test
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.on_request import evaluate_on_request, evaluate_on_test
from erl_pipeline.runs.planning import plan_for
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import SMALL, Notes, go, ids, small


def requested(store: Path, samples: int = 0, **asked: Any) -> StageOutcome:
    """Evaluate the last checkpoint of the run."""
    notes = Notes()
    checkpoint = ids(store)[StageKey(2, "fine_tune", "")]
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


def test_evaluations_on_other_tasks_stay_beside_each_other(store: Path) -> None:
    """Their tasks have one place in the ledger, and the evaluations one for each."""
    asked = {requested(store, count=count).artifact_id for count in (3, 2)}
    history = read_history(ArtifactStore(str(store)), RunStore(str(store)).open("small"))
    assert {each.manifest.artifact_id for each in history if each.stage == "evaluate_on_request"} == asked


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


SPLIT = small(environment={**SMALL["environment"], "test_boards": 3})


def examine(config: RunConfig, store: Path) -> Notes:
    """Evaluate the run's checkpoints on the test tasks."""
    notes = Notes()
    with open_run(config, str(store), notes, notes.stop) as opened:
        evaluate_on_test(opened, plan_for(str(store), opened.run, config, config.iterations))
    return notes


@pytest.fixture(scope="module")
def split_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a trained run that has test tasks, and its evaluation on them."""
    store = tmp_path_factory.mktemp("split") / "store"
    go(SPLIT, store)
    notes = examine(SPLIT, store)
    assert notes.made == ["test_tasks", "evaluate_on_test of iteration 0", "evaluate_on_test of iteration 2"]
    return store


def test_checkpoints_with_a_held_out_evaluation_are_evaluated_on_the_test_tasks(
    split_store: Path,
) -> None:
    history = read_history(ArtifactStore(str(split_store)), RunStore(str(split_store)).open("small"))
    on_test = evaluations_on_test(history)
    assert [record.iteration for record in on_test] == [0, 2]
    # Three greedy attempts, and a sampled one of each task, as on the two held-out tasks.
    assert [record.counters["episodes"] for record in on_test] == [6, 6]
    assert [record.counters["episodes"] for record in held_out_evaluations(history)] == [4, 4]


def test_the_same_is_not_evaluated_again_and_training_knows_nothing_of_it(split_store: Path) -> None:
    assert examine(SPLIT, split_store).made == []
    assert go(SPLIT, split_store).made == []
    recorded = ids(split_store)
    artifacts = ArtifactStore(str(split_store))
    tasks = recorded[StageKey(0, "test_tasks", "")]
    for place, artifact_id in recorded.items():
        uses = tasks in artifacts.open(artifact_id).manifest.inputs.values()
        assert uses == (place.stage == "evaluate_on_test")


def test_a_run_without_the_split_is_refused(store: Path) -> None:
    with pytest.raises(InputError, match=r"set environment\.test_boards: 256"):
        examine(small(), store)
