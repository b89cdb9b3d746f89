"""Symbolic links in a store: nothing is written through one, and a private folder is the user's own.

A store may be reached through a link, but holds none that leads out of it. What the project writes itself is
opened without following a link. Libraries write in folders that were looked through before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal

from storage.errors import StoreError


def open_to_write(path: Path, mode: Literal["ab", "ab+", "wb"]) -> IO[bytes]:
    """Open a file that is no link, and that is a regular file once it exists.

    Raises StoreError for anything else, and OSError as `open` does.
    """
    return open(path, mode, opener=_open_itself)


def open_lock(path: Path) -> int:
    """A descriptor of a lock file, which is made where it is missing. Raises what `open_to_write` raises."""
    return _open_itself(path, os.O_RDWR | os.O_CREAT)


def refuse_linked_path(base: str | Path, path: str | Path) -> None:
    """Raise StoreError if a folder or file between `base` and `path`, or `path` itself, is a link.

    Paths outside of `base` are the user's own and pass.
    """
    base, path = Path(base), Path(path)
    if not path.is_relative_to(base):
        return
    at = base
    for part in path.relative_to(base).parts:
        at /= part
        if at.is_symlink():
            raise _refusal(at)


def refuse_links_out(base: Path, folders: Iterable[Path], *, deep: bool = True) -> None:
    """Raise StoreError if something in these folders, or one of them, is a link that leads out of `base`.

    A link that stays in the store is one that a library made, such as W&B's to its latest run.

    Args:
        deep: look through the folders below too.
    """
    whole = base.resolve()
    for folder in folders:
        refuse_linked_path(base, folder)
        for link in _links(folder, deep):
            if not link.resolve().is_relative_to(whole):
                raise _refusal(link)


def private_folder(path: Path) -> Path:
    """A folder that only this user can enter; it is made where it is missing.

    Raises StoreError if it belongs to another user, is no folder, or others could have written into it.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"cannot make {path}: {error.strerror}. Set TMPDIR to a folder of yours.") from error
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & 0o022:
        raise StoreError(
            f"{path} is not a folder that only you can write: another user may have put files there. Remove "
            "it, or set TMPDIR to a folder of yours."
        )
    if mode != 0o700:
        path.chmod(0o700)
    return path


def _open_itself(path: str | Path, flags: int) -> int:
    try:
        # Without O_NONBLOCK, a pipe would be waited for.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if os.path.islink(path):
            raise _refusal(Path(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path} is not a regular file, so nothing is written to it. Remove it.")
    return descriptor


def _links(folder: Path, deep: bool) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_symlink():
            yield Path(entry.path)
        elif deep and entry.is_dir(follow_symlinks=False):
            yield from _links(Path(entry.path), deep)


def _refusal(link: Path) -> StoreError:
    return StoreError(
        f"{link} is a symbolic link, and nothing is written through a link in a store: what is behind it may "
        "belong to anybody. Remove the link, then run the same command again. To keep a store on another "
        "disk, link the whole store."
    )
