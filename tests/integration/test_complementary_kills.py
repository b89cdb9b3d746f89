"""Complementary RL killed in each of its own stages: its bytes are those of an undisturbed one."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.trajectories import read_trajectories
from storage.upkeep.verification import verify_run
from tests.command_line.invoke import SMALL
from tests.integration.killing import Watch, train_to_the_end, train_until
from tests.integration.runs import artifact_hashes

CRL = """\
method:
  type: complementary
  experience:
    warmup_iterations: 1
    merge_every: 2
    extractor: {batch: 2, cold_start: {steps: 200, demonstrations_per_step: 16}}
"""
WEIGHTS = "method: {type: complementary, experience: {type: weights, sampled: 4}}\n"
STAGES = {
    CRL: (
        "generate_rollouts",
        "extract_experience",
        "index_memory",
        "credit_experience",
        "update_extractor",
        "merge_experience",
    ),
    WEIGHTS: ("generate_rollouts", "score_experience"),
}
"""Stages after whose last artifact a run is killed: it is then computing the stage that follows."""


def published(store: Path, stage: str, count: int) -> Watch:
    """The moment when a stage has this many artifacts."""
    return lambda: len(list((store / "artifacts" / stage).glob("*"))) >= count


def with_beginning_of(store: Path, undisturbed: Path) -> None:
    """Put the first checkpoints, which take longest to make, into a store."""
    for stage in ("bootstrap", "bootstrap_extractor"):
        if (undisturbed / "artifacts" / stage).exists():
            shutil.copytree(undisturbed / "artifacts" / stage, store / "artifacts" / stage)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", [CRL, WEIGHTS], ids=["crl", "weights"])
def test_a_kill_in_each_new_stage_gives_the_same_bytes(tmp_path: Path, method: str) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL + method)
    undisturbed, store = tmp_path / "undisturbed", tmp_path / "disturbed"
    train_to_the_end(config, undisturbed)
    hashes = artifact_hashes(undisturbed)
    with_beginning_of(store, undisturbed)
    killed = 0
    for stage in STAGES[method]:
        count = len(list((undisturbed / "artifacts" / stage).glob("*")))
        killed += train_until(config, store, published(store, stage, count))
    assert killed == len(STAGES[method])
    train_to_the_end(config, store)
    assert artifact_hashes(store) == hashes
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []
    if method == CRL:
        require_traces(store)
    else:
        require_weights(store)


def require_traces(store: Path) -> None:
    """Check that each text of the extractor can be traced: episode, request, entry, attempt that saw it."""
    artifacts, entries = ArtifactStore(str(store)), RunStore(str(store)).open("small").stages()
    made = {(entry.stage, entry.iteration): artifacts.open(entry.artifact_id) for entry in entries}
    attempts = {
        row.trajectory_id
        for entry in entries
        if entry.stage == "rollout_shard"
        for row in read_trajectories([artifacts.open(entry.artifact_id).path("trajectories.parquet")])
    }
    first = made["extract_experience", 1]
    requests = {row.trajectory_id: row for row in read_trajectories([first.path("trajectories.parquet")])}
    assert len(requests) == first.manifest.counters["requests"] == 16
    assert {row.parent_trajectory_id for row in requests.values()} <= attempts
    memory = pl.read_parquet(made["index_memory", 1].path("entries.parquet"))
    assert len(memory) > 0
    assert set(memory["source_trajectory_id"]) <= requests.keys()
    assert set(memory["kind"]) == {"experience"}
    credits = pl.read_parquet(made["credit_experience", 2].path("credits.parquet"))
    assert len(credits) == 8  # the guided half of 16 attempts, with one entry each
    assert set(credits["request_id"]) <= requests.keys()
    assert set(credits["reward"]) <= {1.0, -1.0}
    # All held-out attempts see experience in the one evaluation, and none in the other.
    assert made["evaluate_with_experience", 2].manifest.counters["with_entries"] == 8
    assert made["evaluate", 2].manifest.memory_version is None
    # In the first iteration the policy is not trained, and there is nothing to train the extractor on.
    assert made["update_policy", 1].manifest.counters["dropped_zero_weight"] == 16
    assert made["update_extractor", 1].manifest.counters["optimizer_steps"] == 0


def require_weights(store: Path) -> None:
    """Check that all weights are neutral before the first training, and that stored trajectories have labels
    after it."""
    artifacts, entries = ArtifactStore(str(store)), RunStore(str(store)).open("small").stages()
    scores = [
        pl.read_parquet(artifacts.open(entry.artifact_id).path("scores.parquet"))
        for entry in entries
        if entry.stage == "score_experience"
    ]
    assert scores[0]["weight"].to_list() == [0.5] * 16
    labelled = scores[1].filter(pl.col("label").is_not_null())
    assert len(labelled) == 16
    assert set(labelled["trajectory_id"]) == set(scores[0]["trajectory_id"])
    assert scores[1]["advantage"].is_not_null().sum() == 4
