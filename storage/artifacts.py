"""The artifact store: immutable stage outputs, found by recipe, committed whole or not at all.

Layout: `STORE/artifacts/<stage>/<artifact_id>/{manifest.json, files}`. In a local store an artifact is
published by renaming its staging folder; in an object store its files are uploaded and the manifest last,
as a conditional write. Nothing without a manifest exists.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from storage.errors import DamagedArtifact, InputError
from storage.filesystem import (
    StoreRoot,
    list_names,
    open_root,
    publish_folder,
    read_bytes,
    store_errors,
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
from storage.manifest import MANIFEST, FileEntry, Manifest, code_version, machine, package_versions
from storage.recipe import Recipe
from storage.staging import StagingFolder, remove_abandoned


class Artifact:
    """A committed artifact whose files were verified when it was opened."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.manifest = manifest
        self._folder = folder

    @property
    def files(self) -> list[FileEntry]:
        return self.manifest.files

    def path(self, name: str) -> Path:
        """A local file or folder of the artifact, by its name in the manifest.

        Raises InputError for a name that the artifact does not have.
        """
        if not any(entry.path == name or entry.path.startswith(name + "/") for entry in self.files):
            held = ", ".join(entry.path for entry in self.files) or "no files"
            artifact = f"artifact {self.manifest.artifact_id} ({self.manifest.stage})"
            raise InputError(f"{artifact} has no {name}; it has {held}.")
        return self._folder / name


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
        folder = self._local_copy(manifest)
        problems = file_problems(manifest, folder)
        if problems:
            found = "; ".join(problems)
            raise DamagedArtifact(f"artifact {artifact_id} ({manifest.stage}) is damaged: {found}.")
        self._verified[artifact_id] = Artifact(manifest, folder)
        return self._verified[artifact_id]

    def verify(self, artifact_id: str) -> Problems:
        """What is wrong with an artifact, [] when it is whole.

        Hashes all files again, counts Parquet rows, looks for strange files and for missing inputs.
        Raises InputError when there is no such artifact.
        """
        try:
            manifest = self._manifest(artifact_id)
        except DamagedArtifact as damage:
            return [str(damage)]
        folder = self._local_copy(manifest)
        problems = file_problems(manifest, folder)
        if not problems:
            problems += row_problems(manifest, folder)
        known = {MANIFEST, *(entry.path for entry in manifest.files)}
        strange = [name for name in relative_files(folder) if name not in known]
        problems += [f"{folder / name} is not in the manifest" for name in strange]
        for name, input_id in sorted(manifest.inputs.items()):
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
        for entry in manifest.files:
            self._root.fs.put_file(str(folder / entry.path), f"{target}/{entry.path}")
        return write_new(self._root, f"{target}/{MANIFEST}", content)

    def _manifest(self, artifact_id: str) -> Manifest:
        manifest = self.find(artifact_id)
        if manifest is None:
            raise InputError(f"no artifact {artifact_id} in store {self.uri}.")
        return manifest

    def _local_copy(self, manifest: Manifest) -> Path:
        """The artifact's folder; of an object store a download, kept for later processes."""
        source = self._path(manifest.stage, manifest.artifact_id)
        if self._root.local:
            return Path(source)
        folder = self._download_folder(manifest.artifact_id)
        if folder.is_dir() and not file_problems(manifest, folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        staging = StagingFolder(self.staging_folder)
        try:
            with store_errors("download", source):
                for entry in manifest.files:
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
