"""Where everything of an artifact store lies.

Layout: `STORE/artifacts/<stage>/<artifact_id>/{manifest.json, files}`; in an object store the files lie one
folder deeper, see `upload_folder`. Artifacts that are set aside go to `STORE/damaged/`. In a local store,
artifacts that are being deleted go to `STORE/trash/`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts.manifest import MANIFEST, Manifest
from storage.artifacts.recipe import digest
from storage.errors import StoreError, store_errors
from storage.filesystem import StoreRoot, list_names

TRASH = "trash"
"""Folder, in a local store, for artifacts that are being deleted."""
ARTIFACTS = "artifacts"
_PLACE = ".place"
"""File, in a staging folder: where its files were moved, although there is no manifest yet."""
FILES = "files"
"""Folder, in a staging folder, of files that are moved to their place before there is a manifest."""
_PLACE_PATTERN = re.compile(r"[A-Za-z0-9_-]+/[0-9a-f]+")
# A store may lie in a folder of its user's, with files beside it: only what has such a name is the program's.
ARTIFACT_NAME = re.compile(r"[0-9a-f]{32}")
MOVED_NAME = re.compile(r"[0-9a-f]+-[0-9a-f]{8}")
"""Name of an artifact's folder after it was set aside or while it is being deleted."""
_STAGED_NAME = re.compile(r"[0-9a-f]{16}")
_LOCK = ".lock"
_LOCK_NAME = re.compile(r"[0-9a-f]{16}\.lock")


def upload_folder(manifest: Manifest) -> str:
    """Name of the folder that holds an artifact's files in an object store."""
    return digest([[entry.path, entry.sha256] for entry in manifest.files])[:16]


@dataclass(frozen=True)
class StoreLayout:
    """The paths of one store's artifacts."""

    root: StoreRoot

    @property
    def staging(self) -> Path:
        """Local folder for artifacts before they are committed and for downloads before they are complete."""
        return self.root.scratch / "staging"

    def of(self, stage: str, artifact_id: str, *parts: str) -> str:
        """fsspec's path of an artifact's folder, or of something in it."""
        return self.root.join(ARTIFACTS, stage, artifact_id, *parts)

    def files_of(self, manifest: Manifest) -> str:
        """fsspec's path of the folder in which an artifact's files lie."""
        folder = self.of(manifest.stage, manifest.artifact_id)
        return folder if self.root.local else f"{folder}/{upload_folder(manifest)}"

    def damaged(self, stage: str, artifact_id: str) -> str:
        """A new place for an artifact that is set aside."""
        return self.root.join("damaged", stage, f"{artifact_id}-{secrets.token_hex(4)}")

    def trash(self, artifact_id: str) -> Path:
        """A new place, in a local store, for an artifact that is being deleted."""
        return Path(self.root.join(TRASH, f"{artifact_id}-{secrets.token_hex(4)}"))

    def half_deleted(self) -> list[Path]:
        """What killed deletions left in the trash of a local store."""
        return _named(self.root.scratch / TRASH, MOVED_NAME)

    def stages(self) -> Sequence[str]:
        """Names of the stages that have artifacts, sorted."""
        return list_names(self.root, self.root.join(ARTIFACTS))

    def ids(self, stage: str) -> Sequence[str]:
        """Names of a stage's folders, sorted; a folder without a manifest is not an artifact."""
        return list_names(self.root, self.root.join(ARTIFACTS, stage))


class StagingFolder:
    """A new folder under `parent`, locked for as long as its writer lives.

    The kernel drops the lock when the writer dies, however it dies, so that `remove_abandoned` can tell
    a folder in use from one left behind. What is locked is a file beside the folder: on NFS and Lustre other
    machines do not see a lock on a folder.
    """

    def __init__(self, parent: Path) -> None:
        with store_errors("create a staging folder in", parent):
            parent.mkdir(parents=True, exist_ok=True)
            self.path, self._descriptor = _create_locked(parent)

    def __enter__(self) -> StagingFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def name_place(self, stage: str, artifact_id: str) -> None:
        """Note that the files of an artifact are moved to their place before there is a manifest."""
        (self.path / _PLACE).write_text(f"{stage}/{artifact_id}", encoding="utf-8")

    def forget_place(self) -> None:
        """They were not moved."""
        (self.path / _PLACE).unlink()

    def release(self) -> None:
        """Give up the lock; remove the folder if it was not moved away, and files at a place without a
        manifest."""
        _remove(self.path)
        _unlock(self.path, self._descriptor)


def abandoned(parent: Path) -> list[Path]:
    """The staging folders whose writers are dead; changes nothing."""
    found = []
    for folder in _named(parent, _STAGED_NAME):
        try:
            descriptor = _try_lock(folder, os.O_RDWR)
        except FileNotFoundError:  # Its writer was killed when all but the folder was gone.
            found.append(folder)
            continue
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            continue  # In a store that cannot be written nobody can tell, and nothing could be removed.
        if descriptor is not None:
            os.close(descriptor)
            found.append(folder)
    return [folder for folder in found if folder.exists()]


def remove_abandoned(parent: Path) -> None:
    """Remove the staging folders whose writers are dead, and what these have moved to its place and not
    committed."""
    locks = (each.with_suffix("") for each in _named(parent, _LOCK_NAME))
    for folder in sorted({*_named(parent, _STAGED_NAME), *locks}):
        descriptor = _try_lock(folder)
        if descriptor is not None:
            _remove(folder)
            _unlock(folder, descriptor)


def is_being_written(parent: Path, stage: str, artifact_id: str) -> bool:
    """Whether a living process has moved files to the place of an artifact that it has not committed."""
    dead = set(abandoned(parent))
    living = (folder for folder in _named(parent, _STAGED_NAME) if folder not in dead)
    return any(_place(folder) == Path(stage, artifact_id) for folder in living)


def _named(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """What is directly in a folder and has such a name, sorted; [] if there is no such folder."""
    return sorted(each for each in folder.iterdir() if names.fullmatch(each.name)) if folder.is_dir() else []


def _remove(folder: Path) -> None:
    place = _place(folder)
    if place is not None:
        files = folder.parent.parent / ARTIFACTS / place
        if not files.is_symlink() and not (files / MANIFEST).exists():
            shutil.rmtree(files, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _place(folder: Path) -> Path | None:
    """Where a writer has moved files, below the folder of artifacts."""
    try:
        named = (folder / _PLACE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Half a name, after a kill, or files that are still here: what is at the place is another writer's.
    was_moved = _PLACE_PATTERN.fullmatch(named) and not (folder / FILES).exists()
    return Path(named) if was_moved else None


def _create_locked(parent: Path) -> tuple[Path, int]:
    for _ in range(10):
        folder = parent / secrets.token_hex(8)
        descriptor = _try_lock(folder)
        # Before the lock was taken, another process may have removed the new file as one that was left.
        if descriptor is not None:
            if os.fstat(descriptor).st_nlink:
                folder.mkdir()
                return folder, descriptor
            os.close(descriptor)
    raise StoreError(
        f"no staging folder could be kept in {parent}: something immediately removes new files there"
    )


def _try_lock(folder: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """A descriptor holding the folder's lock; None where another process has it."""
    descriptor = os.open(_lock_of(folder), flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _unlock(folder: Path, descriptor: int) -> None:
    """Give up a lock of a folder that is gone."""
    _lock_of(folder).unlink(missing_ok=True)
    os.close(descriptor)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_LOCK}")
