"""How much of a store each run takes, on a small history with a branch."""

from __future__ import annotations

from pathlib import Path

from storage.upkeep.collection import committed_bytes
from storage.upkeep.usage import usage_by_run
from tests.histories import write_history


def test_what_two_runs_have_is_shared_and_the_rest_their_own(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    usage = usage_by_run(history.store.uri)
    assert list(usage) == ["base", "branch"]
    shared = {"bootstrap", "shard", "rollouts"}
    assert usage["branch"].artifacts == len(shared) + 1
    assert usage["base"].artifacts == len(history.ids) - 1
    for run, only in (("branch", {"update-branch"}), ("base", set(history.ids) - shared - {"update-branch"})):
        assert usage[run].own == sum(size(tmp_path, history.ids[name]) for name in only)
        assert usage[run].shared == sum(size(tmp_path, history.ids[name]) for name in shared)
    manifest = history.store.find(history.ids["shard"])
    assert manifest is not None
    assert 0 < committed_bytes(manifest) < size(tmp_path, manifest.artifact_id)


def size(folder: Path, artifact_id: str) -> int:
    """Bytes of all files of an artifact, its manifest included."""
    (place,) = (folder / "store" / "artifacts").glob(f"*/{artifact_id}")
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
