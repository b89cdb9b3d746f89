"""Runs that go on where their ledger is whole, and end as runs that were never stopped."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.config.load import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.pipeline import distillation
from erl_pipeline.pipeline.branching import establish_origin
from erl_pipeline.pipeline.context import open_context
from erl_pipeline.pipeline.outcome import Silent, StageOutcome
from erl_pipeline.pipeline.train import train
from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.forgetting import forget
from storage.memory.history import latest_version
from storage.memory.reflection_memory import ReflectionMemory
from storage.runs.origin import BranchOrigin, OfflineOrigin
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run

SMALL = """\
name: small
iterations: 4
threads: 1
environment: {type: frozen_lake, training_boards: 32, rows: [3, 3], path_length: [1, 2], max_steps: 2}
policy: {type: tiny, layers: 2, cold_start: {steps: 60, demonstrations_per_step: 16}}
rollouts: {tasks_per_iteration: 4, group_size: 4, tasks_per_shard: 2}
evaluation: {tasks: 4, every: 2}
"""

Ids = dict[tuple[int, str, str], str]


class Listener(Silent):
    """Keeps what it is told; asks to stop after a stage of an iteration."""

    def __init__(self, stop_after: tuple[int, str] | None = None) -> None:
        self.warnings: list[str] = []
        self.made: list[tuple[int, str]] = []
        self.reused: list[tuple[int, str]] = []
        self.stop = threading.Event()
        self._stop_after = stop_after

    def stage_finished(self, outcome: StageOutcome) -> None:
        place = (outcome.iteration or 0, outcome.stage)
        (self.reused if outcome.reused else self.made).append(place)
        if place == self._stop_after:
            self.stop.set()

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    path = tmp_path_factory.mktemp("resumption") / "small.yaml"
    path.write_text(SMALL)
    return load_config(path, [])


@pytest.fixture(scope="module")
def four(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run through iteration 4; tests take copies."""
    store = tmp_path_factory.mktemp("four") / "store"
    go(config, store, 4)
    return store


@pytest.fixture
def store(four: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(four, tmp_path / "store"))


def go(
    config: RunConfig,
    store: Path,
    iterations: int,
    *,
    check: bool = False,
    origin: BranchOrigin | OfflineOrigin | None = None,
    stop_after: tuple[int, str] | None = None,
) -> Listener:
    listener = Listener(stop_after)
    with open_context(config, str(store), listener, listener.stop) as context:
        if origin is not None:
            establish_origin(str(store), context.run, origin)
        if stop_after is None:
            train(context, iterations, check=check)
        else:
            with pytest.raises(Interrupted):
                train(context, iterations, check=check)
    return listener


def ids(store: Path, run: str = "small") -> Ids:
    entries = RunStore(str(store)).open(run).stages()
    return {(entry.iteration or 0, entry.stage, entry.key): entry.artifact_id for entry in entries}


def damage(store: Path, stage: str, iteration: int, key: str = "") -> Path:
    """Cut an artifact's first file short; gives the file."""
    folder = store / "artifacts" / stage / ids(store)[iteration, stage, key]
    victim = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    return victim


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Ids of the artifacts whose manifest or files were read."""
    seen: set[str] = set()

    def watched(read: Callable[..., object]) -> Callable[..., object]:
        def reading(store: ArtifactStore, artifact: str | Manifest, *rest: object) -> object:
            seen.add(artifact if isinstance(artifact, str) else artifact.artifact_id)
            return read(store, artifact, *rest)

        return reading

    monkeypatch.setattr(ArtifactStore, "find", watched(ArtifactStore.find))
    monkeypatch.setattr(ArtifactStore, "open", watched(ArtifactStore.open))
    return seen


def test_one_more_iteration_looks_only_at_the_newest_and_what_that_rests_on(
    config: RunConfig, store: Path, looked_at: set[str]
) -> None:
    listener = go(config, store, 5)
    assert [stage for iteration, stage in listener.made if iteration == 5] == [
        "rollout_shard",
        "rollout_shard",
        "generate_rollouts",
        "index_memory",
        "update_policy",
        "build_distillation",
        "fine_tune",
        "evaluate",
    ]
    assert {iteration for iteration, _ in listener.reused} == {0, 4}
    places = {artifact_id: place for place, artifact_id in ids(store).items()}
    assert {places[artifact_id][0] for artifact_id in looked_at} == {0, 4, 5}


def test_old_damage_does_not_stop_a_run_and_a_check_makes_it_good(config: RunConfig, store: Path) -> None:
    before = ids(store)
    victim = damage(store, "build_distillation", 1)
    assert go(config, store, 5).warnings == []
    run = RunStore(str(store)).open("small")
    (problem,) = verify_run(ArtifactStore(str(store)), run).problems
    assert str(victim) in problem
    (warning,) = go(config, store, 5, check=True).warnings
    assert str(victim) in warning
    assert verify_run(ArtifactStore(str(store)), run).problems == []
    assert before.items() <= ids(store).items()


def test_damage_in_the_newest_iteration_is_made_good_at_once(config: RunConfig, store: Path) -> None:
    before = ids(store)
    damage(store, "build_distillation", 4)
    listener = go(config, store, 4)
    assert listener.made == [(4, "build_distillation")]
    assert ids(store) == before


def test_damage_that_needs_something_older_that_is_damaged_is_made_good_from_the_start(
    config: RunConfig, store: Path
) -> None:
    before = ids(store)
    damage(store, "rollout_shard", 4, "0001")
    damage(store, "fine_tune", 3)
    shutil.rmtree(store / "artifacts/update_policy" / before[2, "update_policy", ""])
    listener = go(config, store, 4)
    # To make the shard again, the policy of iteration 3 is read, and to make that one, an older one.
    assert sorted(listener.made) == [(2, "update_policy"), (3, "fine_tune"), (4, "rollout_shard")]
    assert "the run does not go on at iteration 4 but is gone over from its start" in listener.warnings[1]
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []
    assert ids(store) == before


def raise_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the stage that builds the distillation dataset another version."""

    def raised(**fields: object) -> Recipe:
        return replace(Recipe(**fields), stage_version=99)  # type: ignore[arg-type]

    monkeypatch.setattr(distillation, "Recipe", raised)


def test_a_stage_of_another_version_makes_all_that_follows_from_it_anew(
    config: RunConfig, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(store)
    raise_version(monkeypatch)
    # Stopped on the way: the ledger is new through iteration 2 and old after it.
    listener = go(config, store, 4, stop_after=(3, "rollout_shard"))
    (warning,) = listener.warnings
    assert warning.startswith(
        "build_distillation of iteration 4 would give another artifact than the run has"
    )
    assert (4, "build_distillation") not in listener.made
    listener = go(config, store, 5)
    assert listener.warnings == []
    assert {iteration for iteration, _ in listener.reused} == {0, 2, 3}  # 3: its first shard
    assert {iteration for iteration, _ in listener.made} == {3, 4, 5}

    whole = tmp_path / "whole"
    go(config, whole, 4)
    go(config, whole, 5)
    assert ids(store) == ids(whole)
    assert ids(store)[4, "fine_tune", ""] != before[4, "fine_tune", ""]


@pytest.mark.parametrize("stop_after", [(2, "fine_tune"), (4, "rollout_shard")])
def test_a_branch_goes_on_as_if_it_had_not_been_stopped(
    config: RunConfig, four: Path, store: Path, tmp_path: Path, stop_after: tuple[int, str]
) -> None:
    branch = config.model_copy(update={"name": "branch", "seed": 7})
    origin = BranchOrigin(run="small", iteration=2, stage="update_policy")
    undisturbed = Path(shutil.copytree(four, tmp_path / "undisturbed"))
    go(branch, undisturbed, 4, origin=origin)

    go(branch, store, 4, origin=origin, stop_after=stop_after)
    listener = go(branch, store, 4, origin=origin)
    assert listener.warnings == []
    # Its first own iteration is half shared: it is gone over as it was begun.
    assert {iteration for iteration, _ in listener.reused} == ({2} if stop_after[0] == 2 else {3, 4})
    assert ids(store, "branch") == ids(undisturbed, "branch")


def test_an_offline_run_goes_on_as_if_it_had_not_been_stopped(
    config: RunConfig, four: Path, store: Path, tmp_path: Path
) -> None:
    correction = {"objective": {"correction": {"type": "decoupled"}}}
    offline = RunConfig.model_validate({**config.model_dump(), "name": "offline", **correction})
    origin = OfflineOrigin(
        run="small", first_iteration=1, last_iteration=4, checkpoint_id=None, evaluates=True
    )
    undisturbed = Path(shutil.copytree(four, tmp_path / "undisturbed"))
    go(offline, undisturbed, 4, origin=origin)
    go(offline, store, 4, origin=origin, stop_after=(3, "update_policy"))
    listener = go(offline, store, 4, origin=origin)
    assert 1 not in {iteration for iteration, _ in listener.reused}
    assert min(iteration for iteration, _ in listener.made) == 3
    assert listener.warnings == []
    assert ids(store, "offline") == ids(undisturbed, "offline")
    assert go(offline, store, 4, origin=origin).made == []


def test_what_was_forgotten_between_two_starts_stays_forgotten(config: RunConfig, store: Path) -> None:
    artifacts, run = ArtifactStore(str(store)), RunStore(str(store)).open("small")
    held = entry_ids(store)
    assert len(held) > 2
    first = forget(artifacts, run, held[0], "wrong")
    go(config, store, 5)
    second = forget(artifacts, run, held[1], "wrong too")
    assert go(config, store, 5).made == []
    third = forget(artifacts, run, held[2], "and this")
    listener = go(config, store, 6)
    assert [one.iteration for one in (first, second, third)] == [4, 5, 5]
    assert listener.warnings == []
    assert {iteration for iteration, _ in listener.reused} == {0, 5}
    assert not set(held[:3]) & set(entry_ids(store))
    shard = artifacts.open(ids(store)[6, "rollout_shard", "0000"]).manifest
    assert shard.memory_version == third.memory_version

    # Gone over from the start, the run has the same artifacts.
    artifacts_before = set(ids(store).values())
    assert go(config, store, 6, check=True).made == []
    assert set(ids(store).values()) == artifacts_before


def entry_ids(store: Path) -> list[str]:
    """Ids of the entries that the run's memory holds."""
    version = latest_version(RunStore(str(store)).open("small"))
    memory = ReflectionMemory(str(store), "small", ArtifactStore(str(store)), SentenceEmbedder())
    return [str(entry) for entry in memory.at(version).facts()["entry_id"]]
