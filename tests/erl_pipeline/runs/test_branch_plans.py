"""Plans of runs that continue another: what is shared, what is refused, and training on stored rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan
from erl_pipeline.runs.run_plans import plan_branch, plan_offline, plan_run, shared_stages
from storage.errors import ConfigError, InputError
from storage.memory.versions import ForgetRequest
from storage.runs.documents import BranchOrigin, OfflineOrigin
from tests.erl_pipeline.runs.planned_runs import DECOUPLED, SOURCES, at, config, ids, inputs, plan, stages


def branch(
    iteration: int,
    stage: str,
    *settings: str,
    source: Plan | None = None,
    source_config: RunConfig | None = None,
    iterations: int = 3,
    requests: dict[int, tuple[ForgetRequest, ...]] | None = None,
) -> Plan:
    """A branch of the small run from a stage of an iteration, with other settings."""
    return plan_branch(
        config(*settings),
        SOURCES,
        source or plan(),
        source_config or config(),
        BranchOrigin(run="small", iteration=iteration, stage=stage),
        iterations=iterations,
        requests=requests,
    )


def kept(made: Plan, source: Plan, iteration: int) -> Sequence[str]:
    """Stages of an iteration that are shared."""
    theirs = set(ids(source).values())
    return [node.stage.name for node in made.of_iteration(iteration) if node.artifact_id in theirs]


def test_a_branch_has_the_artifacts_before_its_stage_and_its_own_from_there() -> None:
    made = branch(2, "update_policy", "objective.clip_low=0.1")
    for iteration in (0, 1):
        assert kept(made, plan(), iteration) == [node.stage.name for node in plan().of_iteration(iteration)]
    assert kept(made, plan(), 2) == [
        "rollout_shard",
        "rollout_shard",
        "generate_rollouts",
        "index_memory",
        "build_distillation",  # the same rows of the same rollouts
    ]
    assert kept(made, plan(), 3) == []
    assert inputs(made, 2, "update_policy") == inputs(plan(), 2, "update_policy")


def test_a_branch_with_equal_settings_is_the_run() -> None:
    assert ids(branch(2, "fine_tune")) == ids(plan())


def test_the_shards_are_chosen_by_the_name_of_what_they_are_part_of() -> None:
    shared = shared_stages(plan(), 2, "generate_rollouts")
    assert {node.iteration for node in shared} == {None, 0, 1}
    made = branch(2, "generate_rollouts", "sampling.temperature=0.5")
    assert kept(made, plan(), 2) == []
    assert kept(made, plan(), 1) == [node.stage.name for node in plan().of_iteration(1)]


def test_another_stage_than_the_iteration_has_is_refused() -> None:
    with pytest.raises(
        InputError,
        match="--from replay: the stages of iteration 1 are generate_rollouts, index_memory, update_policy, "
        "build_distillation, fine_tune",
    ):
        branch(1, "replay")


def test_a_setting_that_something_shared_was_made_with_is_refused_naming_its_stage() -> None:
    with pytest.raises(
        ConfigError,
        match=r"the settings change index_memory, which comes before update_policy in iteration 2 and is "
        r"shared \(method\.memory\.max_entries: null -> 5\); begin the branch there with --from "
        "index_memory, or in a later iteration",
    ):
        branch(2, "update_policy", "method.memory.max_entries=5")
    branch(2, "index_memory", "method.memory.max_entries=5")


def test_what_is_made_once_for_all_iterations_cannot_be_changed_by_a_branch() -> None:
    with pytest.raises(
        ConfigError,
        match=r"the settings change prepare_tasks, .* shared \(evaluation\.tasks: \d+ -> 8\); it is made "
        "once for all iterations: train a new run with `train --name`",
    ):
        branch(2, "update_policy", "evaluation.tasks=8")


def test_a_branch_of_a_branch_shares_with_both() -> None:
    first = branch(2, "update_policy", "objective.clip_low=0.1")
    second = branch(
        3,
        "fine_tune",
        "objective.clip_low=0.1",
        "fine_tune.steps=5",
        source=first,
        source_config=config("objective.clip_low=0.1"),
    )
    assert at(second, 1, "fine_tune") == at(plan(), 1, "fine_tune")
    assert at(second, 3, "update_policy") == at(first, 3, "update_policy")
    assert at(second, 3, "fine_tune").artifact_id not in ids(first).values()


def test_what_was_forgotten_in_a_shared_iteration_stays_forgotten() -> None:
    requests: dict[int, tuple[ForgetRequest, ...]] = {2: (ForgetRequest("request"),)}
    source = plan_run(config(), SOURCES, requests=requests)
    made = branch(2, "update_policy", "objective.clip_low=0.1", source=source, requests=requests)
    assert at(made, 2, "forget_memory", "0000") == at(source, 2, "forget_memory", "0000")
    assert inputs(made, 3, "rollout_shard", "0000")["memory"] == "forget_memory 0000 of iteration 2"


def test_a_lag_of_the_branch_samples_from_checkpoints_of_the_run() -> None:
    lagged = [DECOUPLED, "pipeline.lag=1"]
    source = plan(DECOUPLED)
    made = branch(3, "generate_rollouts", *lagged, source=source, source_config=config(DECOUPLED))
    assert inputs(made, 3, "rollout_shard", "0000")["checkpoint"] == "fine_tune of iteration 1"
    assert inputs(made, 3, "update_policy")["checkpoint"] == "fine_tune of iteration 2"


def test_the_window_of_a_branch_reaches_into_the_run_it_comes_from() -> None:
    made = branch(3, "fine_tune", "distillation.window=3")
    assert inputs(made, 3, "fine_tune") == {
        "checkpoint": "update_policy of iteration 3",
        "dataset": "build_distillation of iteration 3",
        "dataset-0001": "build_distillation of iteration 2",
        "dataset-0002": "build_distillation of iteration 1",
    }
    # Shared stages keep the recipes of the run.
    assert ids(made.through(2)) == ids(plan().through(2))


def test_a_branch_with_an_equal_window_is_the_run() -> None:
    window = "distillation.window=2"
    source, settings = plan(window), config(window)
    assert ids(branch(2, "fine_tune", window, source=source, source_config=settings)) == ids(source)


def test_a_branch_that_ends_before_it_begins_is_the_run() -> None:
    made = branch(3, "update_policy", "objective.clip_low=0.1", iterations=1)
    assert made.iterations == 1
    assert ids(made) == ids(plan().through(1))


ROLLOUTS = {4: "rollouts-4", 5: "rollouts-5"}


def offline(
    *settings: str, checkpoint_id: str | None = None, evaluates: bool = True, own: bool = False
) -> Plan:
    """Training on the rollouts of iterations 4 and 5 of the small run; with `own`, on imported ones."""
    origin = OfflineOrigin(
        run="small", first_iteration=4, last_iteration=5, checkpoint_id=checkpoint_id, evaluates=evaluates
    )
    beginning = None if own else plan().states[0]
    return plan_offline(config(DECOUPLED, *settings), SOURCES, origin, ROLLOUTS, beginning, iterations=2)


def test_offline_each_iteration_measures_staleness_and_learns_without_memory() -> None:
    made = offline()
    assert stages(made, 0) == ["evaluate"]
    assert stages(made, 1) == ["measure_staleness", "update_policy", "build_distillation", "fine_tune"]
    assert stages(made, 2)[-1] == "evaluate"
    for iteration, rollouts in ((1, "rollouts-4"), (2, "rollouts-5")):
        for stage in ("measure_staleness", "update_policy", "build_distillation"):
            assert at(made, iteration, stage).recipe.inputs["rollouts"] == rollouts
    first = plan().states[0].models["policy"]
    assert at(made, 1, "measure_staleness").recipe.inputs["checkpoint"] == first
    assert inputs(made, 2, "measure_staleness")["checkpoint"] == "fine_tune of iteration 1"
    assert made.states[2].memories == {}


def test_an_offline_window_has_the_datasets_of_the_run_itself() -> None:
    made = offline("distillation.window=3")
    assert inputs(made, 2, "fine_tune") == {
        "checkpoint": "update_policy of iteration 2",
        "dataset": "build_distillation of iteration 2",
        "dataset-0001": "build_distillation of iteration 1",
    }


def test_offline_training_begins_with_the_checkpoint_that_is_given() -> None:
    made = offline(
        "objective.kl_coefficient=0.1", "objective.kl_estimator=k3", checkpoint_id="fine-tuned", own=False
    )
    update = at(made, 1, "update_policy").recipe.inputs
    assert (update["checkpoint"], update["reference"]) == ("fine-tuned", "fine-tuned")
    assert at(made, 2, "update_policy").recipe.inputs["reference"] == "fine-tuned"
    assert at(made, 0, "evaluate").recipe.inputs["checkpoint"] == "fine-tuned"


def test_imported_rollouts_are_trained_on_from_a_beginning_of_the_run_itself() -> None:
    made = offline(own=True)
    assert stages(made, 0) == ["prepare_tasks", "bootstrap", "evaluate"]
    assert inputs(made, 1, "update_policy")["checkpoint"] == "bootstrap"


def test_offline_without_evaluation_there_is_none() -> None:
    assert "evaluate" not in {node.stage.name for node in offline(evaluates=False).nodes}


def test_the_method_decides_what_is_learned_offline() -> None:
    assert stages(offline("method=rlvr"), 1) == ["measure_staleness", "update_policy"]
