"""Files of a store, local or in an object store (fsspec). A kill leaves no half-written file."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from storage.errors import PipelineError, StoreError
from storage.links import private_folder, refuse_linked_path

_LOCAL = re.compile(r"(file|local)://")
_ADVICE = {
    errno.EACCES: "you have no permission: choose another store or change its permissions",
    errno.EPERM: "you have no permission: choose another store or change its permissions",
    errno.EROFS: "the file system is read-only: choose another store",
    errno.ENOSPC: "the disk is full: free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.EIO: "the disk fails: see the system's log, then run the same command again",
    errno.EFBIG: "a file would be larger than is allowed: raise the limit, then run the same command again",
    errno.ENOTDIR: "a part of the path is a file: choose another store",
    errno.EEXIST: "a file is in the way: choose another store",
    errno.ENOENT: "it does not exist: create the folder or bucket, or correct the store's URI",
}
_SMALL_FILE = 2**20
"""Most bytes of a file that is hashed in one read: for those the buffer of `file_digest` costs more time."""
MOST_CONNECTIONS = 64
"""Most connections to an object store that a process has open at the same time."""
_DISK_FAULTS = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


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


@contextmanager
def store_errors(action: str, where: str | Path) -> Iterator[None]:
    """Turn the operating system's errors into a StoreError that says what to do."""
    try:
        yield
    except _remote_errors() as error:
        raise StoreError(
            f"cannot {action} {where}: {str(error).rstrip('.')}. Check the address "
            "(AWS_ENDPOINT_URL), the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and the network."
        ) from error
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the store's path and that its disk works")
        if isinstance(error, PermissionError):
            advice = _ADVICE[errno.EACCES]
        elif isinstance(error, FileNotFoundError):
            advice = _ADVICE[errno.ENOENT]
        raise StoreError(f"cannot {action} {where}: {error.strerror or error}; {advice}.") from error


@contextmanager
def disk_errors(where: str | Path) -> Iterator[None]:
    """Turn any exception that comes from a full, failing or read-only disk into a StoreError.

    For work in which many libraries write. Libraries in Rust have their own exceptions, which hold the
    system's error number in their text. Every other exception passes unchanged.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if told := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(told[1])
        if number is None or number not in _DISK_FAULTS:
            raise
        raise StoreError(f"cannot write {where}: {os.strerror(number)}; {_ADVICE[number]}.") from error


def _remote_errors() -> tuple[type[Exception], ...]:
    """What s3fs raises besides OSError: botocore's own errors of credentials and connections."""
    botocore = sys.modules.get("botocore.exceptions")
    return () if botocore is None else (botocore.BotoCoreError, botocore.ClientError)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a local file."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size <= _SMALL_FILE:
            return hashlib.sha256(file.read()).hexdigest()
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
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
    """Flush every file and folder under `folder` to disk, files first."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def write_new(root: StoreRoot, path: str, content: bytes, *, unique: bool = False) -> bool:
    """Write a small file whole or not at all; False, and nothing changed, if it exists already.

    `unique` says that nobody else would write the same content. The response to a write to an object store
    may be lost, so that the write is repeated; with `unique`, the same content in place is known to be ours.
    """
    with store_errors("write", path):
        if not root.local:
            return _create_object(root, path, content) or (unique and read_bytes(root, path) == content)
        target = Path(path)
        root.refuse_link(str(target.parent))
        make_folder(target.parent)
        temporary = _written_beside(target, content)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
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


def _written_beside(target: Path, content: bytes) -> Path:
    """A new file, in the folder of `target`, that is on disk."""
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
    with temporary.open("xb") as file:
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


def publish_folder(folder: Path, target: Path) -> bool:
    """Move a written folder to its place; False, and nothing moved, if another folder is there already."""
    sync_tree(folder)
    make_folder(target.parent)
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    sync_folder(target.parent)
    return True
