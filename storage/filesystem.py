"""Files of a store, local or in an object store (fsspec). A kill leaves no half-written file.

A store may be reached through a symbolic link, but holds none that leads out of it: nothing is written
through one. What the project writes itself is opened without following a link. Libraries write in folders
that were looked through before.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem

from storage.errors import StoreError, store_errors


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


_LOCAL = re.compile(r"(file|local)://")
_SMALL_FILE = 2**20
"""Most bytes of a file that is hashed in one read: for those the buffer of `file_digest` costs more time."""
MOST_CONNECTIONS = 64
"""Most connections to an object store that a process has open at the same time."""
WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK})
"""Errors of a file system that has no hard links, or allows no more of them."""


@dataclass(frozen=True)
class StoreRoot:
    """A store's root folder; `path` is fsspec's path, without protocol."""

    uri: str
    fs: fsspec.AbstractFileSystem
    path: str

    @property
    def local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return isinstance(self.fs, LocalFileSystem)

    def join(self, *parts: str) -> str:
        """fsspec's path of a file or folder in the store."""
        return "/".join((self.path.rstrip("/"), *parts))

    @property
    def scratch(self) -> Path:
        """A local folder for what belongs to an object store but cannot lie in it: staging, downloads, locks.
        A local store is its own scratch folder.

        Raises StoreError if another user may have made it: its path can be guessed."""
        if self.local:
            return Path(self.path)
        key = hashlib.sha256(self.uri.rstrip("/").encode("utf-8")).hexdigest()[:16]
        return users_scratch() / key

    def refuse_link(self, path: str) -> None:
        """Raise StoreError if a path in a local store leads through a link. Object stores have none."""
        if self.local:
            refuse_linked_path(self.path, path)


def users_scratch() -> Path:
    """This user's folder, on this machine, for what can be made again. Raises what `private_folder` does."""
    return private_folder(Path(tempfile.gettempdir()) / f"erl-pipeline-{os.getuid()}")


def open_root(uri: str) -> StoreRoot:
    """The root of the store at a path or a `file://`, `s3://`, `gs://` or `memory://` URI.

    Raises StoreError for an unknown protocol or one whose package is not installed.
    """
    options: dict[str, Any] = {}
    if "://" in uri and not _LOCAL.match(uri):
        # No cached listings: what another machine has written since must be seen.
        options["use_listings_cache"] = False
    if uri.startswith("s3"):
        options["config_kwargs"] = {"max_pool_connections": MOST_CONNECTIONS}
    try:
        fs, path = fsspec.core.url_to_fs(uri, **options)
    except (ValueError, ImportError) as error:
        raise StoreError(
            f"cannot open store {uri!r}: {error}. Use a folder, file://, s3:// or gs:// "
            "(s3:// needs the extra `s3`)."
        ) from error
    return StoreRoot(uri, fs, path)


def existing_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    whole = path.absolute()
    return next(folder for folder in (whole, *whole.parents) if folder.is_dir())


def free_bytes(root: StoreRoot) -> int | None:
    """Free bytes on the disk of a local store; None for an object store, which does not report them."""
    return shutil.disk_usage(existing_folder(Path(root.path))).free if root.local else None


def size_and_time(path: str | Path) -> tuple[int, int] | None:
    """Size and time of the last change of a local file; None if it is missing."""
    try:
        found = os.stat(path)  # takes a third of the time of `Path.stat`; a page checks thousands
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size, found.st_mtime_ns


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a local file."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= _SMALL_FILE:
            return hashlib.sha256(file.read()).hexdigest()
        return hashlib.file_digest(file, "sha256").hexdigest()


class NotOnDisk(StoreError):
    """Files could not be flushed to disk, or are not as their stage wrote them.

    They must be written again: after a failed flush the kernel takes what it has of a file for written, and
    flushing it once more would succeed.
    """


def _flush(descriptor: int, path: str | Path) -> None:
    try:
        with store_errors("flush to disk", path):
            os.fsync(descriptor)
    except StoreError as error:
        raise NotOnDisk(str(error)) from error


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk. Raises NotOnDisk, and OSError as `open` does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _flush(descriptor, folder)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; their names are on disk when this returns."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder under `folder` to disk, files first. Raises what `sync_folder` raises."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                _flush(file.fileno(), path)
        sync_folder(Path(parent))


def write_new(root: StoreRoot, path: str, content: bytes, *, unique: bool = False, mode: int = 0o666) -> bool:
    """Write a small file whole or not at all; False, and nothing changed, if it exists already.

    `unique` says that nobody else would write the same content. The response to a write to an object store
    may be lost, so that the write is repeated; with `unique`, the same content in place is known to be ours.
    `mode` is that of a local file, without what the user's mask forbids.

    Raises StoreError if it cannot be written, as on a local file system without hard links.
    """
    with store_errors("write", path):
        if not root.local:
            return _create_object(root, path, content) or (unique and read_bytes(root, path) == content)
        target = Path(path)
        root.refuse_link(str(target.parent))
        make_folder(target.parent)
        temporary = _written_beside(target, content, mode)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            # A file appears whole, and only where there is none, by a link; a rename would replace one.
            raise StoreError(
                f"cannot write {target}: its file system makes no hard links ({error.strerror}), which a "
                "store needs. Put the store on one that does, such as ext4, XFS, APFS or NFS, not FAT or "
                "exFAT; or use an object store (s3://, gs://)."
            ) from error
        finally:
            temporary.unlink()
        sync_folder(target.parent)
        return True


def replace_file(root: StoreRoot, path: str, content: bytes) -> None:
    """Write or replace a small file as a whole; readers see either the old or the new content."""
    with store_errors("write", path):
        if not root.local:
            root.fs.pipe_file(path, content)
            return
        target = Path(path)
        root.refuse_link(str(target.parent))
        _written_beside(target, content).replace(target)
        sync_folder(target.parent)


def _written_beside(target: Path, content: bytes, mode: int = 0o666) -> Path:
    """A new file, in the folder of `target`, that is on disk."""
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _create_object(root: StoreRoot, path: str, content: bytes) -> bool:
    try:
        root.fs.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except OSError as error:
        answer = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
        # Servers name the failed condition in different ways; a conflict means another write is under way.
        if answer not in ("PreconditionFailed", "ConditionalRequestConflict"):
            raise
        return False
    return True


def remove(root: StoreRoot, path: str) -> None:
    """Remove a file; nothing happens where there is none."""
    root.refuse_link(path.rpartition("/")[0])
    with store_errors("remove", path), suppress(FileNotFoundError):
        root.fs.rm_file(path)


def read_bytes(root: StoreRoot, path: str) -> bytes | None:
    """A small file's content; None if it does not exist."""
    with store_errors("read", path):
        try:
            if not root.local:
                return bytes(root.fs.cat_file(path))
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None


def list_names(root: StoreRoot, path: str) -> list[str]:
    """Names directly under a folder, sorted, without hidden ones; [] if there is no such folder."""
    with store_errors("list", path):
        try:
            # Not by fsspec: it examines each file, which takes long for thousands.
            found = os.listdir(path) if root.local else root.fs.ls(path, detail=False, refresh=True)
        except FileNotFoundError:
            return []
    names = {str(item).rstrip("/").rsplit("/", 1)[-1] for item in found}
    return sorted(name for name in names if not name.startswith("."))
