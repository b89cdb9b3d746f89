"""Artifacts that are written and not yet committed. Other stages can read their files while these are hashed
and flushed to disk.

Only a store that is a folder of this machine has such artifacts. Their files are moved to their place first.
The manifest is written later, and only then does the artifact exist. If the process is killed in between, the
next writer removes the files (`storage.artifacts.layout.remove_abandoned`).
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, Unpack

from storage.artifacts.artifact import Artifact
from storage.artifacts.late_files import wait_until_whole
from storage.artifacts.layout import FILES, StagingFolder, StoreLayout
from storage.artifacts.manifest import (
    MANIFEST,
    Determinism,
    FileEntry,
    Manifest,
    code_version,
    describe_files,
    machine,
    package_versions,
)
from storage.artifacts.recipe import Recipe
from storage.errors import store_errors
from storage.filesystem import NotOnDisk, make_folder, sha256_file, sync_folder, sync_tree

_NONE_LATE: Mapping[str, int] = {}


class Told(TypedDict, total=False):
    """What a stage tells of its artifact, besides the files; `storage.artifacts.manifest.Manifest` has the
    same fields. `rows` (file name -> number of rows) is checked against the Parquet files. `environment` is
    added to what the manifest says about this machine."""

    counters: Mapping[str, int | float]
    metrics: Mapping[str, float]
    rows: Mapping[str, int]
    policy_version: str | None
    memory_version: str | None
    determinism: Determinism
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Draft:
    """What becomes the manifest of an artifact; it has no digests yet.

    `unchanged_from` is the id of an artifact that has some of the same files: they are stored once, if the
    store can do that. `late` are the names of files that may still be being written.
    """

    manifest: Manifest
    unchanged_from: str = ""
    late: tuple[str, ...] = ()


@dataclass(frozen=True)
class Writer:
    """Who writes an artifact: the run, its iteration, and the CPU thread count that bytes depend on."""

    run: str
    iteration: int | None
    threads: int | None


def draft(
    recipe: Recipe,
    folder: Path,
    writer: Writer,
    started_at: datetime,
    unchanged_from: str = "",
    late: Mapping[str, int] = _NONE_LATE,
    **told: Unpack[Told],
) -> Draft:
    """Describe the files in a folder as an artifact. `late`: sizes, in bytes, of those that are still being
    written (`storage.artifacts.late_files`).

    Raises ValueError when `rows` names a file that is not there or holds another number of rows, or when a
    number is not finite.
    """
    with store_errors("write", folder):
        found = describe_files(folder, told.get("rows", {}), digest=lambda _file: "")
    files = [entry.model_copy(update={"bytes": late.get(entry.path, entry.bytes)}) for entry in found]
    manifest = Manifest(
        artifact_id=recipe.artifact_id,
        stage=recipe.stage,
        stage_version=recipe.stage_version,
        run=writer.run,
        iteration=writer.iteration,
        inputs=dict(recipe.inputs),
        kind=recipe.kind,
        settings=dict(recipe.settings),
        index=dict(recipe.index),
        code=dict(recipe.code),
        seed=recipe.seed,
        code_version=code_version(),
        packages=package_versions(),
        environment={**machine(writer.threads), **told.get("environment", {})},
        started_at=started_at,
        finished_at=datetime.now(UTC),
        policy_version=told.get("policy_version"),
        memory_version=told.get("memory_version"),
        determinism=told.get("determinism", "bytes"),
        counters=dict(told.get("counters", {})),
        metrics=dict(told.get("metrics", {})),
        files=files,
    )
    manifest.require_finite()
    return Draft(manifest, unchanged_from, tuple(late))


def is_hashed(manifest: Manifest) -> bool:
    """Whether a manifest has the digests of its files."""
    return all(entry.sha256 for entry in manifest.files)


def hashed(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest with the digests of the files in a folder. Raises NotOnDisk if one of them has another
    size than the manifest says, and StoreError if one cannot be read."""

    def with_digest(entry: FileEntry) -> FileEntry:
        path = folder / entry.path
        if (size := path.stat().st_size) != entry.bytes:
            raise NotOnDisk(
                f"{path} has {size} bytes, and {entry.bytes} were written. Run the same command again."
            )
        return entry.model_copy(update={"sha256": sha256_file(path)})

    with store_errors("read", folder):
        return manifest.model_copy(update={"files": [with_digest(entry) for entry in manifest.files]})


class Uncommitted:
    """An artifact that a stage writes in this process or another one of this machine, and that this process
    then commits.

    Args:
        publish: makes a written folder the artifact of its manifest, or opens the artifact that was there
            first.
        share: stores equal files of another artifact once.
    """

    def __init__(
        self,
        layout: StoreLayout,
        publish: Callable[[Manifest, Path, str], Artifact],
        share: Callable[[Manifest, Path, str], None],
    ) -> None:
        self._layout = layout
        self._publish = publish
        self._share = share
        self._folder = StagingFolder(layout.staging)
        self._target: Path | None = None
        self.path = self._folder.path / FILES
        """The empty folder for the artifact's files."""
        with store_errors("write", self.path):
            self.path.mkdir()

    def place(self, manifest: Manifest) -> bool:
        """Move the written files to where the artifact will be; False, and nothing is moved, if there is
        something already."""
        target = Path(self._layout.of(manifest.stage, manifest.artifact_id))
        self._layout.root.refuse_link(str(target))
        with store_errors("write", target):
            make_folder(target.parent)
            self._folder.name_place(manifest.stage, manifest.artifact_id)
            try:
                self.path.rename(target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                self._folder.forget_place()
                return False
        self._target = target
        return True

    def commit(self, written: Draft) -> Artifact:
        """Wait until all files are written, hash them, flush them to disk, and write the manifest.

        If another writer was first, its artifact is returned instead. Raises StoreError when the store cannot
        be read or written, or a file was not written whole; NotOnDisk when this must not be tried again with
        the same files.
        """
        target = self._target
        for entry in written.manifest.files:
            if entry.path in written.late:
                wait_until_whole((target or self.path) / entry.path, entry.bytes)
        if target is None:
            manifest = hashed(written.manifest, self.path)
            return self._publish(manifest, self.path, written.unchanged_from)
        manifest = hashed(written.manifest, target)
        if written.unchanged_from:
            self._share(manifest, target, written.unchanged_from)
        with store_errors("commit an artifact to", target):
            sync_tree(target)
            sync_folder(target.parent)
            # Not beside its place, where a kill would leave a file that belongs to no artifact.
            ready = self._folder.path / MANIFEST
            ready.write_bytes(manifest.document())
            sync_tree(self._folder.path)
            ready.rename(target / MANIFEST)
            sync_folder(target)
        self._target = None
        return Artifact(manifest, target)

    def close(self) -> None:
        """End the writing; what is not committed is removed."""
        self._folder.release()
