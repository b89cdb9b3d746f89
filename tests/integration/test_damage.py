"""One flipped bit in any file of a run is found, by `lineage verify` and before a stage reads it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.integration.killing import SMALL, train_to_the_end

SEED = int(os.environ.get("ERL_TEST_SEED", "0"))


@pytest.mark.slow
def test_a_flipped_bit_is_found_in_every_file_of_a_run(tmp_path: Path) -> None:
    config, store = tmp_path / "small.yaml", tmp_path / "store"
    config.write_text(SMALL)
    train_to_the_end(config, store)
    run = RunStore(str(store)).open("small")
    assert verify_run(ArtifactStore(str(store)), run).problems == []

    chance = random.Random(SEED)
    files = sorted(path for path in (store / "artifacts").rglob("*") if path.is_file())
    stages = {path.relative_to(store / "artifacts").parts[0] for path in files}
    assert {"bootstrap", "rollout_shard", "index_memory", "update_policy", "fine_tune", "evaluate"} <= stages
    for path in files:
        _, artifact_id, *_ = path.relative_to(store / "artifacts").parts
        bit = chance.randrange(8 * path.stat().st_size)
        _flip(path, bit)
        where = f"seed {SEED}, bit {bit} of {path}"
        problems = verify_run(ArtifactStore(str(store)), run).problems
        assert any(artifact_id in problem for problem in problems), where
        with pytest.raises(DamagedArtifact, match=artifact_id):
            ArtifactStore(str(store)).open(artifact_id)
        _flip(path, bit)
    assert verify_run(ArtifactStore(str(store)), run).problems == []

    for path in (store / "runs" / "small" / "run.json", store / "runs" / "small" / "ledger.jsonl"):
        # A last line without its newline is what a kill leaves.
        bit = chance.randrange(8 * (path.stat().st_size - 1))
        _flip(path, bit)
        told = subprocess.run(
            [sys.executable, "-m", "command_line.main", "lineage", "verify", "small", "--store", store],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (told.returncode, path.name in told.stderr) == (2, True), f"seed {SEED}, bit {bit} of {path}"
        _flip(path, bit)


@pytest.mark.slow
def test_a_flipped_bit_is_found_before_the_next_stage_reads_it_and_is_made_again(tmp_path: Path) -> None:
    config, store = tmp_path / "small.yaml", tmp_path / "store"
    config.write_text(SMALL)
    train_to_the_end(config, store)
    chance = random.Random(SEED)
    whole = {}
    for path in sorted((store / "artifacts").glob("*/*/*.parquet")):
        whole[path] = path.read_bytes()
        _flip(path, chance.randrange(8 * path.stat().st_size))
    train_to_the_end(config, store)
    assert {path: path.read_bytes() for path in whole} == whole
    assert len(list((store / "damaged").glob("*/*"))) == len(whole) > 5
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []


def _flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))
