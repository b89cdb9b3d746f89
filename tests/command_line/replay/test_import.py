"""Trajectories from elsewhere, on a copy of one small run."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from storage.artifacts.store import ArtifactStore
from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.replay.stores import entries, replay


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
            "import", "trajectories", file, "--name", file.suffix[1:], "--store", elsewhere, "--json"
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

    words = ["jsonl", "--offline", "--iteration", "1..2", "--name", "taught", "--config", finished.config]
    trained = replay(elsewhere, *words)
    assert trained.status == 0, trained.errors
    assert [row["age_unknown"] for row in trained.json["staleness"]] == [0, rows.filter(iteration=2).height]
    assert invoke("lineage", "verify", "taught", "--store", elsewhere).status == 0
    status = invoke("status", "jsonl", "--store", elsewhere)
    assert status.status == 2
    assert "run jsonl holds imported trajectories" in status.errors
    for name, said in (("rows.parquet", "exists and holds what was imported from another file, rows.jsonl"),):
        taken = invoke("import", "trajectories", tmp_path / name, "--name", "jsonl", "--store", elsewhere)
        assert (taken.status, said in taken.errors) == (2, True)


def test_a_wrong_file_is_refused_with_ten_problems_and_leaves_nothing(store: Path, tmp_path: Path) -> None:
    rows = [
        json.loads(line) | {"reward": None} for line in rollout_rows(store).write_ndjson().splitlines()[:30]
    ]
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = invoke("import", "trajectories", path, "--name", "wrong", "--store", tmp_path / "new")
    assert result.status == 2
    lines = result.errors.splitlines()
    assert lines[0].endswith("wrong.jsonl: 30 problems")
    assert lines[1].strip() == "row 1: reward: is null; a value is needed"
    assert (len(lines), lines[-2].strip()) == (13, "and 20 more")
    assert lines[-1].strip() == "storage/tables/trajectories.py has the columns"
    assert not (tmp_path / "new").exists()


def test_rows_of_another_tokenizer_are_not_trained_on(
    store: Path, finished: FinishedRun, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    rollout_rows(store).with_columns(tokenizer_digest=pl.lit("theirs")).write_parquet(path)
    assert invoke("import", "trajectories", path, "--name", "theirs", "--store", store).status == 0
    words = ["theirs", "--offline", "--iteration", "1..1", "--name", "x", "--no-evaluation"]
    assert "name one with --config CONFIG" in replay(store, *words).errors
    result = replay(store, *words, "--config", finished.config)
    assert result.status == 2
    assert "was tokenized by theirs" in result.errors


def test_rows_of_another_tokenizer_are_refused_at_import(store: Path, tmp_path: Path) -> None:
    artifacts = ArtifactStore(str(store))
    places = entries(store, "small")
    model = artifacts.open(places[0, "bootstrap", ""]).path("model")
    shard = next(id_ for (_, stage, _), id_ in places.items() if stage == "rollout_shard")
    rows = pl.read_parquet(artifacts.open(shard).path("trajectories.parquet"))
    rows.with_columns(tokenizer_digest=pl.lit("other")).write_parquet(tmp_path / "rows.parquet")
    found = invoke(
        *("import", "trajectories", tmp_path / "rows.parquet", "--name", "x", "--store", tmp_path / "store"),
        *("--tokenizer", model),
    )
    assert found.status == 2
    assert "row 1: trajectory" in found.errors
    assert "was tokenized by other, and" in found.errors
