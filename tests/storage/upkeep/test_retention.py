from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError, PrunedFileError, RunBusy, StoreError
from storage.filesystem import open_root
from storage.lineage.reach import explain
from storage.runs.locks import run_lease
from storage.runs.run import Run, RunStore
from storage.serving.aliases import change_alias
from storage.tables.trajectories import write_trajectories
from storage.upkeep.collection import collect
from storage.upkeep.retention import RunRetention, plan_retention, retain, retain_chain
from storage.upkeep.rules import Kept, RetentionRule, parse_rule
from storage.upkeep.verification import verify_run
from tests.storage.conftest import FIRST
from tests.storage.serving.aliases import alias_change


def checkpoint(
    store: ArtifactStore,
    stage: str,
    iteration: int,
    branch: str = "",
    made_from: str | None = None,
    with_state: bool = True,
) -> str:
    import numpy as np

    inputs = {} if made_from is None else {"checkpoint": made_from}
    recipe = Recipe(stage, 1, {"iteration": iteration, "branch": branch}, inputs, 0)
    with store.create(recipe, run="run", iteration=iteration) as staging:
        (staging.path / "model").mkdir()
        save_file({"weight": np.zeros(4, np.float32)}, staging.path / "model" / "model.safetensors")
        (staging.path / "model" / "config.json").write_text("{}")
        if with_state:
            save_file({"moment": np.zeros(8, np.float32)}, staging.path / "optimizer.safetensors")
        (staging.path / "optimizer.json").write_text("{}")
        return staging.commit().manifest.artifact_id


def train(
    store: ArtifactStore, name: str, iterations: int, shared: int = 0, state_every: int = 1
) -> tuple[Run, dict[int, str]]:
    """A run of fine-tuned checkpoints; other runs share the first `shared` of them."""
    run = RunStore(store.uri).create(name, {})
    ids = {}
    for iteration in range(1, iterations + 1):
        ids[iteration] = checkpoint(
            store,
            "fine_tune",
            iteration,
            "" if iteration <= shared else name,
            with_state=iteration % state_every == 0,
        )
        run.record(iteration, "fine_tune", ids[iteration], kind="checkpoint", reused=False, seconds=0.0)
    return run, ids


def pruned(store: ArtifactStore, ids: dict[int, str], name: str) -> list[int]:
    fresh = ArtifactStore(store.uri)
    return [number for number, one in ids.items() if fresh.open(one).pruned.of(name) is not None]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("1", {9}),
        ("3", {7, 8, 9}),
        ("every:4", {4, 8, 9}),
        ("2,every:4", {4, 8, 9}),
        ("20", set(range(1, 10))),
    ],
)
def test_a_rule_keeps_the_last_iterations_and_every_so_many(text: str, kept: set[int]) -> None:
    assert parse_rule(text).kept(range(1, 10)) == kept


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "every:0", "every:", "3,", "every:2,3", "1.5", "3,every:x"]
)
def test_anything_else_is_no_rule(text: str) -> None:
    with pytest.raises(InputError, match="is not a retention rule"):
        parse_rule(text)


def test_old_files_go_by_their_rules_and_the_rest_stays(store_uri: str) -> None:
    store = ArtifactStore(store_uri)
    _, ids = train(store, "run", 4)
    rules: dict[Kept, RetentionRule] = {
        "checkpoints": RetentionRule("2", 2),
        "optimizer": RetentionRule("1", 1),
    }
    planned = plan_retention(store_uri, rules)
    assert pruned(store, ids, "optimizer.safetensors") == []
    assert {(p.manifest.iteration, p.files) for p in planned} == {
        (1, ("model/model.safetensors",)),
        (2, ("model/model.safetensors",)),
        (1, ("optimizer.safetensors",)),
        (2, ("optimizer.safetensors",)),
        (3, ("optimizer.safetensors",)),
    }
    retain(store_uri, rules)
    assert pruned(store, ids, "model/model.safetensors") == [1, 2]
    assert pruned(store, ids, "optimizer.safetensors") == [1, 2, 3]
    assert all(store.verify(artifact_id) == [] for artifact_id in ids.values())
    assert retain(store_uri, rules) == []


def test_a_rule_about_states_counts_the_iterations_that_have_one(store: ArtifactStore) -> None:
    run, ids = train(store, "run", 6, state_every=2)
    rules: dict[Kept, RetentionRule] = {"optimizer": parse_rule("2")}
    planned = plan_retention(store.uri, rules)
    assert [pruning.manifest.iteration for pruning in planned] == [2]
    with run.lock():
        RunRetention(store, run, rules).apply(run.stages(), ())
    assert pruned(store, ids, "optimizer.safetensors") == [2]


def test_what_a_run_still_needs_stays(store: ArtifactStore) -> None:
    _, ids = train(store, "one", 3)
    _, others = train(store, "two", 3)
    asked: list[str] = []

    def needed_by(name: str) -> list[str]:
        asked.append(name)
        return [ids[1]]

    rules: dict[Kept, RetentionRule] = {"checkpoints": parse_rule("1")}
    retain(store.uri, rules, "one", needed_by)
    assert asked == ["one"]
    assert pruned(store, ids, "model/model.safetensors") == [2]
    retain(store.uri, rules, None, needed_by)
    assert asked == ["one", "one", "two"]
    assert pruned(store, others, "model/model.safetensors") == [1, 2]
    assert pruned(store, ids, "model/model.safetensors") == [2]


def test_a_pruned_file_is_refused_by_name_and_the_others_can_be_read(store_uri: str) -> None:
    store = ArtifactStore(store_uri)
    _, ids = train(store, "run", 2)
    retain(store_uri, {"optimizer": parse_rule("1")})
    old = ArtifactStore(store_uri).open(ids[1])
    assert (old.path("model") / "model.safetensors").exists()
    said = rf"optimizer\.safetensors of artifact {ids[1]} \(fine_tune, iteration 1\) was pruned on .* by"
    with pytest.raises(PrunedFileError, match=said + " the rule --retain-optimizer 1"):
        old.path("optimizer.safetensors")
    with pytest.raises(PrunedFileError, match=said):
        _ = old.folder
    assert (ArtifactStore(store_uri).open(ids[2]).folder / "optimizer.safetensors").exists()
    retain(store_uri, {"checkpoints": parse_rule("1")})
    with pytest.raises(PrunedFileError, match=r"model/model\.safetensors"):
        ArtifactStore(store_uri).open(ids[1]).path("model")
    assert [file.path for file in ArtifactStore(store_uri).open(ids[1]).pruned.files] == [
        "optimizer.safetensors",
        "model/model.safetensors",
    ]


def link_weights(store: ArtifactStore, ids: dict[int, str], first: int, *others: int) -> int:
    """Let iterations share the file of weights of one, as updates do that had nothing to train on."""
    files = {
        number: Path(store.uri) / "artifacts" / "fine_tune" / ids[number] / "model" / "model.safetensors"
        for number in (first, *others)
    }
    for number in others:
        files[number].unlink()
        os.link(files[first], files[number])
    return files[first].stat().st_size


def test_bytes_that_pruned_files_share_are_freed_once(store: ArtifactStore) -> None:
    run, ids = train(store, "run", 4)
    size = link_weights(store, ids, 1, 2)
    rules: dict[Kept, RetentionRule] = {"checkpoints": parse_rule("1")}
    assert sum(pruning.bytes for pruning in plan_retention(store.uri, rules)) == 2 * size
    with run.lock():
        done = RunRetention(store, run, rules).apply(run.stages(), ())
    assert (len(done), sum(pruning.bytes for pruning in done)) == (3, 2 * size)


def test_bytes_that_a_kept_artifact_shares_are_not_freed(store: ArtifactStore) -> None:
    _, ids = train(store, "run", 4)
    size = link_weights(store, ids, 2, 3, 4)
    rules: dict[Kept, RetentionRule] = {"checkpoints": parse_rule("1")}
    assert [pruning.bytes for pruning in retain(store.uri, rules) if pruning.bytes] == [size]
    assert pruned(store, ids, "model/model.safetensors") == [1, 2, 3]


def test_what_a_branch_still_keeps_stays(store: ArtifactStore) -> None:
    _, old = train(store, "old", 6, shared=3)
    _, young = train(store, "young", 3, shared=3)
    assert {old[number] for number in (1, 2, 3)} == set(young.values())
    retain(store.uri, {"checkpoints": parse_rule("2")})
    assert pruned(store, old, "model/model.safetensors") == [1, 4]


def test_one_run_can_be_named_and_the_others_lose_nothing(store: ArtifactStore) -> None:
    _, one = train(store, "one", 3)
    _, two = train(store, "two", 3)
    retain(store.uri, {"checkpoints": parse_rule("1")}, "two")
    assert pruned(store, one, "model/model.safetensors") == []
    assert pruned(store, two, "model/model.safetensors") == [1, 2]
    with pytest.raises(InputError, match="no run three"):
        retain(store.uri, {"checkpoints": parse_rule("1")}, "three")


def test_nothing_is_pruned_while_a_run_is_worked_on(store: ArtifactStore) -> None:
    run, _ = train(store, "run", 3)
    with run.lock(), pytest.raises(RunBusy):
        retain(store.uri, {"checkpoints": parse_rule("1")})


@pytest.mark.parametrize("while_training", [False, True])
def test_nothing_more_is_pruned_once_another_machine_has_taken_over(
    object_store_uri: str, monkeypatch: pytest.MonkeyPatch, while_training: bool
) -> None:
    store, root = ArtifactStore(object_store_uri), open_root(object_store_uri)
    run, ids = train(store, "run", 4)
    lease = run_lease(root, "run") if while_training else root.join("collection", "lease")
    prune = ArtifactStore.prune

    def prune_slowly(own: ArtifactStore, *given: Any) -> Any:
        done = prune(own, *given)
        root.fs.pipe_file(f"{lease}/00000002.json", b"of another machine")
        return done

    monkeypatch.setattr(ArtifactStore, "prune", prune_slowly)
    rules: dict[Kept, RetentionRule] = {"optimizer": parse_rule("1")}
    taken_over = pytest.raises(RunBusy, match="another machine has taken over")
    if while_training:
        with run.lock(), taken_over:
            RunRetention(store, run, rules).apply(run.stages(), ())
    else:
        with taken_over:
            retain(store.uri, rules)
    assert len(pruned(store, ids, "optimizer.safetensors")) == 1


def test_lineage_of_pruned_rollouts_stays_to_the_row(tiny_run: Any) -> None:
    store, run = tiny_run.store, tiny_run.run
    before = verify_run(store, run)
    reach, facts = explain(store, run, "second", 9)
    run.record(2, "rollout_shard", _later_shard(store), kind="trajectories", reused=False, seconds=0.0)
    (pruning,) = retain(store.uri, {"trajectories": parse_rule("1")})
    assert (pruning.manifest.artifact_id, pruning.files) == (tiny_run.shard, ("trajectories.parquet",))

    fresh = ArtifactStore(store.uri)
    del facts["messages"]
    left = [
        replace(each, facts={name: each.facts[name] for name in each.facts if name != "messages"})
        for each in reach.things
    ]
    assert explain(fresh, run, "second", 9) == (replace(reach, things=tuple(left)), facts)
    after = verify_run(fresh, run)
    assert (after.problems, after.pruned_files) == ([], 1)
    assert after.trajectories == before.trajectories == 3
    with pytest.raises(PrunedFileError):
        fresh.open(tiny_run.shard).path("trajectories.parquet")
    assert not (
        Path(store.uri) / "artifacts" / "rollout_shard" / tiny_run.shard / "trajectories.parquet"
    ).exists()


def _later_shard(store: ArtifactStore) -> str:
    with store.create(Recipe("rollout_shard", 1, {"later": True}, {}, 0), run="run", iteration=2) as staging:
        return staging.commit().manifest.artifact_id


def test_trajectories_from_elsewhere_stay_whole(store: ArtifactStore) -> None:
    run = RunStore(store.uri).create("theirs", {"imported": {"file": "rows.jsonl"}})
    for iteration in (1, 2, 3):
        recipe = Recipe("import_trajectories", 1, {"iteration": iteration}, {}, 0, kind="trajectories")
        with store.create(recipe, run="theirs", iteration=iteration) as staging:
            write_trajectories(staging.path / "trajectories.parquet", [FIRST])
            staging.commit()
        run.record(iteration, recipe.stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=0.0)

    assert retain(store.uri, {"trajectories": parse_rule("1")}) == []


def test_a_changed_record_or_changed_kept_rows_are_found(tiny_run: Any) -> None:
    store, run = tiny_run.store, tiny_run.run
    run.record(2, "rollout_shard", _later_shard(store), kind="trajectories", reused=False, seconds=0.0)
    retain(store.uri, {"trajectories": parse_rule("1")})
    folder = Path(store.uri) / "artifacts" / "rollout_shard" / tiny_run.shard
    for name in ("pruned.json", "kept_rows/trajectories.parquet"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
        with pytest.raises(DamagedArtifact, match=name):
            ArtifactStore(store.uri).open(tiny_run.shard)
        assert any(name in problem for problem in verify_run(ArtifactStore(store.uri), run).problems)
        (folder / name).write_bytes(whole)


def test_a_pruning_that_was_killed_before_the_bytes_went_is_finished_by_the_next(
    store: ArtifactStore,
) -> None:
    _, ids = train(store, "run", 2)
    folder = Path(store.uri) / "artifacts" / "fine_tune" / ids[1]
    weights = (folder / "model" / "model.safetensors").read_bytes()
    retain(store.uri, {"checkpoints": parse_rule("1")})
    (folder / "model" / "model.safetensors").write_bytes(weights)
    fresh = ArtifactStore(store.uri)
    assert fresh.verify(ids[1]) == []
    with pytest.raises(PrunedFileError):
        fresh.open(ids[1]).path("model")
    (left,) = collect(store.uri, timedelta(hours=1)).leftovers
    assert (left.kind, left.bytes) == ("pruned, and still there", len(weights))
    assert not (folder / "model" / "model.safetensors").exists()


def test_what_was_made_from_replaced_artifacts_does_not_count(store_uri: str) -> None:
    """Three iterations; then, after an edit, the first two again. The old third is no end of the run."""
    store = ArtifactStore(store_uri)
    run = RunStore(store_uri).create("run", {})
    ids = {}
    for code, iterations in (("old", 3), ("new", 2)):
        before = None
        for iteration in range(1, iterations + 1):
            before = ids[code, iteration] = checkpoint(store, "fine_tune", iteration, code, before)
            run.record(iteration, "fine_tune", before, kind="checkpoint", reused=False, seconds=0.0)
    planned = plan_retention(store_uri, {"checkpoints": parse_rule("1")})
    assert [each.manifest.artifact_id for each in planned] == [ids["new", 1]]


def test_a_half_written_record_is_no_damage_and_is_collected(tmp_path: Path) -> None:
    store_uri = str(tmp_path / "store")
    store = ArtifactStore(store_uri)
    _, ids = train(store, "run", 1)
    half = Path(store_uri) / "artifacts" / "fine_tune" / ids[1] / ".pruned.json.0123456789abcdef"
    half.write_text("{")
    assert store.verify(ids[1]) == []
    assert [left.kind for left in collect(store_uri, timedelta()).leftovers] == ["half pruned"]
    assert not half.exists()


def test_files_that_are_computed_again_are_put_back(store_uri: str) -> None:
    store, reader = ArtifactStore(store_uri), ArtifactStore(store_uri)
    run, ids = train(store, "run", 2)
    assert reader.open(ids[1]).path("optimizer.safetensors").exists()
    retain(store_uri, {"optimizer": parse_rule("1")})
    with pytest.raises(PrunedFileError):  # also for a process that had opened it before
        reader.open(ids[1]).path("optimizer.safetensors")
    assert checkpoint(store, "fine_tune", 1, run.name) == ids[1]
    assert reader.open(ids[1]).path("optimizer.safetensors").exists()
    assert reader.open(ids[1]).pruned.files == []
    assert store.verify(ids[1]) == []


@pytest.mark.parametrize("while_training", [False, True])
def test_a_checkpoint_that_serves_keeps_its_files_and_so_does_the_one_before(
    tmp_path: Path, while_training: bool
) -> None:
    store = ArtifactStore(str(tmp_path))
    run, ids = train(store, "run", 5)
    for checkpoint, before in ((ids[1], None), (ids[2], ids[1]), (ids[3], ids[2])):
        change_alias(store.uri, "run", alias_change(checkpoint, previous=before, run="run"))
    rules: dict[Kept, RetentionRule] = {"checkpoints": RetentionRule("1", 1)}
    if while_training:
        with run.lock():
            RunRetention(store, run, rules).apply(run.stages(), set())
    else:
        retain(store.uri, rules)
    assert pruned(store, ids, "model/model.safetensors") == [1, 4]


@pytest.mark.parametrize("in_a_chain", [False, True])
def test_what_others_begin_to_keep_while_files_go_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_chain: bool
) -> None:
    store = ArtifactStore(str(tmp_path))
    run, ids = train(store, "run", 6)
    other, _ = train(store, "other", 1)
    last, _ = train(store, "last", 1)
    prune, by_rule = ArtifactStore.prune, set() if in_a_chain else {ids[6]}
    left = set[str]()

    def prune_while_others_work(own: ArtifactStore, artifact_id: str, *rest: Any) -> Any:
        """After the first removal, a run names what goes next, and an alias means what goes after that."""
        monkeypatch.undo()
        done = prune(own, artifact_id, *rest)
        first, second, *_ = sorted(set(ids.values()) - by_rule - {artifact_id})
        other.record(1, "fine_tune", first, kind="checkpoint", reused=True, seconds=0.0)
        change_alias(store.uri, "run", alias_change(second, previous=None, run="run"))
        left.update({first, second}, by_rule)
        return done

    monkeypatch.setattr(ArtifactStore, "prune", prune_while_others_work)
    rules: dict[Kept, RetentionRule] = {"checkpoints": RetentionRule("1", 1)}
    if in_a_chain:
        retain_chain(store, [run, last], rules)
    else:
        with run.lock():
            RunRetention(store, run, rules).apply(run.stages(), set())
    gone = {ids[number] for number in pruned(store, ids, "model/model.safetensors")}
    assert set(ids.values()) - gone == left


def test_nothing_is_pruned_while_a_run_has_lost_its_settings(store: ArtifactStore) -> None:
    run, ids = train(store, "run", 3, shared=3)
    train(store, "lost", 1, shared=1)
    rules: dict[Kept, RetentionRule] = {"checkpoints": RetentionRule("1", 1)}
    (Path(store.uri) / "runs" / "lost" / "run.json").unlink()
    with pytest.raises(StoreError, match=r"lost has a ledger and no run\.json"):
        retain(store.uri, rules)
    with run.lock(), pytest.raises(StoreError, match=r"lost has a ledger and no run\.json"):
        RunRetention(store, run, rules).apply(run.stages(), set())
    assert pruned(store, ids, "model/model.safetensors") == []
