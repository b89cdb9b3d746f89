"""Plans of runs with replay: the inputs of stages, and that recipes never hold content."""

from __future__ import annotations

from erl_pipeline.runs.run_plans import plan_branch, plan_offline
from storage.runs.documents import BranchOrigin, OfflineOrigin
from tests.erl_pipeline.runs.planned_runs import DECOUPLED, SOURCES, at, config, ids, inputs, plan, stages

SHARDS = ["rollout_shard 0000", "rollout_shard 0001", "generate_rollouts"]
REPLAYING = ("method=rlvr", "replay=on")
LEARNING = ["index_experience", "update_policy"]


def test_the_stages_of_a_run() -> None:
    made = plan(*REPLAYING)
    assert stages(made, 1) == [*SHARDS, *LEARNING]
    assert stages(made, 2) == ["select_replay", *SHARDS, *LEARNING, "evaluate"]
    assert stages(plan("method=rlvr"), 2) == [
        *SHARDS,
        "update_policy",
        "evaluate",
    ]


def test_erl_replays_what_its_first_attempts_were() -> None:
    made = plan("replay=on", "distillation=off")
    assert stages(made, 2) == [
        "select_replay",
        *SHARDS,
        "index_experience",
        "index_memory",
        "update_policy",
        "evaluate",
    ]
    assert at(made, 2, "index_experience").recipe.settings["role"] == "first_attempt"
    assert inputs(made, 3, "rollout_shard", "0000") == {
        "checkpoint": "update_policy of iteration 2",
        "tasks": "prepare_tasks",
        "memory": "index_memory of iteration 2",
        "samples": "select_replay of iteration 3",
    }
    assert inputs(made, 3, "update_policy") == {
        "checkpoint": "update_policy of iteration 2",
        "rollouts": "generate_rollouts of iteration 3",
        "replay": "select_replay of iteration 3",
    }


def test_without_replay_no_recipe_knows_of_it() -> None:
    assert ids(plan()) == ids(plan("replay=off"))
    assert all("experience" not in node.recipe.inputs for node in plan().nodes)


def test_what_goes_into_what() -> None:
    made = plan(*REPLAYING)
    assert inputs(made, 3, "select_replay") == {
        "checkpoint": "update_policy of iteration 2",
        "tasks": "prepare_tasks",
        "experience": "index_experience of iteration 2",
    }
    assert inputs(made, 3, "rollout_shard", "0001")["samples"] == "select_replay of iteration 3"
    assert "samples" not in inputs(made, 1, "rollout_shard", "0001")
    assert inputs(made, 3, "index_experience") == {
        "rollouts": "generate_rollouts of iteration 3",
        "replay": "select_replay of iteration 3",
        "experience": "index_experience of iteration 2",
    }
    assert inputs(made, 1, "index_experience") == {"rollouts": "generate_rollouts of iteration 1"}
    assert inputs(made, 3, "update_policy")["replay"] == "select_replay of iteration 3"


def test_log_probabilities_of_the_trainer_need_its_policy() -> None:
    made = plan(*REPLAYING, "replay.importance=trainer")
    assert inputs(made, 2, "index_experience")["checkpoint"] == "update_policy of iteration 1"
    assert at(made, 2, "index_experience").stage.needs == "training"


def test_with_lag_the_policy_that_samples_scores_too() -> None:
    made = plan(*REPLAYING, "pipeline.lag=1", DECOUPLED)
    assert inputs(made, 3, "select_replay")["checkpoint"] == "update_policy of iteration 1"
    assert inputs(made, 3, "select_replay")["experience"] == "index_experience of iteration 2"
    assert inputs(made, 3, "update_policy")["checkpoint"] == "update_policy of iteration 2"


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short, long = (plan(*REPLAYING, f"iterations={count}", "evaluation.every=1") for count in (3, 6))
    assert ids(short).items() <= ids(long).items()
    assert len(set(ids(long).values())) == len(long.nodes)


def test_what_the_loss_alone_follows_from_changes_no_selection() -> None:
    before, after = (
        ids(plan(*REPLAYING)),
        ids(plan(*REPLAYING, "replay.shaping_beta=off")),
    )
    changed = sorted(
        place.stage for place in before if place.iteration == 2 and before[place] != after[place]
    )
    assert changed == ["evaluate", "update_policy"]


def test_settings_that_a_sampler_does_not_read_are_not_in_its_recipe() -> None:
    def second(*settings: str) -> str:
        return ids(plan(*REPLAYING, "replay.sampler=uniform", *settings))[
            at(plan(*REPLAYING), 2, "select_replay").place
        ]

    assert second() == second("replay.buckets.sigma=2.0") == second("replay.entropy=nll")
    assert second() != second("replay.max_age=3")


def test_a_branch_shares_what_was_replayed() -> None:
    before = config(*REPLAYING)
    after = config(*REPLAYING, "replay.shaping_beta=off")
    origin = BranchOrigin(run="small", iteration=2, stage="update_policy")
    source = plan(*REPLAYING)
    made = plan_branch(after, SOURCES, source, before, origin, iterations=3)
    assert at(made, 2, "select_replay").artifact_id == at(source, 2, "select_replay").artifact_id
    assert inputs(made, 2, "update_policy")["replay"] == "select_replay of iteration 2"
    # The branch continues from the experience that it shares, with its own policy.
    assert inputs(made, 3, "select_replay")["experience"] == "index_experience of iteration 2"
    assert ids(made)[at(source, 3, "select_replay").place] != at(source, 3, "select_replay").artifact_id


def test_stored_rollouts_are_trained_without_replay() -> None:
    source = plan(*REPLAYING)
    rollouts = {i: at(source, i, "generate_rollouts").artifact_id for i in (1, 2)}
    origin = OfflineOrigin(
        run="small", first_iteration=1, last_iteration=2, checkpoint_id=None, evaluates=False
    )
    offline = config(*REPLAYING, DECOUPLED, "iterations=2")
    made = plan_offline(offline, SOURCES, origin, rollouts, source.states[0], iterations=2)
    assert stages(made, 2) == ["measure_staleness", "update_policy"]
