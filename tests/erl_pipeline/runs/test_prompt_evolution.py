"""A small run of prompt evolution: an instruction that others beat is replaced, and no weight changes."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.episodes.play import PlayedEpisodes
from erl_pipeline.evaluation.history import learning_curve, read_history, training_cost
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.stage import Listener, StageCall
from erl_pipeline.policies.checkpoints import ANY_TYPE, export_checkpoint, instruction_texts
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.on_request import evaluate_on_request
from erl_pipeline.runs.origins import require_offline
from erl_pipeline.runs.state import completed_iterations, latest_checkpoint, policy_makers
from erl_pipeline.serving.policies import StoredPolicies
from erl_pipeline.stages.rollouts import generate_rollouts, try_notes
from erl_pipeline.stages.rollouts.playing import play_with_checkpoint
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.runs.run import RunStore
from storage.serving.aliases import AliasChange
from storage.tables.trajectories import Trajectory, read_trajectories
from tests.erl_pipeline.runs.small_runs import DECOUPLED, SMALL, Notes, go, hashes, ids, small

METHOD = {"type": "prompt_evolution", "tasks": 2, "attempts": 2}
RUN = small(iterations=3, method=METHOD)
WORSE, BETTER = "a ? ? ?", "? b ? ?"
WORTH = {f"notes {WORSE}": 0.5, f"notes {BETTER}": 0.75}
"""Reward of trials whose prompt has these words; without them it is 0.25."""


def rollouts(call: StageCall[Any], *args: Any, **named: Any) -> PlayedEpisodes:
    """All attempts fail. The first shard always proposes one instruction, the second one another."""

    def text(row: Trajectory) -> Trajectory:
        return replace(row, text=(WORSE, BETTER)[call.index["shard"]], finish_reason="stop")

    found = play_with_checkpoint(call, *args, **named)
    return replace(found, rows=[text(row) if row.role == "proposal" else row for row in found.rows])


def trials(call: StageCall[Any], *args: Any, **named: Any) -> PlayedEpisodes:
    def worth(row: Trajectory) -> float:
        return next((reward for words, reward in WORTH.items() if words in row.messages), 0.25)

    found = play_with_checkpoint(call, *args, **named)
    return replace(found, rows=[replace(row, reward=worth(row), success=False) for row in found.rows])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate_rollouts, "play_with_checkpoint", rollouts)
        patch.setattr(try_notes, "play_with_checkpoint", trials)
        folder = tmp_path_factory.mktemp("evolved")
        go(RUN, folder)
        yield folder


def opened(store: Path, iteration: int, stage: str, key: str = "") -> Artifact:
    return ArtifactStore(str(store)).open(ids(store)[StageKey(iteration, stage, key)])


def prompts(artifact: Artifact, file: str = "trajectories.parquet") -> set[str]:
    """The slots that the prompts of first attempts end with."""
    rows = pl.read_parquet(artifact.path(file)).filter(pl.col("role") == "first_attempt")
    return {json.loads(messages)[0]["content"].partition(" notes ")[2] for messages in rows["messages"]}


def test_the_proposal_with_the_highest_mean_is_adopted_and_stays_until_it_is_beaten(store: Path) -> None:
    first, second = (
        pl.read_parquet(opened(store, number, "try_notes").path("note_trials.parquet")) for number in (1, 2)
    )
    assert first.select("text", "reward", "reward_without", "kept").rows() == [
        (WORSE, 0.5, 0.25, True),
        (BETTER, 0.75, 0.25, True),
    ]
    # The policy's own instruction is proposed again, and not tried; the other one does not beat it.
    assert second.select("text", "reward", "reward_without", "kept").rows() == [(WORSE, 0.5, 0.75, False)]
    adopted = [opened(store, number, "adopt_instruction") for number in (1, 2, 3)]
    assert [each.manifest.counters["adopted"] for each in adopted] == [1, 0, 0]
    assert [instruction_texts(each) for each in adopted] == [{ANY_TYPE: BETTER}] * 3
    assert instruction_texts(opened(store, 0, "bootstrap")) == {}


def test_all_arms_have_the_same_tasks_and_seeds(store: Path) -> None:
    rows = pl.read_parquet(opened(store, 1, "try_notes").path("trajectories.parquet"))
    by_arm = rows.group_by("revision_index").agg(pl.struct("task_id", "seed").sort_by("task_id", "seed"))
    arms = by_arm.sort("revision_index").rows()
    assert [number for number, _ in arms] == [0, 1, 2]
    assert arms[0][1] == arms[1][1] == arms[2][1]
    assert len({each["seed"] for each in arms[0][1]}) == 2 * 2
    assert rows["trajectory_id"].n_unique() == 3 * 2 * 2


def test_later_attempts_and_evaluations_see_the_instruction_and_earlier_ones_do_not(store: Path) -> None:
    shards = [opened(store, number, "rollout_shard", "0000") for number in (1, 2, 3)]
    assert [prompts(shard) for shard in shards] == [{"? ? ? ?"}, {BETTER}, {BETTER}]
    held_out = [opened(store, number, "evaluate") for number in (0, 2, 3)]
    assert [prompts(each, "evaluation.parquet") for each in held_out] == [{"? ? ? ?"}, {BETTER}, {BETTER}]


def test_no_weight_ever_changes_and_the_weights_are_stored_once(store: Path) -> None:
    first = opened(store, 0, "bootstrap").path("model/model.safetensors")
    for number in (1, 2, 3):
        weights = opened(store, number, "adopt_instruction").path("model/model.safetensors")
        assert weights.read_bytes() == first.read_bytes()
        assert weights.samefile(first)


def test_tokens_and_episodes_of_trials_are_costs_of_the_run(store: Path) -> None:
    history = read_history(ArtifactStore(str(store)), RunStore(str(store)).open("small"))
    # Two tasks with two attempts, then two trial tasks with two attempts for each of three arms.
    assert training_cost(history, "episodes", 1) == 4 + 12
    # One proposal is tried in the second iteration.
    assert training_cost(history, "episodes", 2) == 4 + 12 + 4 + 8
    tokens = [
        opened(store, 1, stage).manifest.counters["generated_tokens"]
        for stage in ("generate_rollouts", "try_notes")
    ]
    assert min(tokens) > 0
    assert training_cost(history, "generated_tokens", 1) == sum(tokens)
    assert [point.policy_steps for point in learning_curve(history)] == [0, 0, 0]


def test_a_run_that_was_stopped_between_stages_ends_with_the_same_bytes(store: Path, tmp_path: Path) -> None:
    go(RUN, tmp_path, stop_after="try_notes of iteration 2")
    rest = go(RUN, tmp_path)
    assert rest.made[0] == "adopt_instruction of iteration 2"
    assert ids(tmp_path) == ids(store)
    assert hashes(tmp_path) == hashes(store)


def test_the_checkpoint_of_an_iteration_is_found_evaluated_and_exported(store: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(store, tmp_path / "store"))  # The other tests see no evaluation on request.
    entries = RunStore(str(store)).open("small").stages()
    assert policy_makers(RUN) == ("bootstrap", "adopt_instruction")
    assert completed_iterations(RUN, entries) == 3
    found = latest_checkpoint(RUN, entries)
    assert found is not None
    notes = Notes()
    with open_run(RUN, str(store), notes, notes.stop) as run:
        outcome = evaluate_on_request(run, 3, found.artifact_id, None, 0, count=3)
    assert prompts(ArtifactStore(str(store)).open(outcome.artifact_id), "evaluation.parquet") == {BETTER}
    export_checkpoint(ArtifactStore(str(store)), RUN.policy, found.artifact_id, tmp_path / "model")
    exported = json.loads((tmp_path / "model/instruction.json").read_text())
    assert (exported[ANY_TYPE]["text"], exported[ANY_TYPE]["reward"]) == (BETTER, 0.75)


def test_a_policy_with_an_instruction_is_not_served_without_it(store: Path) -> None:
    with StoredPolicies(RUN, str(store), threading.Event(), Listener()) as policies:
        change = AliasChange(
            alias="production",
            checkpoint_id=opened(store, 1, "adopt_instruction").manifest.artifact_id,
            previous=None,
            run="small",
            who="test",
            reason="",
            gate={},
            changed=datetime(2026, 1, 1, tzinfo=UTC),
        )
        with pytest.raises(ConfigError, match="has instructions, which served conversations do not show"):
            policies.open(change)


def test_each_type_of_task_has_an_instruction_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_rollouts, "play_with_checkpoint", rollouts)
    monkeypatch.setattr(try_notes, "play_with_checkpoint", trials)
    board = SMALL["environment"] | {"training_boards": 32, "rows": [3, 4]}
    go(small(iterations=3, method={**METHOD, "instruction_per": "task_type"}, environment=board), tmp_path)
    before: dict[str, str] = {}
    for number in (1, 2, 3):
        rollouts_of = opened(tmp_path, number, "generate_rollouts").manifest.inputs.values()
        rows = read_trajectories(
            [ArtifactStore(str(tmp_path)).open(each).path("trajectories.parquet") for each in rollouts_of]
        )
        for row in rows:
            if row.role == "first_attempt":
                assert f"notes {before.get(row.task_type, '? ? ? ?')}" in row.messages
        tried = pl.read_parquet(opened(tmp_path, number, "try_notes").path("note_trials.parquet"))
        kept = dict(tried.filter("kept").select("task_type", "text").rows())
        adopted = instruction_texts(opened(tmp_path, number, "adopt_instruction"))
        # Instructions for other types of task stay.
        assert adopted == before | kept
        before = adopted
    assert len(before) > 1


def test_stored_rollouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompt_evolution changes no weights"):
        require_offline(small(method=METHOD, **DECOUPLED))
