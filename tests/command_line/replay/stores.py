"""What tests of `replay` read from a store and change in it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from storage.artifacts.manifest import Manifest, parse_manifest
from storage.runs.run import RunStore
from tests.command_line.invoke import Result, invoke


def replay(store: Path, *words: object) -> Result:
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
    """Change a manifest, and make its digest fit the change."""
    manifest = parse_manifest((folder / "manifest.json").read_bytes(), folder.name, "manifest.json")
    changed = Manifest.model_validate(manifest.model_dump() | change)
    (folder / "manifest.json").write_bytes(changed.document())
