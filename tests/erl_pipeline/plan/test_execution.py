"""Executing plans of hand-made stages: order, reuse, damage, failures and stops."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.pipeline import DeviceGroups, ResourcesConfig
from erl_pipeline.plan import execution
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import InProcessRunner, Made, Runner, StageJob, WorkerDied
from erl_pipeline.plan.stage import Resources, StageCall
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, DamagedArtifact, EngineError, InputError, Interrupted
from tests.erl_pipeline.plan.hand_made import Bench, Hook, Notes, ThreadRunner, Word, planned

WAIT = 20.0
"""Seconds that a test waits for something that should happen immediately."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def chain() -> tuple[PlannedStage, PlannedStage, PlannedStage]:
    first = planned("first")
    second = planned("second", [first], iteration=1)
    return first, second, planned("third", [second], iteration=2)


def failing(*errors: Exception) -> Hook:
    """Raises these exceptions, one at each call, and afterwards none."""
    left = list(errors)

    def hook(_call: StageCall[Word]) -> None:
        if left:
            raise left.pop(0)

    return hook


def test_stages_are_computed_in_the_order_of_the_plan_and_recorded(bench: Bench) -> None:
    nodes = chain()
    notes = bench.execute(*nodes)
    assert notes.made == ["first", "second of iteration 1", "third of iteration 2"]
    assert bench.ledger == [(node.place, node.artifact_id, False) for node in nodes]
    assert bench.committed() == {node.artifact_id for node in nodes}


def test_the_order_of_inputs_wins_over_that_of_the_plan(bench: Bench) -> None:
    first, second, third = chain()
    assert bench.execute(third, second, first).made[0] == "first"


def test_what_is_committed_is_reused_and_recorded_as_such(bench: Bench) -> None:
    first, second, third = chain()
    bench.execute(first, second)
    notes = bench.execute(first, second, third)
    assert (notes.reused, notes.made) == (["first", "second of iteration 1"], ["third of iteration 2"])
    assert [reused for _, _, reused in bench.ledger[2:]] == [True, True, False]


def test_trusted_artifacts_are_not_looked_at(bench: Bench) -> None:
    first, second, third = chain()
    bench.execute(first, second, third)
    bench.damage(first)
    shutil.rmtree(bench.folder / "store/artifacts/second")
    notes = bench.execute(first, second, third, trusted=frozenset({first.place, second.place}))
    assert (notes.reused, notes.made, notes.warnings) == (["third of iteration 2"], [], [])


def test_an_artifact_that_is_trusted_at_one_place_is_recorded_at_another(bench: Bench) -> None:
    one, other = planned("same", key="a"), planned("same", key="b")
    assert one.artifact_id == other.artifact_id
    bench.execute(one)
    bench.execute(one, other, trusted=frozenset({one.place}))
    assert bench.ledger[1:] == [(other.place, other.artifact_id, True)]


def test_a_damaged_artifact_is_set_aside_and_made_again(bench: Bench) -> None:
    nodes = chain()
    bench.execute(*nodes)
    bench.damage(nodes[1])
    notes = bench.execute(*nodes)
    assert notes.made == ["second of iteration 1"]
    (warning,) = notes.warnings
    assert nodes[1].artifact_id in warning
    assert warning.endswith("It is set aside and made again.")
    assert (bench.folder / "store/damaged").is_dir()
    assert bench.committed() == {node.artifact_id for node in nodes}


def test_old_inputs_of_something_new_are_made_good_however_far_back(bench: Bench) -> None:
    first, second, third = chain()
    bench.execute(first, second)
    bench.damage(second)
    shutil.rmtree(bench.folder / "store/artifacts/first")
    notes = bench.execute(first, second, third, trusted=frozenset({first.place, second.place}))
    assert notes.made == ["first", "second of iteration 1", "third of iteration 2"]
    assert "It is set aside" in notes.warnings[0]
    assert notes.warnings[1] == f"first ({first.artifact_id}) is gone from the store. It is made again."


def test_what_rollouts_list_is_looked_at_with_them(bench: Bench) -> None:
    shards = [planned("shard", key=key, word=key) for key in ("a", "b")]
    rollouts = planned("rollouts", shards, kind="rollouts")
    bench.execute(*shards, rollouts)
    bench.damage(shards[1])
    update = planned("update", [rollouts])
    old = frozenset(node.place for node in (*shards, rollouts))
    assert bench.execute(*shards, rollouts, update, trusted=old).made == ["shard b", "update"]


def test_an_input_from_elsewhere_that_is_damaged_ends_the_run(bench: Bench) -> None:
    given = planned("given")
    bench.execute(given)
    bench.damage(given)
    with pytest.raises(DamagedArtifact, match=given.artifact_id):
        bench.execute(planned("second", [given]))


def test_an_input_from_elsewhere_that_is_missing_ends_the_run(bench: Bench) -> None:
    with pytest.raises(InputError, match="no artifact"):
        bench.execute(planned("second", [planned("given")]))


@pytest.mark.parametrize("workers", [None, 2])
def test_one_artifact_at_two_places_is_computed_once(bench: Bench, workers: int | None) -> None:
    one, other = planned("same", key="a"), planned("same", key="b")
    notes = bench.execute(one, other, workers=workers)
    assert (notes.made, notes.reused) == (["same a"], ["same b"])
    assert bench.recorded() == {one.place: one.artifact_id, other.place: one.artifact_id}


def test_stages_that_wait_for_each_other_are_refused(bench: Bench) -> None:
    one = planned("one")
    other = planned("other", [one])
    object.__setattr__(one.recipe, "inputs", {"input": other.artifact_id})
    with pytest.raises(ConfigError, match="wait for each other: one, other"):
        bench.execute(one, other)


def test_when_a_stage_fails_those_beside_it_are_kept_and_recorded(bench: Bench) -> None:
    began, failed = threading.Event(), threading.Event()

    class TellsOfFailures(ThreadRunner):
        def submit(self, job: StageJob) -> Future[Made]:
            future = super().submit(job)
            future.add_done_callback(lambda ended: failed.set() if ended.exception() else None)
            return future

    def fail(_call: StageCall[Word]) -> None:
        assert began.wait(WAIT)
        raise InputError("it cannot be")

    def go_on(_call: StageCall[Word]) -> None:
        began.set()
        assert failed.wait(WAIT)

    bad, good = planned("bad", hook=fail), planned("good", hook=go_on)
    with pytest.raises(InputError, match="it cannot be"):
        bench.execute(bad, good, planned("later", [good]), runner=lambda kept: TellsOfFailures(kept, 2))
    assert bench.recorded() == {good.place: good.artifact_id}
    assert bench.committed() == {good.artifact_id}


def test_a_second_failure_is_told_too(bench: Bench) -> None:
    both = threading.Barrier(2, timeout=WAIT)

    def fail(call: StageCall[Word]) -> None:
        both.wait()
        raise InputError(f"no {call.settings.word}")

    nodes = [planned("stage", hook=fail, key=word, word=word) for word in ("one", "two")]
    with pytest.raises(InputError) as raised:
        bench.execute(*nodes, workers=2)
    other = {"no one": "two", "no two": "one"}[str(raised.value)]
    assert bench.notes.warnings == [f"stage {other} failed too: no {other}"]
    assert bench.ledger == []


def test_a_passing_failure_is_tried_again_as_often_as_the_stage_says(bench: Bench) -> None:
    errors = [EngineError("busy"), EngineError("still busy")]
    node = planned("stage", hook=failing(*errors), retry_seconds=(0.0, 0.0))
    notes = bench.execute(node)
    assert notes.made == ["stage"]
    assert notes.warnings == [f"stage failed and is tried again: {error}" for error in errors]


def test_the_failure_after_the_last_retry_ends_the_run(bench: Bench) -> None:
    hook = failing(EngineError("one"), EngineError("two"))
    with pytest.raises(EngineError, match="two"):
        bench.execute(planned("stage", hook=hook, retry_seconds=(0.0,)))
    assert (bench.ledger, bench.committed()) == ([], set())


@pytest.mark.parametrize("error", [InputError("no"), DamagedArtifact("no"), ValueError("no")])
def test_other_failures_are_not_tried_again(bench: Bench, error: Exception) -> None:
    with pytest.raises(type(error)):
        bench.execute(planned("stage", hook=failing(error), retry_seconds=(0.0, 0.0)))
    assert bench.notes.warnings == []


class DyingRunner(InProcessRunner):
    """A runner whose process dies at the first calls."""

    def __init__(self, resources: Resources, deaths: int, commits: bool) -> None:
        super().__init__(resources, Notes())
        self._left = deaths
        self._commits = commits
        self.shares_files = not commits

    def submit(self, job: StageJob) -> Future[Made]:
        if self._left == 0:
            return super().submit(job)
        self._left -= 1
        if self._commits:
            super().submit(job)
        died: Future[Made] = Future()
        died.set_exception(WorkerDied("worker process 7 ended by SIGKILL"))
        return died


def dying(deaths: int, *, commits: bool = False) -> Callable[[Resources], Runner]:
    return lambda resources: DyingRunner(resources, deaths, commits)


def test_a_stage_whose_worker_died_is_computed_again(bench: Bench) -> None:
    notes = bench.execute(planned("stage"), runner=dying(3))
    assert notes.made == ["stage"]
    assert notes.warnings == ["stage: worker process 7 ended by SIGKILL. It is computed again."] * 3


def test_what_a_worker_committed_before_it_died_is_reused(bench: Bench) -> None:
    assert bench.execute(planned("stage"), runner=dying(1, commits=True)).reused == ["stage"]


def test_a_stage_that_always_kills_its_worker_ends_the_run(bench: Bench) -> None:
    with pytest.raises(WorkerDied):
        bench.execute(planned("stage"), runner=dying(4))
    assert bench.ledger == []


def test_a_stop_between_stages_ends_the_run_after_what_is_committed(bench: Bench) -> None:
    first = planned("first", hook=lambda _call: bench.stop.set())
    second = planned("second", [first])
    with pytest.raises(Interrupted):
        bench.execute(first, second)
    assert bench.recorded() == {first.place: first.artifact_id}
    assert bench.committed() == {first.artifact_id}


def test_a_stop_within_a_stage_leaves_nothing_of_it(bench: Bench) -> None:
    def stop(call: StageCall[Word]) -> None:
        bench.stop.set()
        call.progress.raise_if_stopped()

    with pytest.raises(Interrupted):
        bench.execute(planned("stage", hook=stop))
    assert (bench.ledger, bench.committed()) == ([], set())
    bench.stop.clear()
    assert bench.execute(planned("stage")).made == ["stage"]


def test_a_run_that_waits_to_try_again_can_be_stopped(bench: Bench) -> None:
    hook = failing(EngineError("busy"))

    def fail_and_stop(call: StageCall[Word]) -> None:
        bench.stop.set()
        hook(call)

    with pytest.raises(Interrupted):
        bench.execute(planned("stage", hook=fail_and_stop, retry_seconds=(3600.0,)))


def most_at_once(bench: Bench, needs: Sequence[str], workers: int, resources: ResourcesConfig) -> int:
    """How many independent stages, each of which needs what is named, ran at the same time."""
    lock, at_work, most = threading.Lock(), 0, 0

    def hook(_call: StageCall[Word]) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        with_others.wait(0.3)
        with lock:
            at_work -= 1

    with_others = threading.Event()
    nodes = [
        planned("stage", hook=hook, key=str(number), word=str(number), needs=each)
        for number, each in enumerate(needs)
    ]
    bench.execute(*nodes, workers=workers, resources=resources)
    return most


@pytest.mark.parametrize(
    ("needs", "workers", "devices", "most"),
    [
        (["sampling", "training"] * 2, 3, 1, 1),
        (["sampling"] * 4, 3, 2, 2),
        (["processor"] * 4, 3, 1, 3),
        (["processor"] * 4, 1, 2, 1),
    ],
)
def test_workers_and_devices_bound_what_is_at_work(
    bench: Bench, needs: list[str], workers: int, devices: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_LOOK_SECONDS", 0.01)
    assert most_at_once(bench, needs, workers, ResourcesConfig(devices=devices)) == most


@pytest.mark.parametrize(
    ("needs", "most"),
    [(["sampling"] * 4, 1), (["training"] * 4, 1), (["sampling", "training"] * 2, 2)],
)
def test_with_groups_one_stage_samples_while_another_trains(
    bench: Bench, needs: list[str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_LOOK_SECONDS", 0.01)
    groups = ResourcesConfig(groups=DeviceGroups(sample=(0, 1), train=(2, 3)))
    assert most_at_once(bench, needs, 4, groups) == most


def test_stages_that_do_not_depend_on_each_other_overlap(bench: Bench) -> None:
    both = threading.Barrier(2, timeout=WAIT)

    def meet(_call: StageCall[Any]) -> None:
        both.wait()

    nodes = [planned("stage", hook=meet, key=key, word=key) for key in "ab"]
    bench.execute(*nodes, workers=2)
    assert bench.committed() == {node.artifact_id for node in nodes}


def test_a_held_stage_is_looked_for_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_LOOK_SECONDS", 0.01)
    asked: list[str] = []
    find = ArtifactStore.find

    def counted(store: ArtifactStore, artifact_id: str, stage: str | None = None) -> Manifest | None:
        asked.append(artifact_id)
        return find(store, artifact_id, stage)

    monkeypatch.setattr(ArtifactStore, "find", counted)
    bench.execute(*(planned("stage", key=key, word=key) for key in "abcdefgh"))
    assert len(asked) == len(set(asked)) == 8


def shards(hook: Hook = lambda _call: None, count: int = 3, **declared: Any) -> list[PlannedStage]:
    """Stages that differ by their index alone, after one that makes their input."""
    first = planned("first")
    one = planned(
        "shard", [first], hook, iteration=1, **{"begins_next": True, "needs": "sampling", **declared}
    )
    recipes = [replace(one.recipe, index={"iteration": 1, "shard": shard}) for shard in range(count)]
    return [
        first,
        *(
            replace(one, recipe=recipe, key=f"{shard}", artifact_id=recipe.artifact_id)
            for shard, recipe in enumerate(recipes)
        ),
    ]


def following_of_each(told: list[list[int]]) -> Hook:
    """Notes which shards each stage is told of."""
    return lambda call: told.append([each.index["shard"] for each in call.following])


def test_a_stage_that_begins_the_next_ones_is_told_which_they_are(bench: Bench) -> None:
    told: list[list[int]] = []
    nodes = shards(following_of_each(told))
    bench.execute(*nodes, planned("other", nodes[:1], iteration=1))
    assert told == [[1, 2], [2], []]


def test_stages_that_are_there_are_not_begun(bench: Bench) -> None:
    told: list[list[int]] = []
    nodes = shards(following_of_each(told), count=4)
    bench.execute(nodes[0], nodes[2])
    told.clear()
    bench.execute(*nodes)
    assert told == [[2, 3], [3], []]


@pytest.mark.parametrize("declared", [{"begins_next": False}, {"needs": "processor"}])
def test_no_stage_is_told_of_others_that_it_does_not_begin_or_that_another_worker_may_compute(
    bench: Bench, declared: dict[str, Any]
) -> None:
    told: list[list[int]] = []
    bench.execute(*shards(following_of_each(told), **declared), workers=2)
    assert told == [[], [], []]
