"""Audits, each on a copy of one small run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from erl_pipeline.runs.audit import AuditResult
from storage.artifacts.manifest import parse_manifest
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.invoke import invoke
from tests.command_line.replay.stores import artifact_folder, entries, file_hashes, replay, reseal


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
    # The stages were really computed, not looked up: training took time, and nothing was written to the
    # store.
    assert all(a["seconds"] > 0 for a in audited.values())
    assert "found committed" not in result.errors
    assert file_hashes(store) == before
    assert RunStore(str(store)).list() == ["small"]


def test_a_stage_that_the_run_lacks_is_refused_before_the_audit_is_announced(store: Path) -> None:
    result = invoke("replay", "small", "--iteration", "2", "--from", "evalaute", "--store", store)
    assert result.status == 2
    assert "--from evalaute: the stages of iteration 2 are generate_rollouts, " in result.errors
    assert "Audit of small" not in result.errors + result.output


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
    # Each stage gets its stored inputs, and the forged file has the same rows to train on.
    assert verdicts == {
        "update_policy": "equal",
        "build_distillation": "different",
        "fine_tune": "equal",
        "evaluate": "equal",
    }
    [difference] = [a["differences"] for a in result.json["artifacts"] if a["verdict"] == "different"]
    assert difference == [
        f"sft.parquet has SHA-256 {entry.sha256[:12]}, {entry.bytes:,} bytes; stored is "
        f"{forged['sha256'][:12]}, {forged['bytes']:,} bytes"
    ]


def test_an_audit_finds_a_flipped_bit(store: Path) -> None:
    path = artifact_folder(store, 2, "evaluate") / "evaluation.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    result = invoke("replay", "small", "--iteration", "2", "--from", "evaluate", "--store", store)
    assert result.status == 1
    assert "0 artifacts computed again: none; 0 files have the stored bytes." in result.output
    assert "1 artifact not computed: the stored files are damaged." in result.output
    assert "iteration 2, evaluate: " in result.output
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


def test_only_what_was_computed_counts_as_computed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        AuditResult(2, "update_policy", "", "a" * 32, "equal", 3, 1.0),
        AuditResult(2, "evaluate", "", "b" * 32, "other recipe", 0, 0.0, ("the code",)),
    ]
    monkeypatch.setattr("erl_pipeline.runs.audit.audit", lambda *_: results)
    told = invoke("replay", "small", "--iteration", "2", "--from", "update_policy", "--store", store)
    assert told.status == 1
    assert "1 artifact computed again: 1 equal; 3 files have the stored bytes." in told.output
    assert "1 artifact not computed: today's code would make other ones." in told.output
    assert "iteration 2, evaluate: the code\n" in told.output
