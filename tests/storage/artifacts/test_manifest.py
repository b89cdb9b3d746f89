from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.artifacts.artifact import PrunedFile, PruneRecord, parse_pruned
from storage.artifacts.manifest import (
    FileEntry,
    Manifest,
    checkout_version,
    machine,
    package_versions,
    parse_manifest,
)
from storage.artifacts.sealing import SCHEMA_VERSION, unseal
from storage.errors import DamagedArtifact


def a_manifest() -> Manifest:
    return Manifest(
        artifact_id="id",
        stage="evaluate",
        stage_version=1,
        run="run",
        iteration=None,
        inputs={"checkpoint": "abc"},
        kind="evaluation",
        settings={"rate": 1e-05, "names": ["a"]},
        index={},
        code={},
        seed=2**62,
        code_version="1",
        packages={"torch": "2"},
        environment={"threads": 2},
        started_at=datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC),
        finished_at=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
        policy_version=None,
        memory_version=None,
        determinism="bytes",
        counters={"tokens": 3, "seconds": 1.0},
        metrics={"loss": 0.1, "best": 1},
        files=[FileEntry(path="a", sha256="00", bytes=1)],
    )


def test_a_manifest_survives_its_file() -> None:
    written = unseal(a_manifest().document())
    assert written is not None
    assert Manifest.model_validate_json(written) == a_manifest()


def test_a_number_that_is_not_finite_is_named() -> None:
    diverged = a_manifest().model_copy(update={"metrics": {"loss": float("nan")}})
    with pytest.raises(ValueError, match=r"\$\.metrics\.loss: nan"):
        diverged.require_finite()


@pytest.mark.parametrize("path", ["../a", "/etc/a", "a/../../b", "a//b", "a/./b", "", ".", "a\0"])
def test_a_file_outside_of_its_artifact_is_refused(path: str) -> None:
    """In a store that others can write to, both documents could name one."""
    manifest = a_manifest()
    outside = FileEntry.model_construct(path=path, sha256="00", bytes=1, rows=None, table=None)
    written = manifest.model_copy(update={"files": [outside]}).document()
    with pytest.raises(DamagedArtifact, match=r"manifest\.json is not a manifest"):
        parse_manifest(written, manifest.artifact_id, "manifest.json")
    removed: dict[str, Any] = {
        "path": path,
        "sha256": "00",
        "bytes": 1,
        "pruned_at": manifest.started_at,
        "reason": "r",
    }
    entry = PrunedFile.model_construct(**removed, kept=None, redacted=False)
    pruned = PruneRecord.model_construct(
        schema_version=SCHEMA_VERSION, artifact_id=manifest.artifact_id, files=[entry]
    )
    with pytest.raises(DamagedArtifact, match=r"pruned\.json is no record of pruned files"):
        parse_pruned(pruned.document(), manifest.artifact_id, "pruned.json")


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError):
        Manifest.model_validate({**a_manifest().model_dump(), "colour": "red"})


def test_code_version_is_the_commit_and_whether_its_code_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert checkout_version(tmp_path) is None
    git("init")
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "file").write_text("1")
    (tmp_path / "run.yaml").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert checkout_version(tmp_path) == commit
    # Neither a configuration nor a plug-in that is written beside the program is code of the program.
    (tmp_path / "run.yaml").write_text("2")
    (tmp_path / "rhymes").mkdir()
    (tmp_path / "rhymes" / "rhymes.py").write_text("1")
    assert checkout_version(tmp_path) == commit
    (tmp_path / "storage" / "new").write_text("1")
    assert checkout_version(tmp_path) == f"{commit}-dirty"
    (tmp_path / "storage" / "new").unlink()
    (tmp_path / "storage" / "file").write_text("2")
    assert checkout_version(tmp_path) == f"{commit}-dirty"
    assert checkout_version(tmp_path / "storage") is None


def test_environment_names_what_bytes_depend_on() -> None:
    assert machine(threads=2)["threads"] == 2
    assert "threads" not in machine(threads=None)
    assert {"torch", "polars", "pyarrow", "lancedb"} <= set(package_versions())
