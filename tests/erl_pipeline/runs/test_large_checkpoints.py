"""Runs whose checkpoints are several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.policies import checkpoint_files
from erl_pipeline.policies.checkpoints import lacks_state
from storage.artifacts.store import ArtifactStore
from storage.upkeep.offered import files_of
from storage.upkeep.rules import Kept
from tests.erl_pipeline.runs.small_runs import go, hashes, ids, small


def test_a_run_goes_on_from_several_files_as_from_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process reads policy and optimizer from what the first has written; what is sampled is the
    same, and so is what is trained."""
    config = small(objective={"advantages_per": "group", "entropy_coefficient": 0.1})
    go(config, tmp_path / "one", 2)
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 100_000)
    go(config, tmp_path / "several", 2, stop_after="update_policy of iteration 1")
    go(config, tmp_path / "several", 2)

    place = StageKey(2, "fine_tune", "")
    one, several = (
        ArtifactStore(str(tmp_path / store)).open(ids(tmp_path / store)[place]).manifest
        for store in ("one", "several")
    )
    assert not lacks_state(several)
    kinds: tuple[tuple[Kept, str], ...] = (("checkpoints", "model/model"), ("optimizer", "optimizer"))
    for kind, name in kinds:
        assert [entry.path for entry in files_of(one, kind)] == [f"{name}.safetensors"]
        files = [entry.path for entry in files_of(several, kind)]
        assert len(files) > 2
        assert files[0] == f"{name}-00001-of-{len(files):05d}.safetensors"

    def sampled(store: Path) -> list[str]:
        return [
            files["trajectories.parquet"]
            for files in hashes(store).values()
            if "trajectories.parquet" in files
        ]

    assert sampled(tmp_path / "one") == sampled(tmp_path / "several")
    assert one.metrics["loss"] == several.metrics["loss"]
