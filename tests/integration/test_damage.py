"""One flipped bit in any file of a run is found, by `lineage verify` and before a stage reads it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.command_line.invoke import FinishedRun, invoke
from tests.integration.killing import train_to_the_end

SEED = int(os.environ.get("ERL_TEST_SEED", "0"))


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.store, tmp_path / "store"))


@pytest.mark.slow
def test_a_flipped_bit_is_found_in_every_file_of_a_run(store: Path) -> None:
    run, artifacts = RunStore(str(store)).open("small"), ArtifactStore(str(store))
    assert verify_run(artifacts, run).problems == []

    chance = random.Random(SEED)
    files = sorted(path for path in (store / "artifacts").rglob("*") if path.is_file())
    kinds = {artifacts.open(path.parent.name).manifest.kind for path in files if path.name == "manifest.json"}
    assert {"checkpoint", "tasks", "trajectories", "memory", "sft_dataset", "evaluation"} <= kinds
    flipped: dict[Path, int] = {}
    for path in files:
        _, artifact_id, *_ = path.relative_to(store / "artifacts").parts
        flipped[path] = bit = chance.randrange(8 * path.stat().st_size)
        _flip(path, bit)
        where = f"seed {SEED}, bit {bit} of {path}"
        assert ArtifactStore(str(store)).verify(artifact_id) != [], where
        with pytest.raises(DamagedArtifact, match=artifact_id):
            ArtifactStore(str(store)).open(artifact_id)
        _flip(path, bit)

    # One file of each artifact at the same time: each is reported separately.
    one_each = {path.relative_to(store / "artifacts").parts[1]: path for path in files}
    for path in one_each.values():
        _flip(path, flipped[path])
    problems = verify_run(ArtifactStore(str(store)), run).problems
    for artifact_id, path in one_each.items():
        assert any(artifact_id in problem for problem in problems), path
    for path in one_each.values():
        _flip(path, flipped[path])
    assert verify_run(ArtifactStore(str(store)), run).problems == []

    for path in (store / "runs" / "small" / "run.json", store / "runs" / "small" / "ledger.jsonl"):
        # A kill leaves a last line without its newline.
        bit = chance.randrange(8 * (path.stat().st_size - 1))
        _flip(path, bit)
        told_of = invoke("lineage", "verify", "small", "--store", store)
        where = f"seed {SEED}, bit {bit} of {path}"
        assert (told_of.status, path.name in told_of.errors) == (2, True), where
        _flip(path, bit)


@pytest.mark.slow
def test_a_flipped_bit_is_found_before_the_next_stage_reads_it_and_is_made_again(
    finished: FinishedRun, store: Path
) -> None:
    chance = random.Random(SEED)
    whole = {}
    for path in sorted((store / "artifacts").glob("*/*/*.parquet")):
        whole[path] = path.read_bytes()
        _flip(path, chance.randrange(8 * path.stat().st_size))
    train_to_the_end(finished.config, store, check=True)
    assert {path: path.read_bytes() for path in whole} == whole
    # A memory version may have two files.
    assert len(list((store / "damaged").glob("*/*"))) == len({path.parent for path in whole}) > 5
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []


def _flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))
