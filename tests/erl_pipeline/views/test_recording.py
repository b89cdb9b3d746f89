"""What is recorded when a run is continued, tested with the files that TensorBoard reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from erl_pipeline.views.recording import RunRecord
from erl_pipeline.views.trackers import TensorBoard
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore
from tests.erl_pipeline.views.events import scalars
from tests.stage_records import KINDS


def commit(store: ArtifactStore, stage: str, iteration: int, loss: float) -> Manifest:
    """An artifact of a stage with the metric `loss`."""
    recipe = Recipe(stage, 1, {"iteration": iteration, "loss": loss}, {}, 0, kind=KINDS[stage])
    with store.create(recipe, run="small", iteration=iteration) as staging:
        return staging.commit(metrics={"loss": loss}).manifest


class Recorded:
    """A run whose stages record one number each, and its TensorBoard record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ArtifactStore(str(folder))
        self.run: Run = RunStore(str(folder)).create("small", {})
        self.record: RunRecord | None = None

    def start(self) -> None:
        """Start recording like a process that continues the run."""
        self.writer = TensorBoard(self.folder)
        self.record = RunRecord(self.writer, self.store, self.run.stages())

    def add(self, stage: str, iteration: int, loss: float, key: str = "") -> LedgerEntry:
        manifest = commit(self.store, stage, iteration, loss)
        entry = self.run.record(
            iteration,
            stage,
            manifest.artifact_id,
            kind=manifest.kind,
            key=key,
            reused=False,
            seconds=0.0,
        )
        if self.record is not None:
            self.record.add(entry)
        return entry

    def losses(self, stage: str) -> dict[int, list[float]]:
        """Step -> the loss that TensorBoard shows."""
        found = scalars(self.folder / "tensorboard")
        return {step: values for (tag, step), values in sorted(found.items()) if tag == f"{stage}/loss"}

    def written_by_last_start(self) -> set[int]:
        """The steps in the newest file."""
        newest = max((self.folder / "tensorboard").glob("events.*"))
        alone = self.folder / "newest"
        shutil.rmtree(alone, ignore_errors=True)
        alone.mkdir()
        shutil.copy(newest, alone)
        return {step for _, step in scalars(alone)}


@pytest.fixture
def five(tmp_path: Path) -> Recorded:
    """Five iterations, recorded as they happened and then killed: the file was never closed."""
    recorded = Recorded(tmp_path)
    recorded.start()
    for iteration in range(1, 6):
        recorded.add("update_policy", iteration, float(iteration))
        recorded.add("evaluate", iteration, iteration / 10)
    return recorded


ALL = {1: [1.0], 2: [2.0], 3: [3.0], 4: [4.0], 5: [5.0]}


def test_a_start_writes_the_newest_iteration_again_and_nothing_older(five: Recorded) -> None:
    five.start()
    assert five.written_by_last_start() == {5}
    assert five.losses("update_policy") == ALL
    five.add("update_policy", 6, 6.0)
    assert five.losses("update_policy") == {**ALL, 6: [6.0]}


def test_what_was_recorded_elsewhere_or_not_at_all_is_written_once(five: Recorded) -> None:
    five.record = None  # metrics off, or another machine
    five.add("update_policy", 6, 6.0)
    five.add("update_policy", 7, 7.0)
    five.start()
    assert five.written_by_last_start() == {5, 6, 7}
    shutil.rmtree(five.folder / "tensorboard")
    five.start()
    assert five.written_by_last_start() == {1, 2, 3, 4, 5, 6, 7}
    assert five.losses("update_policy") == {**ALL, 6: [6.0], 7: [7.0]}


def test_a_record_of_other_artifacts_than_the_ledgers_is_written_anew(five: Recorded) -> None:
    five.record = None
    five.add("update_policy", 2, 20.0)
    five.start()
    assert five.losses("update_policy") == {**ALL, 2: [20.0]}
    assert len(list((five.folder / "tensorboard").glob("events.*"))) == 1


def test_an_artifact_that_takes_anothers_place_lets_all_that_follows_from_it_not_count(
    five: Recorded,
) -> None:
    five.start()
    five.add("update_policy", 2, 20.0)
    # The old evaluation of iteration 2 stays until it is computed again; those after it do not.
    assert five.losses("update_policy") == {1: [1.0], 2: [20.0]}
    assert five.losses("evaluate") == {1: [pytest.approx(0.1)], 2: [pytest.approx(0.2)]}
    five.add("update_policy", 3, 30.0)
    assert five.losses("update_policy") == {1: [1.0], 2: [20.0], 3: [30.0]}
    # When the run is stopped there, the next start shows what the ledger has.
    five.start()
    assert five.losses("update_policy") == {1: [1.0], 2: [20.0], 3: [30.0], 4: [4.0], 5: [5.0]}


def test_an_artifact_that_comes_late_keeps_what_came_after_it(five: Recorded) -> None:
    five.start()
    five.add("fine_tune", 3, 0.5)
    assert five.losses("fine_tune") == {3: [0.5]}
    assert five.losses("update_policy") == ALL
    five.start()
    assert five.losses("update_policy") == ALL
    assert five.losses("fine_tune") == {3: [0.5]}


def test_a_damaged_manifest_is_recorded_when_the_artifact_is_whole_again(five: Recorded) -> None:
    shutil.rmtree(five.folder / "tensorboard")
    entry = next(each for each in five.run.stages() if (each.stage, each.iteration) == ("update_policy", 4))
    file = five.folder / "artifacts/update_policy" / entry.artifact_id / "manifest.json"
    whole = file.read_text()
    file.write_text(whole.replace('"loss": 4.0', '"loss": 5.0'))
    five.start()
    assert 4 not in five.losses("update_policy")
    file.write_text(whole)
    assert five.record is not None
    five.record.add(entry)
    assert five.losses("update_policy") == ALL


def test_shards_and_evaluations_on_request_are_left_out_and_keys_tell_artifacts_apart(five: Recorded) -> None:
    for recorded_at_start in (False, True):
        if recorded_at_start:
            five.start()
        five.add("rollout_shard", 6, 0.25, key="0000")
        five.add("evaluate_on_request", 6, 0.5, key="tasks")
        assert five.losses("rollout_shard") == five.losses("evaluate_on_request") == {}
    five.add("index_memory", 6, 1.0, key="0000")
    five.add("index_memory", 6, 2.0, key="0001")
    assert five.losses("index_memory") == {6: [1.0, 2.0]}


def test_with_lag_an_iteration_is_marked_when_those_beside_it_have_ended(five: Recorded) -> None:
    five.writer = TensorBoard(five.folder)
    five.record = RunRecord(five.writer, five.store, five.run.stages(), lag=1)
    five.add("generate_rollouts", 6, 6.0)
    assert five.writer.mark().split()[0] == "4"
    five.add("fine_tune", 5, 0.5)
    assert five.losses("fine_tune") == {5: [0.5]}
    assert five.losses("update_policy") == ALL
    assert five.losses("generate_rollouts") == {6: [6.0]}
