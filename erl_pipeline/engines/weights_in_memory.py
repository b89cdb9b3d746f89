"""New weights in this machine's memory, so that a sampler there need not read the files of their checkpoint.

Whoever has trained them writes them to a folder of `/dev/shm`. Any process of the same user on this machine
finds them by the id of the checkpoint. They are a copy: without them the files are read. The folder names
the checkpoint's `probe.safetensors` by its digest: that file is computed from the weights, so weights of
another computation of the same checkpoint are not taken for these.

The folders of a process are locked while it lives. What is left of a killed one is removed when the next
process begins to write.
"""

import json
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from storage.artifacts.layout import StagingFolder, remove_abandoned
from storage.artifacts.recipe import digest
from storage.errors import StoreError
from storage.filesystem import sha256_file

MEMORY = Path("/dev/shm")
"""A folder of Linux whose files lie in memory."""
MOST_CHECKPOINTS = 2
"""How many checkpoints of a run may be in memory."""

_NAMED = "checkpoint.json"
_MARGIN = 1.1


def memory_is_usable() -> bool:
    """Whether this machine has such a folder, and this user may write in it."""
    folder = _folder_of_user()
    if folder.exists() or folder.is_symlink():
        return _is_ours(folder)
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK | os.X_OK)


class WeightsWriter:
    """Puts the weights of a run's checkpoints into memory; a context manager that removes those that this
    process has put there.

    Raises StoreError when the folder cannot be made, or belongs to another user.
    """

    def __init__(self, store_uri: str, run: str) -> None:
        self._run = _run_key(store_uri, run)
        parent = _folder_of_user()
        parent.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(parent):
            raise StoreError(f"{parent} belongs to another user, or others can write in it; remove it")
        remove_abandoned(parent)
        self._folder = StagingFolder(parent)
        self.warned = False
        """Whether people were told that weights could not be put into memory."""

    def __enter__(self) -> "WeightsWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.release()

    def put(self, checkpoint_id: str, probe_file: Path, size: int, write: Callable[[Path], None]) -> str:
        """Put the weights of a checkpoint into memory; the oldest of the run are removed before.

        Args:
            probe_file: the checkpoint's `probe.safetensors`.
            size: bytes of the weights.
            write: writes them into a folder, as safetensors.

        Returns why they were not put there; empty if they were.
        """
        for older in _newest_first(self._run)[MOST_CHECKPOINTS - 1 :]:
            shutil.rmtree(older, ignore_errors=True)
        free = shutil.disk_usage(self._folder.path).free
        if free < _MARGIN * size:
            return f"{MEMORY} has {free / 1e9:.2f} GB free, and the weights have {size / 1e9:.2f} GB"
        beside = self._folder.path / "writing"
        try:
            write(beside)
            named = {"checkpoint": checkpoint_id, "probe": sha256_file(probe_file)}
            (beside / _NAMED).write_text(json.dumps(named), encoding="utf-8")
            place = self._folder.path / f"{self._run}.{checkpoint_id}"
            shutil.rmtree(place, ignore_errors=True)
            beside.rename(place)
        except (OSError, SafetensorError) as error:
            return f"{MEMORY} cannot be written: {error}"
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return ""


def find_weights(store_uri: str, run: str, checkpoint_id: str, probe_file: Path) -> Path | None:
    """The folder in memory with the weights of a checkpoint whose `probe.safetensors` this is; None where
    there is none."""
    if not _is_ours(_folder_of_user()):
        return None
    wanted = {"checkpoint": checkpoint_id, "probe": sha256_file(probe_file)}
    for folder in _newest_first(_run_key(store_uri, run)):
        # Its process may be removing it.
        with suppress(FileNotFoundError):
            if json.loads((folder / _NAMED).read_text(encoding="utf-8")) == wanted:
                return folder
    return None


def _folder_of_user() -> Path:
    return MEMORY / f"erl-pipeline-{os.getuid()}"


def _is_ours(folder: Path) -> bool:
    """Whether only this user can write in a folder. Any user can make folders in `MEMORY`."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _run_key(store_uri: str, run: str) -> str:
    return digest([store_uri, run])[:16]


def _newest_first(run_key: str) -> list[Path]:
    """The folders of a run's checkpoints, of all its processes."""
    found: list[tuple[int, Path]] = []
    for folder in _folder_of_user().glob(f"*/{run_key}.*"):
        with suppress(FileNotFoundError):
            found.append((folder.stat().st_mtime_ns, folder))
    return [folder for _, folder in sorted(found, reverse=True)]
