from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.evaluation.history import (
    StageRecord,
    held_out_evaluations,
    learning_curve,
    read_history,
    stage_order,
    stored_records,
    training_cost,
)
from erl_pipeline.plan.column import Column
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.run import RunStore
from tests.stage_records import stage_record


def evaluation(iteration: int, rate: float, checkpoint: str | None = None) -> StageRecord:
    rates = {"greedy_success": rate, "greedy_success_low": rate - 0.1, "greedy_success_high": rate + 0.1}
    return stage_record(
        iteration, "evaluate", {"generated_tokens": 999, "episodes": 99, **rates}, checkpoint=checkpoint
    )


@pytest.fixture
def history() -> list[StageRecord]:
    """Two iterations of 100 and 60 generated tokens and 4 optimizer steps each, evaluated at 0 and 2."""
    start = stage_record(0, "bootstrap", {"optimizer_steps": 700})
    records, policy = [start, evaluation(0, 0.2, id_of(start))], start
    for iteration, tokens in ((1, 100), (2, 60)):
        update = stage_record(iteration, "update_policy", {"optimizer_steps": 1}, checkpoint=id_of(policy))
        policy = stage_record(iteration, "fine_tune", {"optimizer_steps": 3}, checkpoint=id_of(update))
        records += [
            stage_record(iteration, "rollout_shard", {"generated_tokens": tokens, "episodes": 8}, key="0"),
            stage_record(iteration, "generate_rollouts", {"generated_tokens": tokens, "episodes": 8}),
            update,
            policy,
        ]
    asked = stage_record(1, "evaluate_on_request", {"generated_tokens": 999, "episodes": 99})
    return [*records, evaluation(2, 0.7, id_of(policy)), asked]


def id_of(record: StageRecord) -> str:
    return record.manifest.artifact_id


def test_the_curve_shows_success_against_what_training_spent(history: list[StageRecord]) -> None:
    start, end = learning_curve(history)
    assert (start.iteration, start.success) == (0, 0.2)
    assert (start.low, start.high) == pytest.approx((0.1, 0.3))
    assert (start.generated_tokens, start.episodes, start.policy_steps, start.seconds) == (0, 0, 0, 0.0)
    assert (end.iteration, end.success, end.seconds) == (2, 0.7, 8.0)
    assert (end.generated_tokens, end.episodes, end.policy_steps) == (160, 16, 8)


def test_steps_of_an_extractor_are_not_steps_of_the_policy(history: list[StageRecord]) -> None:
    # Both models begin with the same checkpoint; the extractor takes five steps in each iteration.
    extractor = history[0]
    for iteration in (1, 2):
        extractor = stage_record(
            iteration, "update_extractor", {"optimizer_steps": 5}, checkpoint=id_of(extractor)
        )
        history.append(extractor)
    end = learning_curve(sorted(history, key=lambda record: record.iteration))[-1]
    assert (end.policy_steps, end.extractor_steps) == (8, 10)


def test_the_curve_has_what_was_read_and_what_a_teacher_scored(history: list[StageRecord]) -> None:
    history.append(stage_record(1, "score_teacher", {"teacher_tokens": 70}))
    history.append(stage_record(2, "extract_experience", {"prompt_tokens": 30}))
    history.append(stage_record(2, "evaluate_on_request", {"prompt_tokens": 999}))
    end = learning_curve(sorted(history, key=lambda record: record.iteration))[-1]
    assert (end.prompt_tokens, end.teacher_tokens) == (30, 70)


def test_cost_counts_shards_once_and_leaves_out_cold_start_and_evaluation(
    history: list[StageRecord],
) -> None:
    assert training_cost(history, "generated_tokens", up_to=1) == 100
    assert training_cost(history, "optimizer_steps", up_to=2) == 8


def test_evaluations_on_request_are_told_apart(history: list[StageRecord]) -> None:
    assert [record.iteration for record in held_out_evaluations(history)] == [0, 2]
    assert [record.stage for record in history if record.on_request] == ["evaluate_on_request"]


def test_stages_are_in_the_order_of_an_iteration(history: list[StageRecord]) -> None:
    assert stage_order(history) == [
        "bootstrap",
        "rollout_shard",
        "generate_rollouts",
        "update_policy",
        "fine_tune",
        "evaluate",
        "evaluate_on_request",
    ]


def test_a_number_that_was_not_reported_is_none_or_an_error() -> None:
    update = stage_record(1, "update_policy", {"optimizer_steps": 1})
    assert update.number("optimizer_steps") == 1
    assert update.number("entropy") is None
    with pytest.raises(KeyError, match="update_policy has no number entropy"):
        update.required_number("entropy")


def test_a_column_has_a_value_in_its_stage_and_where_it_means_something() -> None:
    loss = Column("update_policy", "policy_loss", "loss", "", only_with="optimizer_steps")
    numbers = {"policy_loss": 0.5, "optimizer_steps": 1}
    assert stage_record(1, "update_policy", numbers).value(loss) == 0.5
    assert stage_record(1, "fine_tune", numbers).value(loss) is None
    assert stage_record(1, "update_policy", {**numbers, "optimizer_steps": 0}).value(loss) is None


def test_artifacts_are_read_by_iteration_and_one_that_is_gone_is_an_error(tmp_path: Path) -> None:
    store, run = ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)).create("lake", {})
    for iteration, stage in ((1, "update_policy"), (None, "bootstrap")):
        recipe = Recipe(stage, 1, {}, {}, 0, kind="checkpoint")
        with store.create(recipe, run=run.name, iteration=iteration) as staging:
            staging.commit()
        run.record(iteration, stage, recipe.artifact_id, kind="checkpoint", reused=False, seconds=0.0)
    read = read_history(store, run)
    assert [(record.iteration, record.stage, record.kind) for record in read] == [
        (0, "bootstrap", "checkpoint"),
        (1, "update_policy", "checkpoint"),
    ]
    run.record(3, "update_policy", "0" * 32, kind="checkpoint", reused=False, seconds=0.0)
    assert len(stored_records(store, run.stages())) == 2
    with pytest.raises(StoreError, match=r"artifact 0{32} of stage update_policy is not in the store"):
        read_history(store, run)
