"""The artifact store: immutable stage outputs, found by recipe, committed whole or not at all.

Layout: `STORE/artifacts/<stage>/<artifact_id>/{manifest.json, files}`. In a local store an artifact is
published by renaming its staging folder. In an object store its files are uploaded, to a folder named after
their digests, so that two machines that make one artifact do not mix theirs, and the manifest last, as a
conditional write. Nothing without a manifest exists.

Retention may take files away later; `released.json` then says which (see `storage.releases`).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from storage.errors import DamagedArtifact, InputError, ReleasedFileError
from storage.filesystem import (
    StoreRoot,
    list_names,
    open_root,
    publish_folder,
    read_bytes,
    remove,
    replace_file,
    store_errors,
    sync_tree,
    write_new,
)
from storage.integrity import (
    Problems,
    describe_files,
    file_problems,
    parse_manifest,
    relative_files,
    row_problems,
)
from storage.manifest import (
    MANIFEST,
    FileEntry,
    Guarantee,
    Manifest,
    code_version,
    machine,
    package_versions,
)
from storage.recipe import Recipe, digest
from storage.releases import (
    KEPT_ROWS,
    RELEASED,
    ReleasedFile,
    ReleaseRecord,
    keep_columns,
    no_releases,
    parse_releases,
)
from storage.staging import StagingFolder, remove_abandoned

TRASH = "trash"
"""Folder, in a local store, of what is being deleted."""


def upload_folder(manifest: Manifest) -> str:
    """Name of the folder that holds an artifact's files in an object store."""
    return digest([[entry.path, entry.sha256] for entry in manifest.files])[:16]


def present_files(manifest: Manifest, releases: ReleaseRecord) -> list[FileEntry]:
    """The files that an artifact must have: those that were not released, and what was kept of the others."""
    kept = [file.kept for file in releases.files if file.kept is not None]
    return [entry for entry in manifest.files if releases.of(entry.path) is None] + kept


class Artifact:
    """A committed artifact whose files were verified when it was opened."""

    def __init__(self, manifest: Manifest, folder: Path, releases: ReleaseRecord | None = None) -> None:
        self.manifest = manifest
        self.releases = releases or no_releases(manifest.artifact_id)
        self._folder = folder

    @property
    def files(self) -> list[FileEntry]:
        """What was committed, whether or not it was released since."""
        return self.manifest.files

    @property
    def folder(self) -> Path:
        """The local folder of all files. Raises ReleasedFileError when one of them was released."""
        for file in self.releases.files:
            raise self._released(file)
        return self._folder

    def path(self, name: str) -> Path:
        """A local file or folder of the artifact, by its name in the manifest.

        Raises:
            InputError: the artifact does not have it.
            ReleasedFileError: retention has released it, or a file of the folder.
        """
        for file in self.releases.files:
            if file.path == name or file.path.startswith(name + "/"):
                raise self._released(file)
        if not any(entry.path == name or entry.path.startswith(name + "/") for entry in self.files):
            held = ", ".join(entry.path for entry in self.files) or "no files"
            artifact = f"artifact {self.manifest.artifact_id} ({self.manifest.stage})"
            raise InputError(f"{artifact} has no {name}; it has {held}.")
        return self._folder / name

    def rows_path(self, name: str) -> Path:
        """A Parquet file; of a released one the columns that were kept, in a file of the same table.

        Raises InputError for a name that the artifact does not have.
        """
        released = self.releases.of(name)
        if released is None or released.kept is None:
            return self.path(name)
        return self._folder / released.kept.path

    def _released(self, file: ReleasedFile) -> ReleasedFileError:
        where = "" if self.manifest.iteration is None else f", iteration {self.manifest.iteration}"
        return ReleasedFileError(
            f"{file.path} of artifact {self.manifest.artifact_id} ({self.manifest.stage}{where}) was "
            f"released on {file.released_at:%Y-%m-%d} by {file.reason}: its {file.bytes:,} bytes are gone. "
            "Take a younger iteration that has it, or make it again by training in another store."
        )


class Staging:
    """An artifact being written: put files under `path`, then `commit`.

    Leaving the `with` block without a commit discards it.
    """

    def __init__(self, store: ArtifactStore, recipe: Recipe, run: str, iteration: int | None) -> None:
        self._store = store
        self._recipe = recipe
        self._run = run
        self._iteration = iteration
        self._started_at = datetime.now(UTC)
        self._folder = StagingFolder(store.staging_folder)
        self.path = self._folder.path
        """A local folder."""

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
        guarantee: Guarantee = "bytes",
    ) -> Artifact:
        """Publish what was written; where another writer was first, its artifact is returned instead.

        `rows` (file name -> rows) is checked against the Parquet files.

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
            config=dict(recipe.config),
            seed=recipe.seed,
            code_version=code_version(),
            packages=package_versions(),
            environment=machine(self._store.threads),
            started_at=self._started_at,
            finished_at=datetime.now(UTC),
            policy_version=policy_version,
            memory_version=memory_version,
            guarantee=guarantee,
            counters=dict(counters or {}),
            metrics=dict(metrics or {}),
            files=files,
        ).sealed()
        return self._store.publish(manifest, self.path)


class ArtifactStore:
    """The artifacts of one store.

    Args:
        uri: a folder, or a `file://`, `s3://`, `gs://` or `memory://` URI.
        threads: the CPU thread count that bytes depend on, for the manifests.
    """

    def __init__(self, uri: str, threads: int | None = None) -> None:
        self.uri = uri
        self.threads = threads
        self._root: StoreRoot = open_root(uri)
        self._verified: dict[str, Artifact] = {}
        self._stage_of: dict[str, str] = {}

    @property
    def staging_folder(self) -> Path:
        """Where this store's artifacts are written before they are committed; on this machine."""
        return self._root.scratch / "staging"

    def create(self, recipe: Recipe, *, run: str, iteration: int | None) -> Staging:
        """Begin an artifact; use as `with store.create(...) as staging`.

        Raises StoreError when the store cannot be written.
        """
        remove_abandoned(self.staging_folder)
        return Staging(self, recipe, run, iteration)

    def find(self, artifact_id: str, stage: str | None = None) -> Manifest | None:
        """The manifest of a committed artifact, its files unverified; None when there is none.

        Raises DamagedArtifact when the manifest itself is unreadable or changed.
        """
        for candidate in [stage] if stage else self._likely_stages(artifact_id):
            content = read_bytes(self._root, self._path(candidate, artifact_id, MANIFEST))
            if content is not None:
                self._stage_of[artifact_id] = candidate
                return parse_manifest(content, artifact_id, self._path(candidate, artifact_id, MANIFEST))
        return None

    def resolve(self, prefix: str) -> str:
        """The id of the one artifact whose id begins with `prefix`. Raises InputError for none or several."""
        ids = {artifact_id for stage in self._stages() for artifact_id in self._ids(stage)}
        found = sorted(artifact_id for artifact_id in ids if artifact_id.startswith(prefix))
        if len(found) == 1:
            return found[0]
        if not found:
            raise InputError(f"no artifact {prefix} in store {self.uri}.")
        some = ", ".join(found[:5])
        raise InputError(f"{len(found)} artifacts begin with {prefix!r}: {some}. Give more of the id.")

    def list(self, stage: str | None = None) -> Iterator[Manifest]:
        """Manifests of all committed artifacts, by stage and id."""
        for name in [stage] if stage else self._stages():
            for artifact_id in self._ids(name):
                manifest = self.find(artifact_id, name)
                if manifest is not None:
                    yield manifest

    def open(self, artifact_id: str) -> Artifact:
        """A committed artifact, ready to be read. Its files are hashed once for each store object.

        Raises:
            InputError: there is no such artifact.
            DamagedArtifact: a file is missing or does not hold the bytes that the manifest names.
        """
        if artifact_id in self._verified:
            return self._verified[artifact_id]
        manifest = self._manifest(artifact_id)
        releases = self.releases(manifest)
        present = present_files(manifest, releases)
        folder = self._local_copy(manifest, present)
        problems = file_problems(present, folder)
        if problems:
            found = "; ".join(problems)
            raise DamagedArtifact(f"artifact {artifact_id} ({manifest.stage}) is damaged: {found}.")
        self._verified[artifact_id] = Artifact(manifest, folder, releases)
        return self._verified[artifact_id]

    def releases(self, manifest: Manifest) -> ReleaseRecord:
        """What retention has taken from an artifact. Raises DamagedArtifact when the record was changed."""
        where = self._path(manifest.stage, manifest.artifact_id, RELEASED)
        return parse_releases(read_bytes(self._root, where), manifest.artifact_id, where)

    def release(self, artifact_id: str, names: Sequence[str], reason: str) -> ReleaseRecord:
        """Take files away from an artifact and write down that it was done; lineage keeps what it asks for.

        The record is written first, so that a kill leaves files that count as released and are removed by
        the next call. The caller must hold `locks.lock_collection`.

        Raises InputError for a name that the artifact does not have, DamagedArtifact for a damaged artifact.
        """
        artifact = self.open(artifact_id)
        manifest, folder = artifact.manifest, artifact._folder
        base = self._files_folder(manifest)
        files = list(artifact.releases.files)
        now = datetime.now(UTC)
        for name in names:
            if artifact.releases.of(name) is not None:
                continue
            artifact.path(name)
            entry = next(entry for entry in manifest.files if entry.path == name)
            kept = None
            if entry.table is not None:
                kept = keep_columns(folder / name, folder / KEPT_ROWS / name, f"{KEPT_ROWS}/{name}")
                if not self._root.local:
                    with store_errors("write", base):
                        self._root.fs.put_file(str(folder / kept.path), f"{base}/{kept.path}")
            files.append(
                ReleasedFile(
                    path=name,
                    sha256=entry.sha256,
                    bytes=entry.bytes,
                    released_at=now,
                    reason=reason,
                    kept=kept,
                )
            )
        record = ReleaseRecord(artifact_id=artifact_id, files=files).sealed()
        if self._root.local:
            sync_tree(folder)
        where = self._path(manifest.stage, artifact_id, RELEASED)
        replace_file(self._root, where, (record.model_dump_json(indent=1) + "\n").encode("utf-8"))
        self._verified.pop(artifact_id)
        for file in record.files:
            remove(self._root, f"{base}/{file.path}")
            (folder / file.path).unlink(missing_ok=True)
        return record

    def remove(self, manifest: Manifest) -> None:
        """Delete an artifact. It is gone at once and as a whole, however far its files' deletion comes.

        The caller must know that nothing needs it, and hold `locks.lock_collection`.
        """
        target = self._path(manifest.stage, manifest.artifact_id)
        self._verified.pop(manifest.artifact_id, None)
        with store_errors("remove", target):
            if self._root.local:
                trash = Path(self._root.join(TRASH, f"{manifest.artifact_id}-{secrets.token_hex(4)}"))
                trash.parent.mkdir(parents=True, exist_ok=True)
                Path(target).rename(trash)
                shutil.rmtree(trash)
                return
            remove(self._root, f"{target}/{MANIFEST}")
            self._root.fs.rm(target, recursive=True)
            shutil.rmtree(self._download_folder(manifest.artifact_id), ignore_errors=True)

    def verify(self, artifact_id: str) -> Problems:
        """What is wrong with an artifact, [] when it is whole.

        Hashes all files again, counts Parquet rows, looks for strange files and for missing inputs.
        Raises InputError when there is no such artifact.
        """
        try:
            manifest = self._manifest(artifact_id)
        except DamagedArtifact as damage:
            return [str(damage)]
        try:
            releases = self.releases(manifest)
        except DamagedArtifact as damage:
            return [str(damage)]
        present = present_files(manifest, releases)
        if not self._root.local:
            # What counts is what the store holds now, not what was downloaded once.
            shutil.rmtree(self._download_folder(artifact_id), ignore_errors=True)
        folder = self._local_copy(manifest, present)
        problems = file_problems(present, folder)
        if not problems:
            problems += row_problems(present, folder)
        known = {MANIFEST, RELEASED, *(entry.path for entry in [*manifest.files, *present])}
        strange = [name for name in relative_files(folder) if name not in known]
        problems += [f"{folder / name} is not in the manifest" for name in strange]
        for name, input_id in sorted(manifest.inputs.items()):
            # A damaged input is a fault of its own, not of what was made from it.
            with suppress(DamagedArtifact):
                if self.find(input_id) is None:
                    problems.append(f"input {name} ({input_id}) is not in the store")
        return problems

    def discard_damaged(self, artifact_id: str) -> None:
        """Move an artifact to `STORE/damaged/`, so that it can be made again.

        Raises InputError when there is no such artifact.
        """
        for stage in self._stages():
            if artifact_id not in self._ids(stage):
                continue
            source = self._path(stage, artifact_id)
            target = self._damaged_path(stage, artifact_id)
            with store_errors("move a damaged artifact to", target):
                self._root.fs.makedirs(self._root.join("damaged", stage), exist_ok=True)
                self._root.fs.mv(source, target, recursive=True)
            self._verified.pop(artifact_id, None)
            if not self._root.local:
                shutil.rmtree(self._download_folder(artifact_id), ignore_errors=True)
            return
        raise InputError(f"no artifact {artifact_id} in store {self.uri}.")

    def publish(self, manifest: Manifest, folder: Path) -> Artifact:
        """Make a written folder the artifact of its manifest; the first writer of an id wins.

        For `Staging.commit`; the folder is moved away or left to be discarded.
        """
        content = (manifest.model_dump_json(indent=1) + "\n").encode("utf-8")
        target = self._path(manifest.stage, manifest.artifact_id)
        with store_errors("commit an artifact to", target):
            if self._root.local:
                kept, published = Path(target), self._publish_local(folder, Path(target), content)
            else:
                kept = self._download_folder(manifest.artifact_id)
                published = self._publish_remote(manifest, folder, target, content)
                published = published and publish_folder(folder, kept)
            if published:
                self._verified[manifest.artifact_id] = Artifact(manifest, kept)
        return self.open(manifest.artifact_id)

    def _publish_local(self, folder: Path, target: Path, content: bytes) -> bool:
        (folder / MANIFEST).write_bytes(content)
        if target.exists() and not (target / MANIFEST).exists():
            aside = Path(self._damaged_path(target.parent.name, target.name))
            aside.parent.mkdir(parents=True, exist_ok=True)
            target.rename(aside)
        return publish_folder(folder, target)

    def _publish_remote(self, manifest: Manifest, folder: Path, target: str, content: bytes) -> bool:
        if self._root.fs.exists(f"{target}/{MANIFEST}"):
            return False
        base = self._files_folder(manifest)
        for entry in manifest.files:
            self._root.fs.put_file(str(folder / entry.path), f"{base}/{entry.path}")
        return write_new(self._root, f"{target}/{MANIFEST}", content, unique=True)

    def _manifest(self, artifact_id: str) -> Manifest:
        manifest = self.find(artifact_id)
        if manifest is None:
            raise InputError(f"no artifact {artifact_id} in store {self.uri}.")
        return manifest

    def _files_folder(self, manifest: Manifest) -> str:
        """Where the artifact's files lie in the store."""
        folder = self._path(manifest.stage, manifest.artifact_id)
        return folder if self._root.local else f"{folder}/{upload_folder(manifest)}"

    def _local_copy(self, manifest: Manifest, present: Sequence[FileEntry]) -> Path:
        """The artifact's folder; of an object store a download, kept for later processes."""
        source = self._files_folder(manifest)
        if self._root.local:
            return Path(source)
        folder = self._download_folder(manifest.artifact_id)
        if folder.is_dir() and not file_problems(present, folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        staging = StagingFolder(self.staging_folder)
        try:
            with store_errors("download", source):
                for entry in present:
                    local = staging.path / entry.path
                    local.parent.mkdir(parents=True, exist_ok=True)
                    with suppress(FileNotFoundError):  # named by the check of the files
                        self._root.fs.get_file(f"{source}/{entry.path}", str(local))
                folder.parent.mkdir(parents=True, exist_ok=True)
                publish_folder(staging.path, folder)
        finally:
            staging.release()
        return folder

    def _download_folder(self, artifact_id: str) -> Path:
        return self._root.scratch / "downloads" / artifact_id

    def _damaged_path(self, stage: str, artifact_id: str) -> str:
        return self._root.join("damaged", stage, f"{artifact_id}-{secrets.token_hex(4)}")

    def _likely_stages(self, artifact_id: str) -> Iterator[str]:
        if artifact_id in self._stage_of:
            yield self._stage_of[artifact_id]
        yield from self._stages()

    def _stages(self) -> Sequence[str]:
        return list_names(self._root, self._root.join("artifacts"))

    def _ids(self, stage: str) -> Sequence[str]:
        return list_names(self._root, self._root.join("artifacts", stage))

    def _path(self, *parts: str) -> str:
        return self._root.join("artifacts", *parts)
