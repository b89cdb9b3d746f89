"""Plans of stored runs whose entries were forgotten: they contain what `forget` has recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.runs.origins import lines_in_branch
from erl_pipeline.runs.planning import (
    plan_as_made,
    plan_before_branch,
    plan_for,
    recorded_ids,
    whole_iterations,
)
from erl_pipeline.runs.run_plans import plan_branch, shared_stages
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MemoryEntry, write_delta
from storage.memory.forgetting import forget, write_forgotten
from storage.memory.versions import forget_requests, latest_version, memory_versions
from storage.memory.view import ReflectionMemory
from storage.runs.documents import BranchOrigin, write_origin
from storage.runs.run import Run, RunStore
from tests.embedders import WordEmbedder
from tests.erl_pipeline.runs.planned_runs import MERGING, SOURCES, at, config, ids, inputs


def begin(store: Path, **changes: Any) -> Run:
    """A small run of which nothing is made yet."""
    settings = config(**changes)
    return RunStore(str(store)).create(settings.name, settings.model_dump(mode="json"))


def go_on(store: Path, run: Run, iteration: int, until: str = "", **changes: Any) -> Plan:
    """Record what the run's plan has up to the end of an iteration, or up to one of its stages, and nothing a
    second time. Of the artifacts only memory versions are made; each that removes nothing adds an entry,
    `m-ITERATION-STAGE`. Returns the plan."""
    plan = plan_for(str(store), run, config(**changes), iteration, sources=SOURCES)
    recorded = recorded_ids(run.recorded())
    with run.lock():
        for node in plan.nodes:
            if node.stage.name == until and node.iteration == iteration:
                break
            if recorded.get(node.place) != node.artifact_id:
                assert node.place not in recorded
                _make(store, run, node)
    return plan


def _make(store: Path, run: Run, node: PlannedStage) -> None:
    if node.stage.output == "memory":
        artifacts, inputs = ArtifactStore(str(store)), node.recipe.inputs
        with artifacts.create(node.recipe, run=run.name, iteration=node.iteration) as staging:
            if "request" in inputs:
                request = artifacts.open(inputs["request"]).manifest
                write_forgotten(artifacts, staging.path, inputs["memory"], request, node.artifact_id)
            else:
                write_delta(staging.path / "entries.parquet", [_entry(node)], WordEmbedder())
            staging.commit(memory_version=node.artifact_id)
    run.record(
        node.iteration,
        node.stage.name,
        node.artifact_id,
        kind=node.stage.output,
        key=node.key,
        reused=False,
        seconds=0.0,
    )


def _entry(node: PlannedStage) -> MemoryEntry:
    iteration = node.iteration or 0
    return MemoryEntry(
        entry_id=f"m-{iteration}-{node.stage.name}",
        kind="reflection",
        text=node.title,
        task_type="lake",
        task_text="go",
        feedback="fell",
        key_text="a lake",
        source_trajectory_id=None,
        iteration=iteration,
        last_iteration=iteration,
        policy_version="policy",
        parent_entry_ids=(),
        memory_version=node.artifact_id,
    )


def asked(store: Path, run: Run, entry_id: str) -> str:
    """Forget an entry; returns the memory version after it."""
    version = forget(ArtifactStore(str(store)), run, entry_id, "wrong").memory_version
    assert version is not None
    assert latest_version(run) == version
    return version


def require_as_planned(store: Path, run: Run, iterations: int, **changes: Any) -> None:
    """The run goes on with what it has, and an audit finds each recipe."""
    plan = plan_for(str(store), run, config(**changes), iterations, sources=SOURCES)
    made = plan_as_made(str(store), run, iterations, sources=SOURCES)
    assert ids(plan).items() <= ids(made).items()
    assert [node.title for node in made.nodes if node.recipe.artifact_id != node.artifact_id] == []
    assert whole_iterations(plan, recorded_ids(run.recorded())) == iterations


def test_what_is_forgotten_in_two_iterations_is_in_the_plan(tmp_path: Path) -> None:
    run = begin(tmp_path)
    go_on(tmp_path, run, 1)
    asked(tmp_path, run, "m-1-index_memory")
    go_on(tmp_path, run, 2)
    asked(tmp_path, run, "m-2-index_memory")
    removals = [(each.iteration, each.key) for each in run.stages() if each.stage == "forget_memory"]
    assert removals == [(1, "0000"), (2, "0000")]
    require_as_planned(tmp_path, run, 2)


def test_removals_are_in_the_order_of_their_requests_in_whatever_order_they_were_recorded(
    tmp_path: Path,
) -> None:
    """Earlier versions numbered a removal by all requests of the run; going on records it at its place."""
    run = begin(tmp_path)
    go_on(tmp_path, run, 1)
    first = asked(tmp_path, run, "m-1-index_memory")
    go_on(tmp_path, run, 2)
    last = asked(tmp_path, run, "m-2-index_memory")
    with run.lock():
        for key, version in (("0002", last), ("0001", first)):
            run.record(2, "forget_memory", version, kind="memory", key=key, reused=True, seconds=0.0)
    assert [each.artifact_id for each in memory_versions(run)][-3:] == [last, first, last]
    assert latest_version(run) == last


def held(store: Path, run: Run) -> list[str]:
    artifacts = ArtifactStore(str(store))
    memory = ReflectionMemory(str(store), run.name, artifacts, WordEmbedder())
    return sorted(memory.at(latest_version(run)).entries()["entry_id"])


def test_what_is_forgotten_after_a_merge_leaves_the_merge_as_it_is(tmp_path: Path) -> None:
    run = begin(tmp_path, **MERGING)
    go_on(tmp_path, run, 2, **MERGING)
    for entry_id in ("m-2-merge_experience", "m-1-index_memory"):
        asked(tmp_path, run, entry_id)
    assert held(tmp_path, run) == ["m-2-index_memory"]
    require_as_planned(tmp_path, run, 2, **MERGING)
    go_on(tmp_path, run, 3, **MERGING)
    assert held(tmp_path, run) == ["m-2-index_memory", "m-3-index_memory"]


@pytest.mark.parametrize("stopped_before", ["index_memory", "merge_experience"])
def test_what_is_forgotten_before_a_merge_is_not_read_by_it(tmp_path: Path, stopped_before: str) -> None:
    run = begin(tmp_path, **MERGING)
    go_on(tmp_path, run, 2, until=stopped_before, **MERGING)
    done = forget(ArtifactStore(str(tmp_path)), run, "m-1-index_memory", "wrong")
    # It waits only for the memory of its iteration, not for the merge.
    assert (done.memory_version is None) == (stopped_before == "index_memory")
    plan = go_on(tmp_path, run, 2, **MERGING)
    removal = at(plan, 2, "forget_memory", "0000")
    assert done.memory_version in (None, removal.artifact_id)
    assert inputs(plan, 2, "forget_memory", "0000")["memory"] == "index_memory of iteration 2"
    assert inputs(plan, 2, "merge_experience")["memory"] == removal.title
    assert held(tmp_path, run) == ["m-2-index_memory", "m-2-merge_experience"]
    asked(tmp_path, run, "m-2-merge_experience")
    require_as_planned(tmp_path, run, 2, **MERGING)


@pytest.mark.parametrize("forgotten_after", [2, 3])
def test_a_branch_merges_without_what_the_run_has_forgotten(tmp_path: Path, forgotten_after: int) -> None:
    """The branch shares the memory before the merge, also if the entry was forgotten in a later iteration."""
    run = begin(tmp_path, **MERGING)
    go_on(tmp_path, run, forgotten_after, **MERGING)
    asked(tmp_path, run, "m-1-index_memory")
    made = branched(tmp_path, run, "merge_experience")
    assert inputs(made, 2, "merge_experience")["memory"] == "forget_memory 0000 of iteration 2"
    assert inputs(made, 2, "forget_memory", "0000")["memory"] == "index_memory of iteration 2"
    assert inputs(made, 3, "index_memory")["memory"] == "merge_experience of iteration 2"


def test_a_branch_after_a_merge_shares_what_was_forgotten_after_it(tmp_path: Path) -> None:
    run = begin(tmp_path, **MERGING)
    go_on(tmp_path, run, 2, **MERGING)
    version = asked(tmp_path, run, "m-1-index_memory")
    made = branched(tmp_path, run, "update_policy")
    assert at(made, 2, "forget_memory", "0000").artifact_id == version
    assert inputs(made, 2, "forget_memory", "0000")["memory"] == "merge_experience of iteration 2"


def branched(store: Path, run: Run, stage: str) -> Plan:
    """The plan of a branch from a stage of iteration 2 with another setting of that stage."""
    origin = BranchOrigin(run=run.name, iteration=2, stage=stage)
    source = plan_before_branch(str(store), run, origin, sources=SOURCES)
    lines = lines_in_branch(run.stages(), shared_stages(source, 2, stage), 2)
    changed = "method.experience.merge_chunk=4" if stage == "merge_experience" else "objective.clip_low=0.1"
    return plan_branch(
        config(changed, **MERGING),
        SOURCES,
        source,
        config(**MERGING),
        origin,
        iterations=3,
        requests=forget_requests(lines),
    )


COOLER: dict[str, Any] = {"sampling": {"temperature": 0.9}}
CLIPPED: dict[str, Any] = {"objective": {"clip_low": 0.1}}


@pytest.fixture
def same_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a branch reads the sources of the run that it comes from by itself."""
    monkeypatch.setattr("erl_pipeline.runs.planning.read_sources", lambda _: SOURCES)


def begun_branch(store: Path, run: Run, iteration: int, stage: str, changes: dict[str, Any]) -> Run:
    """A branch with another setting, of which only what it shares is in its ledger."""
    origin = BranchOrigin(run=run.name, iteration=iteration, stage=stage)
    settings = config(**changes)
    branch = RunStore(str(store)).create("branch", settings.model_dump(mode="json") | {"name": "branch"})
    write_origin(str(store), "branch", origin)
    source = plan_before_branch(str(store), run, origin, sources=SOURCES)
    for each in lines_in_branch(run.stages(), shared_stages(source, iteration, stage), iteration):
        branch.record(
            each.iteration,
            each.stage,
            each.artifact_id,
            kind=each.kind,
            key=each.key,
            reused=True,
            seconds=0.0,
        )
    return branch


@pytest.mark.usefixtures("same_sources")
def test_what_is_forgotten_in_a_run_later_makes_no_branch_of_it_again(tmp_path: Path) -> None:
    """The branch begins behind the end of the run, and reads the memory with which the run ended then."""
    run = begin(tmp_path)
    go_on(tmp_path, run, 2)
    branch = begun_branch(tmp_path, run, 3, "generate_rollouts", COOLER)
    before = go_on(tmp_path, branch, 3, **COOLER)
    asked(tmp_path, run, "m-1-index_memory")
    after = plan_for(str(tmp_path), branch, config(**COOLER), 3, sources=SOURCES)
    assert ids(after) == ids(before)
    asked(tmp_path, branch, "m-2-index_memory")
    require_as_planned(tmp_path, branch, 3, **COOLER)


@pytest.mark.usefixtures("same_sources")
def test_what_is_forgotten_in_a_branch_that_has_made_nothing_yet_stays_forgotten(tmp_path: Path) -> None:
    """The memory before the branch is the run's, so the entry leaves the first one of the branch itself."""
    run = begin(tmp_path)
    go_on(tmp_path, run, 2)
    branch = begun_branch(tmp_path, run, 3, "generate_rollouts", COOLER)
    done = forget(ArtifactStore(str(tmp_path)), branch, "m-1-index_memory", "wrong")
    assert (done.iteration, done.memory_version) == (3, None)
    plan = go_on(tmp_path, branch, 3, **COOLER)
    assert inputs(plan, 3, "forget_memory", "0000")["memory"] == "index_memory of iteration 3"
    assert held(tmp_path, branch) == ["m-2-index_memory", "m-3-index_memory"]
    assert held(tmp_path, run) == ["m-1-index_memory", "m-2-index_memory"]


@pytest.mark.usefixtures("same_sources")
def test_two_runs_may_forget_behind_a_branch_within_an_iteration(tmp_path: Path) -> None:
    run = begin(tmp_path)
    go_on(tmp_path, run, 2)
    branch = begun_branch(tmp_path, run, 2, "update_policy", CLIPPED)
    asked(tmp_path, run, "m-1-index_memory")
    forget(ArtifactStore(str(tmp_path)), branch, "m-2-index_memory", "wrong")
    plan = go_on(tmp_path, branch, 3, **CLIPPED)
    assert held(tmp_path, branch) == ["m-1-index_memory", "m-3-index_memory"]
    assert inputs(plan, 3, "index_memory")["memory"].startswith("forget_memory")
