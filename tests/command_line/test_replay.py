"""Branches, audits and offline training, each on a copy of one small run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.artifacts.integrity import parse_manifest
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.memory.history import latest_version
from storage.memory.reflection_memory import ReflectionMemory
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, Result, invoke
from tests.integration.runs import artifact_hashes, start


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    shutil.copytree(finished.store, folder)
    return folder


def replay(store: Path, *words: str | Path) -> Result:
    return invoke("replay", *words, "--store", store, "--json")


def entries(store: Path, run: str) -> dict[tuple[int, str, str], str]:
    """Artifact ids of a run by iteration, stage and key."""
    return {
        (e.iteration or 0, e.stage, e.key): e.artifact_id for e in RunStore(str(store)).open(run).stages()
    }


def file_hashes(store: Path) -> dict[str, str]:
    """SHA-256 of everything under `artifacts/`."""
    files = sorted(path for path in (store / "artifacts").rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def artifact_folder(store: Path, iteration: int, stage: str) -> Path:
    return store / "artifacts" / stage / entries(store, "small")[iteration, stage, ""]


def reseal(folder: Path, change: dict[str, Any]) -> None:
    """Let a manifest say something else, and agree with itself."""
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), folder.name, "manifest.json")
    changed = Manifest.model_validate(manifest.model_dump() | change)
    (folder / "manifest.json").write_bytes(changed.document())


def test_an_audit_computes_everything_again_and_finds_the_same_bytes(store: Path) -> None:
    before = file_hashes(store)
    result = replay(store, "small", "--iteration", "0", "--from", "prepare_tasks")
    assert result.status == 0, result.errors
    assert result.json["equal"] is True
    audited = {(a["iteration"], a["stage"], a["key"]): a for a in result.json["artifacts"]}
    stored = entries(store, "small")
    assert {place: a["artifact_id"] for place, a in audited.items()} == stored
    assert {a["verdict"] for a in audited.values()} == {"equal"}
    assert audited[2, "update_policy", ""]["files"] == len(
        ArtifactStore(str(store)).open(stored[2, "update_policy", ""]).files
    )
    # It was work, not a look at what is there: training took time, and nothing was written to the store.
    assert all(a["seconds"] > 0 for a in audited.values())
    assert "found committed" not in result.errors
    assert file_hashes(store) == before
    assert RunStore(str(store)).list() == ["small"]


def test_an_audit_names_the_file_that_differs(store: Path) -> None:
    folder = artifact_folder(store, 2, "build_distillation")
    path = folder / "sft.parquet"
    pq.write_table(pq.read_table(path), path, compression="none")
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), folder.name, "manifest.json")
    [entry] = manifest.files
    forged = entry.model_dump() | {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
    }
    reseal(folder, {"files": [forged]})

    result = replay(store, "small", "--iteration", "2", "--from", "update_policy")
    assert result.status == 1
    verdicts = {a["stage"]: a["verdict"] for a in result.json["artifacts"]}
    # Each stage is given what is stored, and the forged file trains the same rows.
    assert verdicts == {
        "update_policy": "equal",
        "build_distillation": "different",
        "fine_tune": "equal",
        "evaluate": "equal",
    }
    [difference] = [a["differences"] for a in result.json["artifacts"] if a["verdict"] == "different"]
    assert difference == [
        f"sft.parquet has SHA-256 {entry.sha256[:12]}, {entry.bytes:,} bytes; stored are "
        f"{forged['sha256'][:12]}, {forged['bytes']:,} bytes"
    ]


def test_an_audit_finds_a_flipped_bit(store: Path) -> None:
    path = artifact_folder(store, 2, "evaluate") / "evaluation.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    result = invoke("replay", "small", "--iteration", "2", "--from", "evaluate", "--store", store)
    assert result.status == 1
    assert "1 artifact computed again: 1 damaged; 0 files have the stored bytes." in result.output
    assert f"{path} has SHA-256" in result.output


def test_a_difference_in_bytes_that_were_never_promised_is_no_fault(store: Path) -> None:
    folder = artifact_folder(store, 2, "evaluate")
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), folder.name, "manifest.json")
    reseal(folder, {"determinism": "approximate", "counters": manifest.counters | {"episodes": 7}})
    result = replay(store, "small", "--iteration", "2", "--from", "evaluate")
    assert result.status == 0
    [artifact] = result.json["artifacts"]
    assert (artifact["verdict"], artifact["differences"]) == (
        "not promised",
        ["counter episodes is 8; stored is 7"],
    )


def test_a_branch_shares_what_is_before_its_stage_and_computes_the_rest(store: Path) -> None:
    before = file_hashes(store)
    words = ["small", "--iteration", "2", "--from", "update_policy", "--set", "optimizer.learning_rate=0.001"]
    result = replay(store, *words, "--as", "fast")
    assert result.status == 0, result.errors
    ours, theirs = entries(store, "small"), entries(store, "fast")
    assert ours.keys() == theirs.keys()
    changed = {place for place in ours if ours[place] != theirs[place]}
    # The dataset follows from the rollouts alone: its recipe is the same.
    assert changed == {(2, "update_policy", ""), (2, "fine_tune", ""), (2, "evaluate", "")}
    assert result.json["computed"] == 3
    assert result.json["shared"] == len(ours) - 3
    assert result.json["origin"] == {
        "type": "branch",
        "run": "small",
        "iteration": 2,
        "stage": "update_policy",
    }
    after = file_hashes(store)
    assert {path: after[path] for path in before} == before
    reused = {(e.iteration or 0, e.stage): e.reused for e in RunStore(str(store)).open("fast").stages()}
    assert [reused[1, "fine_tune"], reused[2, "generate_rollouts"], reused[2, "update_policy"]] == [
        True,
        True,
        False,
    ]

    again = replay(store, *words, "--as", "fast")
    assert again.status == 0
    assert entries(store, "fast") == theirs
    assert file_hashes(store).keys() == after.keys()


def test_a_branch_goes_on_beyond_the_run_and_train_continues_it(store: Path, finished: FinishedRun) -> None:
    words = ["small", "--iteration", "2", "--from", "generate_rollouts", "--set", "sampling.temperature=0.9"]
    result = replay(store, *words, "--iterations", "3", "--as", "cool")
    assert result.status == 0, result.errors
    assert [row["iteration"] for row in result.json["rows"]] == [0, 1, 2, 3]
    three = entries(store, "cool")
    assert three[1, "generate_rollouts", ""] == entries(store, "small")[1, "generate_rollouts", ""]
    assert three[2, "generate_rollouts", ""] != entries(store, "small")[2, "generate_rollouts", ""]

    settings = ["--set", "sampling.temperature=0.9", "--name", "cool", "--iterations", "4"]
    trained = invoke("train", finished.config, *settings, "--store", store, "--no-prefect", "--json")
    assert trained.status == 0, trained.errors
    four = entries(store, "cool")
    assert {place: four[place] for place in three} == three
    assert (4, "fine_tune", "") in four


def test_what_was_forgotten_stays_forgotten_in_a_branch(remembering: FinishedRun, tmp_path: Path) -> None:
    """Also in the memory that a branch from the end of an iteration shares: it is that of the run."""
    store = tmp_path / "store"
    shutil.copytree(remembering.store, store)
    held = memory_ids(store, "small", 1)
    assert held
    assert invoke("memory", "forget", "small", held[0], "--reason", "test", "--store", store).status == 0
    for stage in ("generate_rollouts", "fine_tune"):
        words = ["--iteration", "2", "--from", stage, "--set", "fine_tune.steps=2", "--as", stage]
        result = replay(store, "small", *words, "--iterations", "3")
        assert result.status == 0, result.errors
        assert memory_ids(store, stage, 1) == held
        later = set(memory_ids(store, stage, 3))
        assert held[0] not in later
        assert set(held[1:]) <= later
        assert replay(store, stage, "--iteration", "3", "--from", "generate_rollouts").status == 0
        assert invoke("lineage", "verify", stage, "--store", store).status == 0


def memory_ids(store: Path, run: str, iteration: int) -> list[str]:
    """Entries that the memory held after an iteration."""
    artifacts, opened = ArtifactStore(str(store)), RunStore(str(store)).open(run)
    memory = ReflectionMemory(str(store), run, artifacts, SentenceEmbedder("all-MiniLM-L6-v2"))
    return list(memory.at(latest_version(opened, iteration)).entries()["entry_id"])


@pytest.mark.parametrize(
    ("stage", "setting", "said"),
    [
        ("fine_tune", "optimizer.learning_rate=0.001", "change update_policy, which comes before fine_tune"),
        (
            "update_policy",
            "method.max_revisions=2",
            "change rollout_shard, which comes before update_policy",
        ),
        (
            "update_policy",
            "environment.max_steps=3",
            "change prepare_tasks, which comes before update_policy",
        ),
        ("update_policy", "seed=5", "(seed: 0 -> 5); it is made once for all iterations"),
        ("generate_rollouts", "policy.layers=3", "change bootstrap, which comes before generate_rollouts"),
        (
            "fine_tune",
            "method.distillation=off",
            "(method.distillation: on -> off); begin the branch there with --from build_d",
        ),
        ("evaluate", "optimizer.learning_rate=0.001", "change update_policy, which comes before evaluate"),
        ("update_policy", "update.epochs=1", "run small has these settings already"),
        ("update_policy", "name=other", "--set name=other: use --as"),
        ("update_policy", "iterations=9", "--set iterations=9: use --iterations"),
        ("update_policy", "update.epoch=2", "--set: update.epoch: unknown key; did you mean epochs?"),
        (
            "rollout_shard",
            "update.epochs=2",
            "--from rollout_shard: the stages of iteration 2 are generate_rollouts, index_m",
        ),
    ],
)
def test_settings_of_what_is_shared_are_refused(
    stage: str, setting: str, said: str, finished: FinishedRun
) -> None:
    words = ["small", "--iteration", "2", "--from", stage, "--set", setting, "--as", "refused"]
    result = replay(finished.store, *words)
    assert result.status == 2
    assert said in result.errors
    assert RunStore(str(finished.store)).list() == ["small"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--iteration", "2"], "say where to begin"),
        (["--iteration", "3", "--from", "evaluate"], "run small has iterations 1 to 2"),
        (
            ["--iteration", "0", "--from", "update_policy"],
            "the stages of iteration 0 are prepare_tasks, boots",
        ),
        (["--iteration", "2", "--from", "evaluate", "--set", "update.epochs=2"], "name it with --as NAME"),
        (
            ["--iteration", "9", "--from", "evaluate", "--set", "update.epochs=2", "--as", "x"],
            "run small has no rollout_shard 0000 of iteration 3, which comes before the branch",
        ),
        (["--iteration", "1", "--from", "evaluate", "--iterations", "1..2"], "allowed is a whole number"),
        (["--offline", "--iterations", "2..1", "--as", "x"], "--iterations 2..1: allowed is A..B"),
        (["--offline", "--iterations", "2..3", "--as", "x"], "no rollouts of iteration 3; it has 1 to 2"),
        (["--offline", "--as", "x"], "--offline needs --iterations A..B"),
        (["--offline", "--iterations", "1..2", "--as", "small"], "--as small: stored artifacts are never"),
        (["--offline", "--iterations", "1..2", "--as", "x", "--iteration", "1"], "no meaning with --offline"),
        (["--iteration", "1", "--from", "evaluate", "--no-evaluation"], "a meaning only with --offline"),
    ],
)
def test_mistakes_are_told(words: list[str], said: str, finished: FinishedRun) -> None:
    result = replay(finished.store, "small", *words)
    assert result.status == 2
    assert said in result.errors


@pytest.mark.slow
def test_a_branch_that_was_interrupted_continues_to_the_same_bytes(store: Path, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(store, undisturbed)
    words = [
        "small",
        "--iteration",
        "1",
        "--from",
        "update_policy",
        "--set",
        "update.epochs=2",
        "--as",
        "twice",
    ]
    process = start("replay", *words, "--store", store)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("iteration 1/2"):
            os.killpg(process.pid, signal.SIGINT)
            break
    errors = process.stderr.read()
    assert process.wait() == 130
    assert "Stopped. What was committed is kept; continue with: " in errors
    assert (2, "evaluate", "") not in entries(store, "twice")

    assert replay(store, *words).status == 0
    assert replay(undisturbed, *words).status == 0
    assert artifact_hashes(store, "twice") == artifact_hashes(undisturbed, "twice")


def test_a_name_stands_for_one_branch(store: Path) -> None:
    branch = ["small", "--from", "evaluate", "--set", "evaluation.samples_per_task=1", "--as", "sampled"]
    assert replay(store, *branch, "--iteration", "2").status == 0
    moved = replay(store, *branch, "--iteration", "1")
    assert moved.status == 2
    assert "was begun from evaluate in iteration 2 of small, not from evaluate in iteration 1" in moved.errors
    other = replay(store, *branch, "--iteration", "2", "--set", "evaluation.samples_per_task=2")
    assert other.status == 2
    assert "evaluation.samples_per_task: 1 -> 2" in other.errors
    taken = replay(store, "sampled", *branch[1:-1], "small", "--iteration", "2")
    assert taken.status == 2


def test_offline_training_takes_stored_rollouts_and_generates_none(store: Path) -> None:
    result = replay(
        store, "small", "--offline", "--iterations", "1..2", "--as", "offline", "--checkpoint", "latest"
    )
    assert result.status == 0, result.errors
    ours, theirs = entries(store, "small"), entries(store, "offline")
    assert {stage for _, stage, _ in theirs} == {
        "prepare_tasks",
        "bootstrap",
        "rollout_shard",
        "generate_rollouts",
        "measure_staleness",
        "update_policy",
        "build_distillation",
        "fine_tune",
        "evaluate",
    }
    shared = [place for place in theirs if place[1] in ("rollout_shard", "generate_rollouts")]
    assert {place: theirs[place] for place in shared} == {place: ours[place] for place in shared}
    assert theirs[1, "update_policy", ""] != ours[1, "update_policy", ""]

    artifacts = ArtifactStore(str(store))
    update = artifacts.open(theirs[1, "update_policy", ""]).manifest
    assert update.inputs["checkpoint"] == ours[2, "fine_tune", ""]
    assert update.settings["objective"]["correction"]["type"] == "decoupled"
    # Two iterations of update and fine-tuning lie between the first policy and the last.
    first, second = result.json["staleness"]
    assert (first["age_mean"], first["age_max"], first["age_unknown"]) == (4.0, 4, 0)
    assert (second["age_mean"], second["age_max"]) == (4.0, 4)
    assert 0 < first["effective_sample_size"] < 1
    assert 0 < first["effective_sample_size_capped"] <= 1
    staleness = pl.read_parquet(artifacts.open(theirs[1, "measure_staleness", ""]).path("staleness.parquet"))
    assert staleness["tokens"].sum() == first["trained_tokens"]
    assert set(staleness["policy_version"]) == {ours[0, "bootstrap", ""]}
    assert invoke("lineage", "verify", "offline", "--store", store).status == 0


def test_on_its_own_first_iteration_offline_training_is_on_policy(store: Path) -> None:
    result = replay(store, "small", "--offline", "--iterations", "1..1", "--as", "own", "--no-evaluation")
    assert result.status == 0, result.errors
    [staleness] = result.json["staleness"]
    assert (staleness["age_mean"], staleness["capped"]) == (0.0, 0.0)
    assert staleness["effective_sample_size"] == pytest.approx(1.0, abs=1e-6)
    assert not [place for place in entries(store, "own") if place[1] == "evaluate"]
    again = replay(store, "small", "--offline", "--iterations", "1..1", "--as", "own")
    assert again.status == 2
    assert (
        "was begun on the stored rollouts of iterations 1..1 of small, without evaluation, not"
        in again.errors
    )


def test_offline_training_without_correction_is_refused(finished: FinishedRun) -> None:
    words = ["--offline", "--iterations", "1..2", "--as", "x", "--set", "objective.correction.type=bypass"]
    result = replay(finished.store, "small", *words)
    assert result.status == 2
    assert "objective.correction.type: bypass cannot be trained offline" in result.errors


def rollout_rows(store: Path) -> pl.DataFrame:
    artifacts = ArtifactStore(str(store))
    shards = [
        id_ for (_, stage, _), id_ in sorted(entries(store, "small").items()) if stage == "rollout_shard"
    ]
    return pl.concat([pl.read_parquet(artifacts.open(id_).path("trajectories.parquet")) for id_ in shards])


def test_trajectories_that_leave_a_store_can_be_imported_and_trained_on(
    store: Path, finished: FinishedRun, tmp_path: Path
) -> None:
    rows = rollout_rows(store)
    rows.write_ndjson(tmp_path / "rows.jsonl")
    rows.write_parquet(tmp_path / "rows.parquet")
    elsewhere = tmp_path / "elsewhere"
    for name in ("rows.jsonl", "rows.parquet"):
        file = tmp_path / name
        found = invoke(
            "import", "trajectories", file, "--as", file.suffix[1:], "--store", elsewhere, "--json"
        )
        assert found.status == 0, found.errors
        assert found.json["rows"] == rows.height
        assert [each["iteration"] for each in found.json["iterations"]] == [1, 2]
    imported = [
        pl.read_parquet(
            ArtifactStore(str(elsewhere)).open(each["trajectories_id"]).path("trajectories.parquet")
        )
        for each in found.json["iterations"]
    ]
    assert pl.concat(imported).equals(rows)
    assert invoke("lineage", "verify", "jsonl", "--store", elsewhere).status == 0

    words = ["jsonl", "--offline", "--iterations", "1..2", "--as", "taught", "--config", finished.config]
    trained = replay(elsewhere, *words)
    assert trained.status == 0, trained.errors
    assert [row["age_unknown"] for row in trained.json["staleness"]] == [0, rows.filter(iteration=2).height]
    assert invoke("lineage", "verify", "taught", "--store", elsewhere).status == 0
    status = invoke("status", "jsonl", "--store", elsewhere)
    assert status.status == 2
    assert "run jsonl holds imported trajectories" in status.errors
    for name, said in (("rows.parquet", "exists and holds the trajectories of another file, rows.jsonl"),):
        taken = invoke("import", "trajectories", tmp_path / name, "--as", "jsonl", "--store", elsewhere)
        assert (taken.status, said in taken.errors) == (2, True)


def test_a_wrong_file_is_refused_with_ten_problems_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    rows = [
        json.loads(line) | {"reward": None} for line in rollout_rows(store).write_ndjson().splitlines()[:30]
    ]
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = invoke("import", "trajectories", path, "--as", "wrong", "--store", tmp_path / "new")
    assert result.status == 2
    lines = result.errors.splitlines()
    assert lines[0].endswith("wrong.jsonl: 30 problems")
    assert lines[1].strip() == "row 1: reward: is null; a value is needed"
    assert (len(lines), lines[-1].strip()) == (12, "and 20 more")
    assert not (tmp_path / "new").exists()


def test_rows_of_another_tokenizer_are_not_trained_on(
    store: Path, finished: FinishedRun, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    rollout_rows(store).with_columns(tokenizer_digest=pl.lit("theirs")).write_parquet(path)
    assert invoke("import", "trajectories", path, "--as", "theirs", "--store", store).status == 0
    words = ["theirs", "--offline", "--iterations", "1..1", "--as", "x", "--no-evaluation"]
    assert "name one with --config CONFIG" in replay(store, *words).errors
    result = replay(store, *words, "--config", finished.config)
    assert result.status == 2
    assert "was tokenized by theirs" in result.errors


def test_two_runs_side_by_side(store: Path) -> None:
    words = [
        "small",
        "--iteration",
        "2",
        "--from",
        "fine_tune",
        "--set",
        "fine_tune.steps=9",
        "--as",
        "longer",
    ]
    assert replay(store, *words).status == 0
    found = invoke("diff", "small", "longer", "--store", store, "--json").json
    assert found["settings"] == ["fine_tune.steps: 3 -> 9"]
    assert found["origin_a"] is None
    assert found["origin_b"]["stage"] == "fine_tune"
    sharing = {(each["iteration"], each["stage"]): each["sharing"] for each in found["stages"]}
    differing = {place for place, how in sharing.items() if how != "shared"}
    assert differing == {(2, "fine_tune"), (2, "evaluate")}
    assert [each["iteration"] for each in found["results"]] == [0, 1, 2]
    last = found["results"][-1]
    assert last["paired"]["tasks"] == 8
    assert last["paired"]["difference"] == pytest.approx(
        last["b"]["evaluate/greedy_success"]["value"] - last["a"]["evaluate/greedy_success"]["value"]
    )
    assert found["results"][0]["paired"] is None  # one shared evaluation
    shown = invoke("diff", "small", "longer", "--store", store).output
    assert "B: longer, begun from fine_tune in iteration 2 of small" in shown
    assert "  fine_tune.steps: 3 -> 9\n" in shown
    assert invoke("diff", "small", "absent", "--store", store).status == 2
