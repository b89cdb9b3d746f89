from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.evaluation.history import learning_curve, of_stage, read_history, training_cost
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.run import Run, RunStore


def commit(
    store: ArtifactStore,
    run: Run,
    stage: str,
    iteration: int | None,
    counters: dict[str, int] | None = None,
    metrics: dict[str, float] | None = None,
) -> None:
    recipe = Recipe(stage, 1, {"iteration": iteration}, {}, 0)
    with store.create(recipe, run=run.name, iteration=iteration) as staging:
        staging.commit(counters=counters, metrics=metrics)
    run.record(iteration, stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=0.0)


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[ArtifactStore, Run]:
    """Two iterations of 100 and 60 generated tokens and 4 optimizer steps each, evaluated at 0 and 2."""
    store = ArtifactStore(str(tmp_path))
    run = RunStore(str(tmp_path)).create("lake", {})

    def evaluate(iteration: int, rate: float) -> None:
        metrics = {
            "greedy_success": rate,
            "greedy_success_low": rate - 0.1,
            "greedy_success_high": rate + 0.1,
        }
        commit(store, run, "evaluate", iteration, {"generated_tokens": 999, "episodes": 99}, metrics)

    commit(store, run, "bootstrap", None, {"optimizer_steps": 700})
    evaluate(0, 0.2)
    for iteration, tokens in ((1, 100), (2, 60)):
        commit(store, run, "rollout_shard", iteration, {"generated_tokens": tokens, "episodes": 8})
        commit(store, run, "generate_rollouts", iteration, {"generated_tokens": tokens, "episodes": 8})
        commit(store, run, "update_policy", iteration, {"optimizer_steps": 1})
        commit(store, run, "fine_tune", iteration, {"optimizer_steps": 3})
    evaluate(2, 0.7)
    commit(store, run, "evaluate_on_request", 1, {"generated_tokens": 999, "episodes": 99})
    return store, run


def test_the_curve_shows_success_against_what_training_spent(recorded: tuple[ArtifactStore, Run]) -> None:
    start, end = learning_curve(read_history(*recorded))
    assert (start.iteration, start.success, start.low, start.high) == (
        0,
        0.2,
        pytest.approx(0.1),
        pytest.approx(0.3),
    )
    assert (start.generated_tokens, start.episodes, start.optimizer_steps, start.seconds) == (0, 0, 0, 0.0)
    assert (end.iteration, end.success) == (2, 0.7)
    assert (end.generated_tokens, end.episodes, end.optimizer_steps) == (160, 16, 8)


def test_cost_counts_shards_once_and_leaves_out_cold_start_and_evaluation(
    recorded: tuple[ArtifactStore, Run],
) -> None:
    history = read_history(*recorded)
    assert training_cost(history, "generated_tokens", up_to=1) == 100
    assert training_cost(history, "optimizer_steps", up_to=2) == 8


def test_what_came_before_the_first_iteration_is_iteration_zero(recorded: tuple[ArtifactStore, Run]) -> None:
    history = read_history(*recorded)
    assert [record.iteration for record in of_stage(history, "bootstrap")] == [0]
    assert [record.iteration for record in of_stage(history, "evaluate")] == [0, 2]


def test_a_number_that_was_not_reported_is_none_or_an_error(recorded: tuple[ArtifactStore, Run]) -> None:
    update = of_stage(read_history(*recorded), "update_policy")[0]
    assert update.number("optimizer_steps") == 1
    assert update.number("entropy") is None
    with pytest.raises(KeyError, match="update_policy has no number entropy"):
        update.required_number("entropy")


def test_a_ledger_that_names_a_missing_artifact_is_an_error(recorded: tuple[ArtifactStore, Run]) -> None:
    store, run = recorded
    run.record(3, "update_policy", "0" * 32, kind="checkpoint", reused=False, seconds=0.0)
    with pytest.raises(StoreError, match=r"artifact 0{32} of stage update_policy is not in the store"):
        read_history(store, run)
