"""The artifact store: immutable stage outputs, found by recipe, committed whole or not at all.

An artifact exists once it has a manifest. `storage.artifacts.layout` says where files lie,
`storage.artifacts.writing` how they are written. Retention may remove files later; `pruned.json` then
names them (see `storage.artifacts.artifact`).
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from storage.artifacts.artifact import (
    KEPT_ROWS,
    PRUNED,
    Artifact,
    PruneRecord,
    TableChange,
    is_half_record,
    parse_pruned,
    present_files,
)
from storage.artifacts.cache import CacheSettings, LocalCache
from storage.artifacts.layout import StoreLayout, abandoned, remove_abandoned
from storage.artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    Problems,
    file_problems,
    parse_manifest,
    relative_files,
    require_whole,
    row_problems,
)
from storage.artifacts.recipe import Recipe
from storage.artifacts.redaction import redact_files
from storage.artifacts.transfers import copy_name, fresh_copy, local_copy, local_file
from storage.artifacts.uncommitted import Uncommitted, Writer, is_hashed
from storage.artifacts.writing import (
    Staging,
    delete,
    holds_same_files,
    prune_files,
    put_back,
    put_in_place,
    set_aside,
    share_equal_files,
)
from storage.errors import DamagedArtifact, InputError, NotRepeated, store_errors
from storage.filesystem import open_root, read_bytes, refuse_linked_path

__all__ = ["Artifact", "ArtifactStore", "Staging"]


class ArtifactStore:
    """The artifacts of one store.

    Args:
        uri: a folder, or a `file://`, `s3://`, `gs://` or `memory://` URI.
        threads: the CPU thread count that bytes depend on, for the manifests.
        cache: how much of an object store this machine keeps; a local store has no copies.
    """

    def __init__(self, uri: str, threads: int | None = None, cache: CacheSettings | None = None) -> None:
        self.uri = uri
        self.threads = threads
        self._layout = StoreLayout(open_root(uri))
        self._cache = LocalCache(self._layout.root.scratch, self._layout.staging, cache or CacheSettings())
        self._verified: dict[str, Artifact] = {}
        self._expected: dict[str, Manifest] = {}
        self._stage_of: dict[str, str] = {}

    @property
    def staging_folder(self) -> Path:
        """Local folder in which this store's artifacts are written before they are committed."""
        return self._layout.staging

    def reading(self) -> AbstractContextManager[None]:
        """Artifacts opened within the block stay on this machine until its end. After it, copies from an
        object store may be removed to make room for others, so their paths must not be used any more. What is
        opened outside of any block, or in `staying`, stays as long as this store object. A block belongs to
        one thread."""
        return nullcontext() if self._layout.root.local else self._cache.reading()

    def staying(self) -> AbstractContextManager[None]:
        """Artifacts opened within the block stay on this machine as long as this store object, also within
        `reading`: for callers that keep their paths."""
        return nullcontext() if self._layout.root.local else self._cache.staying()

    def unused_copies(self) -> Sequence[Path]:
        """Folders of the copies, on this machine, of an object store's artifacts that no process uses."""
        return self._cache.unused()

    def left_behind(self) -> list[Path]:
        """What killed processes left of artifacts that they wrote or deleted; nobody knows what is in it."""
        return [*abandoned(self.staging_folder), *self._layout.half_deleted()]

    def remove_left_behind(self) -> None:
        """Remove that. The caller prevents that artifacts are deleted meanwhile."""
        self.clear_staging()
        for path in self._layout.half_deleted():
            with store_errors("remove", path):
                shutil.rmtree(path)

    def create(self, recipe: Recipe, *, run: str, iteration: int | None) -> Staging:
        """Begin an artifact; use as `with store.create(...) as staging`.

        Raises StoreError when the store cannot be written.
        """
        self.clear_staging()
        return Staging(self.staging_folder, self.publish, recipe, Writer(run, iteration, self.threads))

    def begin(self) -> Uncommitted:
        """Begin an artifact that a stage writes, in this process or another one of this machine, and that
        this process commits; only in a local store.

        Raises StoreError when the store cannot be written.
        """
        self.clear_staging()
        return Uncommitted(self._layout, self.publish, self._share)

    @property
    def local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return self._layout.root.local

    def expect(self, manifests: Iterable[Manifest]) -> None:
        """Allow these artifacts to be opened although their manifests may not be written yet; each call
        replaces the list of the call before. Their files are at their place. They are not hashed here, since
        the run's driver does that when it commits them."""
        self._expected = {manifest.artifact_id: manifest for manifest in manifests}

    def remember(self, artifact: Artifact) -> None:
        """Take note of an artifact that this process has just committed: opening it needs no hashing."""
        self._verified[artifact.manifest.artifact_id] = artifact

    def clear_staging(self) -> None:
        """Remove what killed processes left of artifacts that they wrote; every new artifact does so too."""
        refuse_linked_path(self._layout.root.scratch, self.staging_folder)
        remove_abandoned(self.staging_folder)

    def find(self, artifact_id: str, stage: str | None = None) -> Manifest | None:
        """The manifest of a committed artifact, its files unverified; None when there is none.

        Raises DamagedArtifact when the manifest itself is unreadable or changed.
        """
        for candidate in [stage] if stage else self._likely_stages(artifact_id):
            where = self._layout.of(candidate, artifact_id, MANIFEST)
            content = read_bytes(self._layout.root, where)
            if content is not None:
                self._stage_of[artifact_id] = candidate
                return parse_manifest(content, artifact_id, where)
        return self._expected.get(artifact_id)

    def resolve(self, prefix: str) -> str:
        """The id of the one artifact whose id begins with `prefix`. Raises InputError for none or several."""
        ids = {artifact_id for stage in self._layout.stages() for artifact_id in self._layout.ids(stage)}
        found = sorted(artifact_id for artifact_id in ids if artifact_id.startswith(prefix))
        if len(found) == 1:
            return found[0]
        if not found:
            raise InputError(f"no artifact {prefix} in store {self.uri}.")
        some = ", ".join(found[:5])
        raise InputError(f"{len(found)} artifacts begin with {prefix!r}: {some}. Give more of the id.")

    def rows_paths(self, manifests: Iterable[Manifest], table: str) -> list[Path]:
        """`Artifact.rows_paths` of all of these artifacts; only those that have the table are opened."""
        holders = (self.open_found(manifest) for manifest in manifests if manifest.tables(table))
        return [path for holder in holders for path in holder.rows_paths(table)]

    def stages(self) -> Sequence[str]:
        """Names of the stages that have artifacts, sorted."""
        return self._layout.stages()

    def ids(self, stage: str) -> Sequence[str]:
        """Ids of a stage's artifacts, taken from the names of their folders: manifests are not read."""
        return self._layout.ids(stage)

    def list(self, stage: str | None = None) -> Iterator[Manifest]:
        """Manifests of all committed artifacts, by stage and id."""
        for name in [stage] if stage else self._layout.stages():
            for artifact_id in self._layout.ids(name):
                manifest = self.find(artifact_id, name)
                if manifest is not None:
                    yield manifest

    def open(self, artifact_id: str) -> Artifact:
        """A committed artifact, ready to be read. Its files are hashed once for each store object.

        Raises:
            InputError: there is no such artifact.
            DamagedArtifact: a file is missing or does not hold the bytes that the manifest names.
        """
        return self._still_here(artifact_id) or self.open_found(self._manifest(artifact_id))

    def open_found(self, manifest: Manifest) -> Artifact:
        """Like `open`, for an artifact whose manifest the caller has; the manifest is not read again."""
        artifact_id = manifest.artifact_id
        if opened := self._still_here(artifact_id):
            return opened
        pruned = self.pruned(manifest)
        present = present_files(manifest, pruned)
        if self._layout.root.local:
            folder = Path(self._layout.files_of(manifest))
            if artifact_id not in self._expected:
                require_whole(manifest, file_problems(present, folder))
        else:
            folder = local_copy(self._layout, self._cache, manifest, present)
        self._verified[artifact_id] = Artifact(manifest, folder, pruned)
        return self._verified[artifact_id]

    def open_file(self, manifest: Manifest, name: str) -> Path:
        """One file of an artifact whose manifest the caller has; no other file is hashed or downloaded.

        For a small table beside large weights. Raises what `open` raises, and PrunedFileError for a file that
        retention has removed.
        """
        if opened := self._still_here(manifest.artifact_id):
            return opened.path(name)
        entry = next((entry for entry in manifest.files if entry.path == name), None)
        pruned = self.pruned(manifest)
        removed = pruned.of(name)
        if removed is not None and removed.replacement is not None:
            entry = removed.replacement
        elif entry is None or removed is not None:
            return Artifact(manifest, Path(), pruned).path(name)
        if not self._layout.root.local:
            return local_file(self._layout, self._cache, manifest, entry) / entry.path
        folder = Path(self._layout.files_of(manifest))
        require_whole(manifest, file_problems([entry], folder))
        return folder / entry.path

    def pruned(self, manifest: Manifest) -> PruneRecord:
        """What retention has removed from an artifact. Raises DamagedArtifact when the record was changed."""
        where = self._layout.of(manifest.stage, manifest.artifact_id, PRUNED)
        return parse_pruned(read_bytes(self._layout.root, where), manifest.artifact_id, where)

    def has_file(self, manifest: Manifest, name: str) -> bool:
        """Whether a local store has a file, which a killed pruning may have left. A store in a bucket is not
        asked: a collection finds such files."""
        return self.local and (Path(self._layout.files_of(manifest)) / name).exists()

    def prune(self, artifact_id: str, names: Sequence[str], reason: str) -> PruneRecord:
        """Remove files of an artifact and record it; the columns that lineage needs are kept.

        The caller must hold `locks.lock_collection`.

        Raises InputError for a name that the artifact does not have, DamagedArtifact for a damaged artifact.
        """
        artifact = self.open(artifact_id)
        self._verified.pop(artifact_id)
        return prune_files(self._layout, artifact, names, reason)

    def redact(self, artifact_id: str, changes: Mapping[str, TableChange], reason: str) -> None:
        """Take out what some rows of an artifact's Parquet files say, and record it; only in a local store.

        The caller must hold `locks.lock_collection`. Raises what `redact_files` raises.
        """
        artifact = self.open(artifact_id)
        self._verified.pop(artifact_id)
        redact_files(self._layout, artifact, changes, reason)

    def remove(self, manifest: Manifest) -> None:
        """Delete a whole artifact.

        The caller must know that nothing needs it, and hold `locks.lock_collection`.
        """
        self._verified.pop(manifest.artifact_id, None)
        delete(self._layout, self._cache, manifest)

    def verify(self, artifact_id: str) -> Problems:
        """What is wrong with an artifact; [] when it is whole.

        Hashes all files again, counts Parquet rows, looks for unknown files and for missing inputs.
        Raises InputError when there is no such artifact.
        """
        try:
            manifest = self._manifest(artifact_id)
            pruned = self.pruned(manifest)
        except DamagedArtifact as damage:
            return [str(damage)]
        present = present_files(manifest, pruned)
        if self._layout.root.local:
            problems = _local_problems(manifest, present, Path(self._layout.files_of(manifest)))
        else:
            try:
                with self.reading(), fresh_copy(self._layout, self._cache, manifest, present) as folder:
                    problems = row_problems(present, folder)
            except DamagedArtifact as damage:
                problems = [str(damage)]
        with suppress(DamagedArtifact):  # A damaged record is a problem when it is read at the beginning.
            if problems and self.pruned(manifest) != pruned:
                return self.verify(artifact_id)  # Retention has gone on meanwhile.
        for name, input_id in sorted(manifest.inputs.items()):
            # A damaged input is reported for itself, not for the artifacts that were made from it.
            with suppress(DamagedArtifact):
                if self.find(input_id) is None:
                    problems.append(f"input {name} ({input_id}) is not in the store")
        return problems

    def discard_damaged(self, artifact_id: str) -> None:
        """Move an artifact to `STORE/damaged/`, so that it can be made again.

        Raises InputError when there is no such artifact.
        """
        set_aside(self._layout, self._cache, artifact_id)
        self._verified.pop(artifact_id, None)

    def publish(self, manifest: Manifest, folder: Path, unchanged_from: str = "") -> Artifact:
        """Make a written folder the artifact of its manifest; the first writer of an id wins. If retention
        has removed files of an artifact that is there, it gets them back. Raises NotRepeated if these have
        other bytes.

        Called by `Staging.commit`. The folder is moved away, or left for the caller to discard.
        """
        if unchanged_from and self._layout.root.local:
            self._share(manifest, folder, unchanged_from)
        kept = put_in_place(self._layout, self._cache, manifest, folder)
        if kept is None and self._complete(manifest, folder):
            kept = put_in_place(self._layout, self._cache, manifest, folder)
        if kept is not None:
            self.remember(Artifact(manifest, kept))
        return self.open(manifest.artifact_id)

    def _share(self, manifest: Manifest, folder: Path, unchanged_from: str) -> None:
        share_equal_files(folder, manifest, self.open(unchanged_from))

    def _complete(self, manifest: Manifest, folder: Path) -> bool:
        """Put back from a written folder what retention has removed from the artifact. If only measured times
        differ, the artifact is set aside; then the place is free, and the result is True. What was redacted
        never comes back.

        Raises NotRepeated if other bytes were computed now: what was made from the committed ones would
        seem to come from these.
        """
        there = self._manifest(manifest.artifact_id)
        pruned = self.pruned(there)
        if not pruned.files or any(file.redacted for file in pruned.files):
            return False
        self._verified.pop(there.artifact_id, None)
        if holds_same_files(there, manifest):
            put_back(self._layout, self._cache, there, pruned, folder)
            return False
        if not holds_same_files(there, manifest, measured=False):
            made = there.environment
            raise NotRepeated(
                f"{there.artifact_id} ({there.stage}) was computed again, for files that retention has "
                "removed, and did not give its committed bytes. Other artifacts were made from those bytes, "
                "so nothing is replaced. Compute it on the same kind of processor, with the same packages "
                f"and resources.threads (committed with {made.get('threads')} on {made.get('processor')}), "
                "or use an iteration that still has its files"
            )
        self.discard_damaged(there.artifact_id)
        return True

    def _still_here(self, artifact_id: str) -> Artifact | None:
        """The artifact, if it was verified before, has the same files still, and this machine still has that
        copy of it."""
        artifact = self._verified.get(artifact_id)
        if artifact is None or not is_hashed(artifact.manifest):
            return None
        local = self._layout.root.local
        # Another process may have pruned files, or put them back. An object store is not asked whether files
        # are gone: what matters is that the copy on this machine has them.
        if (local or artifact.pruned.files) and self.pruned(artifact.manifest) != artifact.pruned:
            del self._verified[artifact_id]
            return None
        if local:
            return artifact
        copy = self._cache.used_before(copy_name(artifact.manifest))
        present = present_files(artifact.manifest, artifact.pruned)
        if copy is None or not all((copy / entry.path).exists() for entry in present):
            del self._verified[artifact_id]
            return None
        return artifact

    def _manifest(self, artifact_id: str) -> Manifest:
        manifest = self.find(artifact_id)
        if manifest is None:
            raise InputError(f"no artifact {artifact_id} in store {self.uri}.")
        return manifest

    def _likely_stages(self, artifact_id: str) -> Iterator[str]:
        if artifact_id in self._stage_of:
            yield self._stage_of[artifact_id]
        yield from self._layout.stages()


def _local_problems(manifest: Manifest, present: Sequence[FileEntry], folder: Path) -> Problems:
    """What is wrong with the files of an artifact in its folder."""
    problems = file_problems(present, folder)
    if not problems:
        problems += row_problems(present, folder)
    known = {MANIFEST, PRUNED, *(entry.path for entry in [*manifest.files, *present])}
    # A killed pruning may leave kept rows without a record, and a half-written record: no fault, and
    # collection removes them.
    strange = [
        name
        for name in relative_files(folder)
        if name not in known and not name.startswith(f"{KEPT_ROWS}/") and not is_half_record(name)
    ]
    return problems + [f"{folder / name} is not in the manifest" for name in strange]
