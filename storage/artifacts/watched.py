"""An artifact store for long-lived processes, such as the page: what was read is kept until it changes."""

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from storage.artifacts.artifact import PRUNED, Artifact
from storage.artifacts.manifest import MANIFEST, Manifest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.transfers import copy_name
from storage.errors import DamagedArtifact
from storage.filesystem import size_and_time

T = TypeVar("T")
_Mark = tuple[tuple[int, int] | None, ...] | str
"""Size and modification time of each file; None for a missing file. The files of an object store's artifact
are known by the name of their copy, which has a digest of those that the manifest names."""


class WatchedStore(ArtifactStore):
    """Hashes an artifact's files once, and again when one of them changed in size or time, or was pruned.

    An object store is asked again for the manifest of an artifact that is opened, or looked for by its id
    alone. Whoever names its stage too, as lists and ledgers do for many artifacts at once, gets the manifest
    that was read last, until the artifact is gone from a list. It may have been made again since:
    `open_found` and `open_file` take the newer one if files of the older are gone. Several threads may use
    this store.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._manifests: dict[str, tuple[_Mark, Manifest]] = {}
        self._opened: dict[str, _Mark] = {}
        self._files: dict[tuple[str, str], tuple[_Mark, Path]] = {}
        self._hashing = threading.Lock()

    def find(self, artifact_id: str, stage: str | None = None) -> Manifest | None:
        kept = self._manifests.get(artifact_id)
        asked = self.local or stage is not None
        if kept is not None and asked and kept[0] == self._manifest_mark(kept[1].stage, artifact_id):
            return kept[1]
        manifest = super().find(artifact_id, stage)
        if manifest is None:
            self._manifests.pop(artifact_id, None)
            return None
        if kept is not None and kept[1] == manifest:
            manifest = kept[1]  # callers keep what they have read for as long as this is the same object
        self._manifests[artifact_id] = self._manifest_mark(manifest.stage, artifact_id), manifest
        return manifest

    def list(self, stage: str | None = None) -> Iterator[Manifest]:
        found = [*super().list(stage)]
        ids = {manifest.artifact_id for manifest in found}
        for artifact_id, (_, kept) in [*self._manifests.items()]:
            if stage in (None, kept.stage) and artifact_id not in ids:
                self._manifests.pop(artifact_id, None)
        yield from found

    def open(self, artifact_id: str) -> Artifact:
        return self.open_found(self._manifest(artifact_id))

    def open_found(self, manifest: Manifest) -> Artifact:
        return self._or_newer(manifest, self._open_found)

    def open_file(self, manifest: Manifest, name: str) -> Path:
        return self._or_newer(manifest, lambda found: self._open_file(found, name))

    def _or_newer(self, manifest: Manifest, open_it: Callable[[Manifest], T]) -> T:
        """What `open_it` returns; of the newer manifest, where the artifact was made again since."""
        try:
            return open_it(manifest)
        except DamagedArtifact:
            newer = self.find(manifest.artifact_id)
            if newer is None or newer == manifest:
                raise
            return open_it(newer)

    def _open_found(self, manifest: Manifest) -> Artifact:
        with self._hashing:
            mark = self._forget_changed(manifest)
            artifact = super().open_found(manifest)
            self._opened[manifest.artifact_id] = mark
        return artifact

    def _open_file(self, manifest: Manifest, name: str) -> Path:
        mark = self._files_mark(manifest, (name,))
        with self._hashing:
            kept = self._files.get((manifest.artifact_id, name))
            if kept is not None and kept[0] == mark:
                return kept[1]
            self._forget_changed(manifest)
            path = super().open_file(manifest, name)
            self._files[manifest.artifact_id, name] = mark, path
        return path

    def _forget_changed(self, manifest: Manifest) -> _Mark:
        """Forget that an artifact was verified if a file has changed since; returns its files' mark now."""
        mark = self._files_mark(manifest, (entry.path for entry in manifest.files))
        if self._opened.get(manifest.artifact_id) != mark:
            self._verified.pop(manifest.artifact_id, None)
        return mark

    def _manifest_mark(self, stage: str, artifact_id: str) -> _Mark:
        return self._mark([self._layout.of(stage, artifact_id, MANIFEST)])

    def _files_mark(self, manifest: Manifest, names: Iterable[str]) -> _Mark:
        if not self.local:
            return copy_name(manifest)
        folder = self._layout.of(manifest.stage, manifest.artifact_id)
        return self._mark([f"{folder}/{name}" for name in (PRUNED, *names)])

    def _mark(self, paths: Iterable[str]) -> _Mark:
        if not self._layout.root.local:
            return ()
        return tuple(size_and_time(path) for path in paths)
