"""Branches and offline runs of a small run: what they share, and that a stopped one continues with the same
result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from erl_pipeline.config.self_distillation import DemonstrationConfig, SelfDistillationConfig
from erl_pipeline.evaluation.history import read_history
from erl_pipeline.evaluation.samples import count_samples
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.driver import OpenRun, open_run
from erl_pipeline.runs.origins import begin_branch, begin_offline, require_offline
from erl_pipeline.runs.planning import plan_as_made, plan_for
from erl_pipeline.runs.state import summarize_run
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError
from storage.runs.documents import BranchOrigin, OfflineOrigin, read_origin
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import DECOUPLED, Notes, go, hashes, ids, small

BRANCH = BranchOrigin(run="small", iteration=2, stage="update_policy")
OFFLINE = OfflineOrigin(run="small", first_iteration=1, last_iteration=2, checkpoint_id=None, evaluates=True)
OTHER = {"name": "branch", "optimizer": {"learning_rate": 0.005}}
AS_BRANCH = partial(begin_branch, origin=BRANCH)
AS_OFFLINE = partial(begin_offline, origin=OFFLINE)


def begun(store: Path, begin: Callable[[OpenRun], None], **changes: object) -> list[tuple[StageKey, bool]]:
    """The ledger of a run that was created and not trained."""
    notes = Notes()
    with open_run(small(**changes), str(store), notes, notes.stop) as opened:
        begin(opened)
        return [
            (StageKey(each.iteration or 0, each.stage, each.key), each.reused) for each in opened.entries()
        ]


def test_a_branch_begins_with_what_it_shares(store: Path) -> None:
    shared = begun(store, AS_BRANCH, **OTHER)
    stages = [(place.iteration, place.stage) for place, _ in shared]
    assert stages == [
        (0, "prepare_tasks"),
        (0, "bootstrap"),
        (0, "evaluate"),
        *((1, place.stage) for place in ids(store) if place.iteration == 1),
        *((2, stage) for stage in ("rollout_shard", "rollout_shard", "generate_rollouts", "index_memory")),
    ]
    assert all(reused for _, reused in shared)
    assert read_origin(str(store), "branch") == BRANCH
    assert begun(store, AS_BRANCH, **OTHER) == shared


def test_a_branch_computes_what_comes_after(store: Path) -> None:
    notes = go(small(**OTHER), store, begin=AS_BRANCH)
    assert notes.made == [f"{stage} of iteration 2" for stage in ("update_policy", "fine_tune", "evaluate")]
    before, after = ids(store), ids(store, "branch")
    assert before.keys() == after.keys()
    changed = [place.stage for place, made in before.items() if after[place] != made]
    assert changed == ["update_policy", "fine_tune", "evaluate"]


@pytest.mark.parametrize("stop_after", ["update_policy of iteration 2", "rollout_shard 0000 of iteration 3"])
def test_a_branch_goes_on_as_if_it_had_not_been_stopped(
    store: Path, trained: Path, tmp_path: Path, stop_after: str
) -> None:
    undisturbed = Path(shutil.copytree(trained, tmp_path / "undisturbed"))
    go(small(**OTHER), undisturbed, 3, begin=AS_BRANCH)
    go(small(**OTHER), store, 3, begin=AS_BRANCH, stop_after=stop_after)
    notes = go(small(**OTHER), store, 3, begin=AS_BRANCH)
    assert notes.warnings == []
    assert stop_after not in notes.made
    assert hashes(store, "branch") == hashes(undisturbed, "branch")


def made_again(store: Path) -> None:
    """The small run has other artifacts at all places now, as after an edit of the code."""
    run = RunStore(str(store)).open("small")
    for each in run.stages():
        again = each.artifact_id[::-1]
        run.record(each.iteration, each.stage, again, kind=each.kind, key=each.key, reused=False, seconds=0.0)


@pytest.mark.parametrize("begin", [AS_BRANCH, AS_OFFLINE])
def test_what_a_run_has_taken_over_stays_when_the_other_run_is_made_again(
    store: Path, begin: Callable[[OpenRun], None]
) -> None:
    changes = OTHER if begin is AS_BRANCH else {"name": "branch", **DECOUPLED}
    go(small(**changes), store, begin=begin)
    before = ids(store, "branch")
    made_again(store)
    run = RunStore(str(store)).open("branch")
    planned = plan_for(str(store), run, small(**changes), 2)
    assert {node.place: node.artifact_id for node in planned.nodes}.items() <= before.items()
    assert {node.iteration or 0 for node in planned.nodes} == {0, 1, 2}
    assert begun(store, begin, **changes)
    assert ids(store, "branch") == before


def test_what_was_made_before_an_edit_is_no_part_of_a_run_that_was_partly_made_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iteration 2 was made from the first policy of before. So a branch there would have two histories."""
    later = replace(UPDATE_POLICY, version=UPDATE_POLICY.version + 1)
    monkeypatch.setattr("erl_pipeline.stages.training.update_policy.UPDATE_POLICY", later)
    go(small(), store, 1)
    artifacts, run = ArtifactStore(str(store)), RunStore(str(store)).open("small")
    assert {each.iteration for each in read_history(artifacts, run)} == {0, 1}
    assert summarize_run(artifacts, run).done == 1
    with pytest.raises(InputError, match="run small ended in iteration 1; it has no rollout_shard"):
        begun(store, AS_BRANCH, **OTHER)
    go(small(), store, 2)
    assert summarize_run(artifacts, run).done == 2
    begun(store, AS_BRANCH, **OTHER)


def test_a_branch_of_a_branch_and_of_an_earlier_iteration(store: Path) -> None:
    go(small(**OTHER), store, begin=AS_BRANCH)
    origin = BranchOrigin(run="branch", iteration=2, stage="fine_tune")
    third = {**OTHER, "name": "third", "fine_tune": {"steps": 2}}
    notes = go(small(**third), store, begin=partial(begin_branch, origin=origin))
    assert notes.made == [f"{stage} of iteration 2" for stage in ("fine_tune", "evaluate")]
    update = StageKey(2, "update_policy", "")
    assert ids(store, "third")[update] == ids(store, "branch")[update] != ids(store)[update]
    run = RunStore(str(store)).open("third")
    assert {node.place for node in plan_as_made(str(store), run, 1).nodes} == {
        place for place in ids(store) if place.iteration < 2
    }


def test_a_run_that_was_stopped_can_be_branched_from_what_it_has(store: Path) -> None:
    go(small(), store, 3, stop_after="generate_rollouts of iteration 3")
    origin = BranchOrigin(run="small", iteration=3, stage="index_memory")
    notes = go(small(**OTHER), store, 3, begin=partial(begin_branch, origin=origin))
    assert notes.made[0] == "index_memory of iteration 3"


def test_an_iteration_that_was_not_evaluated_can_be_branched(store: Path) -> None:
    """The run is evaluated every second iteration, and the branch after its last."""
    origin = BranchOrigin(run="small", iteration=1, stage="fine_tune")
    changes = {"name": "branch", "fine_tune": {"steps": 2}}
    notes = go(small(**changes), store, 1, begin=partial(begin_branch, origin=origin))
    assert notes.made == [f"{stage} of iteration 1" for stage in ("fine_tune", "evaluate")]


def test_a_branch_before_which_something_lacks_is_refused_and_not_begun(store: Path) -> None:
    go(small(), store, 3, stop_after="rollout_shard 0001 of iteration 3")
    origin = BranchOrigin(run="small", iteration=3, stage="update_policy")
    with pytest.raises(InputError, match="run small ended in iteration 2; it has no generate_rollouts"):
        begun(store, partial(begin_branch, origin=origin), **OTHER)
    assert read_origin(str(store), "branch") is None


def test_a_run_cannot_be_begun_otherwise_than_it_was(store: Path) -> None:
    begun(store, AS_BRANCH, **OTHER)
    elsewhere = BRANCH.model_copy(update={"stage": "fine_tune"})
    with pytest.raises(
        ConfigError,
        match=r"run branch exists and was begun from update_policy in iteration 2 of small, not from "
        r"fine_tune in iteration 2 of small\. Give the new run another --name\.",
    ):
        begun(store, partial(begin_branch, origin=elsewhere), **OTHER)
    with pytest.raises(ConfigError, match="run small exists and was begun by itself"):
        begun(store, AS_BRANCH)


def test_requests_come_to_the_first_memory_that_the_branch_makes_itself(store: Path) -> None:
    run = RunStore(str(store)).open("small")
    kind: ArtifactKind = "request"
    for iteration, artifact_id in ((5, "late"), (9, "later")):
        run.record(iteration, "request", artifact_id, kind=kind, reused=False, seconds=0.0)
    begun(store, AS_BRANCH, **OTHER)
    entries = RunStore(str(store)).open("branch").recorded()
    requests = [(entry.iteration, entry.artifact_id) for entry in entries if entry.kind == "request"]
    # Iteration 2 of the branch shares its memory.
    assert {iteration for iteration, _ in requests} == {3}


def test_an_offline_run_begins_with_the_rollouts_it_trains_on(store: Path) -> None:
    origin = OFFLINE.model_copy(update={"first_iteration": 2})
    shared = begun(store, partial(begin_offline, origin=origin), name="offline", **DECOUPLED)
    assert [place for place, _ in shared] == [
        StageKey(0, "prepare_tasks", ""),
        StageKey(0, "bootstrap", ""),
        StageKey(1, "rollout_shard", "0000"),
        StageKey(1, "rollout_shard", "0001"),
        StageKey(1, "generate_rollouts", ""),
    ]


def test_an_offline_run_of_a_branch_shares_the_beginning_alone(store: Path) -> None:
    go(small(**OTHER), store, begin=AS_BRANCH)
    origin = OFFLINE.model_copy(update={"run": "branch", "first_iteration": 2})
    begin = partial(begin_offline, origin=origin)
    shared = begun(store, begin, name="offline", **DECOUPLED)
    assert {place.stage for place, _ in shared if place.iteration == 0} == {"prepare_tasks", "bootstrap"}
    assert {place.iteration for place, _ in shared} == {0, 1}
    assert go(small(name="offline", **DECOUPLED), store, 1, begin=begin).warnings == []


def test_an_offline_run_goes_on_as_if_it_had_not_been_stopped(
    store: Path, trained: Path, tmp_path: Path
) -> None:
    offline = small(name="offline", **DECOUPLED)
    undisturbed = Path(shutil.copytree(trained, tmp_path / "undisturbed"))
    whole = go(offline, undisturbed, begin=AS_OFFLINE)
    assert [title for title in whole.made if "rollout" in title or "memory" in title] == []
    go(offline, store, begin=AS_OFFLINE, stop_after="measure_staleness of iteration 2")
    notes = go(offline, store, begin=AS_OFFLINE)
    assert notes.made[0] == "update_policy of iteration 2"
    assert notes.warnings == []
    assert hashes(store, "offline") == hashes(undisturbed, "offline")
    assert go(offline, store, begin=AS_OFFLINE).made == []


def test_offline_what_another_line_of_policies_sampled_is_too_old(store: Path) -> None:
    """The first stored rollouts are of the policy with which both runs begin. The second are of a policy of
    the other run: they are not trained on, and the policy does not change."""
    aged = small(name="aged", **DECOUPLED, pipeline={"max_age": 1, "too_old": "drop"})
    go(aged, store, begin=AS_OFFLINE)
    artifacts, made = ArtifactStore(str(store)), ids(store, "aged")
    updates = [artifacts.open(made[StageKey(number, "update_policy", "")]).manifest for number in (1, 2)]
    assert "dropped_too_old" not in updates[0].counters
    stored = artifacts.open(made[StageKey(2, "generate_rollouts", "")]).manifest
    assert updates[1].counters["dropped_too_old"] == stored.counters["trajectories"] > 0
    assert (updates[1].counters["sequences"], updates[1].counters["optimizer_steps"]) == (0, 0)
    assert count_samples(artifacts, RunStore(str(store)).open("aged")).problems == []


def test_offline_training_is_refused_without_its_conditions(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"objective\.correction\.type: bypass cannot be trained offline"):
        begun(store, AS_OFFLINE, name="bypass")
    taught = SelfDistillationConfig(
        hindsight="demonstration", demonstration=DemonstrationConfig(source="own_success")
    )
    with pytest.raises(ConfigError, match="own_success is not looked for in stored rollouts"):
        require_offline(small(**DECOUPLED).model_copy(update={"self_distillation": taught}))
    beyond = OFFLINE.model_copy(update={"last_iteration": 3})
    with pytest.raises(InputError, match="run small has no rollouts of iteration 3; it has 1 to 2"):
        begun(store, partial(begin_offline, origin=beyond), name="offline", **DECOUPLED)
    assert read_origin(str(store), "offline") is None
    go(small(name="offline", **DECOUPLED), store, begin=AS_OFFLINE)
    with pytest.raises(InputError, match="rollouts of 2 iterations of small; it cannot be continued to 3"):
        go(small(name="offline", **DECOUPLED), store, 3, begin=AS_OFFLINE)
    origin = BRANCH.model_copy(update={"run": "offline"})
    with pytest.raises(InputError, match="run offline trains on the stored rollouts of small and generates"):
        begun(store, partial(begin_branch, origin=origin), **OTHER)
