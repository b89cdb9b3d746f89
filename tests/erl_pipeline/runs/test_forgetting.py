"""Plans of stored runs whose entries were forgotten: they contain what `forget` has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from erl_pipeline.runs.planning import plan_as_made, plan_for, whole_iterations
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MemoryEntry, write_delta
from storage.memory.forgetting import forget
from storage.memory.versions import latest_version, memory_versions
from storage.runs.run import Run, RunStore
from tests.embedders import WordEmbedder
from tests.erl_pipeline.runs.planned_runs import SOURCES, config, ids


def begin(store: Path, **changes: Any) -> Run:
    """A small run of which nothing is made yet."""
    settings = config(**changes)
    return RunStore(str(store)).create(settings.name, settings.model_dump(mode="json"))


def go_on(store: Path, run: Run, iteration: int, until: str = "", **changes: Any) -> Plan:
    """Record what the run's plan has up to the end of an iteration, or up to one of its stages; of the
    artifacts only memory versions are made. Each but the removals adds an entry, `m-ITERATION-STAGE`.
    Returns the plan."""
    plan = plan_for(str(store), run, config(**changes), iteration, sources=SOURCES)
    recorded = {
        StageKey(each.iteration or 0, each.stage, each.key): each.artifact_id for each in run.stages()
    }
    with run.lock():
        for node in plan.nodes:
            if node.stage.name == until and node.iteration == iteration:
                break
            if recorded.get(node.place) != node.artifact_id:
                _make(store, run, node)
    return plan


def _make(store: Path, run: Run, node: PlannedStage) -> None:
    if node.stage.output == "memory":
        assert node.stage.name != "forget_memory", f"{node.title} is not what the command has made"
        with ArtifactStore(str(store)).create(node.recipe, run=run.name, iteration=node.iteration) as staging:
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
    # The evaluation at the end of an iteration sees what its memory became.
    assert without_evaluations(ids(made)) == without_evaluations(ids(plan))
    assert [n.title for n in made.nodes if n.recipe.artifact_id != n.artifact_id and not evaluates(n)] == []
    recorded = {
        StageKey(each.iteration or 0, each.stage, each.key): each.artifact_id for each in run.stages()
    }
    assert whole_iterations(plan, recorded) == iterations


def evaluates(node: PlannedStage) -> bool:
    return node.stage.output == "evaluation"


def without_evaluations(made: Mapping[StageKey, str]) -> dict[StageKey, str]:
    return {place: each for place, each in made.items() if not place.stage.startswith("evaluate")}


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
