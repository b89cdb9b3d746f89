"""Putting back the files that retention has removed from an artifact, after they were computed again."""

from __future__ import annotations

from pathlib import Path

from storage.artifacts.cache import LocalCache
from storage.artifacts.layout import StoreLayout
from storage.artifacts.manifest import Manifest
from storage.artifacts.pruned import PRUNED, PruneRecord
from storage.artifacts.transfers import upload
from storage.filesystem import remove, store_errors, sync_tree


def holds_same_files(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests name the same files with the same bytes."""
    return {(entry.path, entry.sha256) for entry in one.files} == {
        (entry.path, entry.sha256) for entry in other.files
    }


def put_back(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, pruned: PruneRecord, folder: Path
) -> None:
    """Move the removed files of an artifact from a folder that holds all its files to their places; then
    remove the record that they were pruned.

    Until the record is removed, the files count as pruned: a kill leaves what the next collection removes.
    """
    base, root = layout.files_of(manifest), layout.root
    names = {file.path for file in pruned.files}
    with store_errors("write", base):
        if root.local:
            sync_tree(folder)
            for name in names:
                target = Path(base) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                (folder / name).replace(target)
            sync_tree(Path(base))
        else:
            entries = [entry for entry in manifest.files if entry.path in names]
            upload(root, folder, entries, base, cache.settings.connections)
    remove(root, layout.of(manifest.stage, manifest.artifact_id, PRUNED))
    for file in pruned.files:
        if file.kept is not None:
            remove(root, f"{base}/{file.kept.path}")
