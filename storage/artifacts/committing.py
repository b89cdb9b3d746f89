"""Writing an artifact: staged in a folder of its own, then published whole or not at all.

In a local store an artifact is published by renaming its staging folder. In an object store its files are
uploaded to a folder named after their digests, so that two machines that make the same artifact do not mix
their files. The manifest is uploaded last, by a conditional write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from storage.artifacts.artifact import Artifact
from storage.artifacts.cache import LocalCache
from storage.artifacts.downloads import copy_bytes, copy_name
from storage.artifacts.integrity import describe_files
from storage.artifacts.layout import StoreLayout
from storage.artifacts.manifest import (
    MANIFEST,
    Determinism,
    Manifest,
    code_version,
    machine,
    package_versions,
)
from storage.artifacts.recipe import Recipe
from storage.artifacts.staging import StagingFolder
from storage.artifacts.transfers import upload
from storage.filesystem import publish_folder, store_errors, write_new


class Staging:
    """An artifact being written: put files under `path`, then `commit`.

    Leaving the `with` block without a commit discards it.

    Args:
        parent: the store's folder for artifacts that are being written.
        publish: makes a written folder the artifact of its manifest.
        threads: the CPU thread count that bytes depend on, for the manifest.
    """

    def __init__(
        self,
        parent: Path,
        publish: Callable[[Manifest, Path, str], Artifact],
        recipe: Recipe,
        run: str,
        iteration: int | None,
        threads: int | None,
    ) -> None:
        self._publish = publish
        self._recipe = recipe
        self._run = run
        self._iteration = iteration
        self._threads = threads
        self._started_at = datetime.now(UTC)
        self._folder = StagingFolder(parent)
        self.path = self._folder.path
        """The local folder for the artifact's files."""

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._folder.release()

    def commit(
        self,
        *,
        counters: Mapping[str, int | float] | None = None,
        metrics: Mapping[str, float] | None = None,
        rows: Mapping[str, int] | None = None,
        policy_version: str | None = None,
        memory_version: str | None = None,
        determinism: Determinism = "bytes",
        environment: Mapping[str, str] | None = None,
        unchanged_from: str = "",
    ) -> Artifact:
        """Publish what was written; if another writer was first, its artifact is returned instead.

        `rows` (file name -> number of rows) is checked against the Parquet files. `unchanged_from` is the id
        of an artifact that has some of the same files: they are stored once, if the store can do that.
        `environment` is added to what the manifest says about this machine.

        Raises ValueError when `rows` names a file that is not there or holds another number of rows, and
        StoreError when the store cannot be written.
        """
        recipe = self._recipe
        with store_errors("write", self.path):
            files = describe_files(self.path, rows or {})
        manifest = Manifest(
            artifact_id=recipe.artifact_id,
            stage=recipe.stage,
            stage_version=recipe.stage_version,
            run=self._run,
            iteration=self._iteration,
            inputs=dict(recipe.inputs),
            kind=recipe.kind,
            settings=dict(recipe.settings),
            index=dict(recipe.index),
            code=dict(recipe.code),
            seed=recipe.seed,
            code_version=code_version(),
            packages=package_versions(),
            environment={**machine(self._threads), **(environment or {})},
            started_at=self._started_at,
            finished_at=datetime.now(UTC),
            policy_version=policy_version,
            memory_version=memory_version,
            determinism=determinism,
            counters=dict(counters or {}),
            metrics=dict(metrics or {}),
            files=files,
        )
        manifest.require_finite()
        return self._publish(manifest, self.path, unchanged_from)


def put_in_place(layout: StoreLayout, cache: LocalCache, manifest: Manifest, folder: Path) -> Path | None:
    """Give a written folder its place in the store; the local folder of the files.

    None if another writer was first, in the store or among this machine's copies: then the caller opens what
    is there. The folder is moved away, or left for the caller to discard.
    """
    content = manifest.document()
    target = layout.of(manifest.stage, manifest.artifact_id)
    layout.root.refuse_link(target)
    with store_errors("commit an artifact to", target):
        if layout.root.local:
            return Path(target) if _rename(layout, folder, Path(target), content) else None
        if not _upload(layout, cache, manifest, folder, content):
            return None
        return cache.put(copy_name(manifest), copy_bytes(manifest.files), folder)


def _rename(layout: StoreLayout, folder: Path, target: Path, content: bytes) -> bool:
    (folder / MANIFEST).write_bytes(content)
    if target.exists() and not (target / MANIFEST).exists():
        aside = Path(layout.damaged(target.parent.name, target.name))
        layout.root.refuse_link(str(aside))
        aside.parent.mkdir(parents=True, exist_ok=True)
        target.rename(aside)
    return publish_folder(folder, target)


def _upload(layout: StoreLayout, cache: LocalCache, manifest: Manifest, folder: Path, content: bytes) -> bool:
    root = layout.root
    where = layout.of(manifest.stage, manifest.artifact_id, MANIFEST)
    if root.fs.exists(where):
        return False
    upload(root, folder, manifest.files, layout.files_of(manifest), cache.settings.connections)
    return write_new(root, where, content, unique=True)
