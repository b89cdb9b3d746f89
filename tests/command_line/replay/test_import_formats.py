"""Rollouts of other trainers, on the tiny policy of one small run."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from erl_pipeline.policies.pretrained import load_policy
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.replay.stores import entries, replay


def test_a_dump_of_verl_is_mapped_and_trained_on(store: Path, finished: FinishedRun, tmp_path: Path) -> None:
    artifacts = ArtifactStore(str(store))
    model = artifacts.open(entries(store, "small")[0, "bootstrap", ""]).path("model")
    policy = load_policy(model)
    words = [policy.tokenizer.decode(number) for number in (5, 6)]
    file = tmp_path / "dump.jsonl"
    dumped = [
        {"input": words[0], "output": words[number], "score": float(number), "step": step}
        for step in (3, 7)
        for number in (0, 1)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in dumped))
    elsewhere = tmp_path / "elsewhere"
    command = ["import", "trajectories", file, "--name", "theirs", "--store", elsewhere, "--format", "verl"]
    refused = invoke(*command)
    assert (refused.status, "needs --tokenizer FOLDER and --model FOLDER" in refused.errors) == (2, True)

    done = invoke(*command, "--tokenizer", model, "--model", model)
    assert done.status == 0, done.errors
    assert "a trainer's and not the sampler's" in done.output
    assert invoke(*command, "--tokenizer", model, "--model", model, "--json").json["iterations"][0]["reused"]
    imported = [
        entry.artifact_id
        for entry in RunStore(str(elsewhere)).open("theirs").stages()
        if entry.kind == "trajectories"
    ]
    manifest = ArtifactStore(str(elsewhere)).open(imported[0]).manifest
    assert (manifest.settings["format"], manifest.settings["logprobs"]) == ("verl", "trainer")
    rows = pl.read_parquet(ArtifactStore(str(elsewhere)).open(imported[1]).path("trajectories.parquet"))
    assert rows["iteration"].to_list() == [2, 2]
    assert rows["group_id"].n_unique() == 1
    assert rows["success"].to_list() == [False, True]
    # The words in the file do not include the end token.
    assert rows["response_token_ids"].to_list() == [[5, 2], [6, 2]]
    assert all(value < 0 for row in rows["behaviour_logprobs"].to_list() for value in row)

    trained = replay(
        elsewhere,
        *("theirs", "--offline", "--iteration", "1..2", "--name", "taught", "--config", finished.config),
    )
    assert trained.status == 0, trained.errors


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
