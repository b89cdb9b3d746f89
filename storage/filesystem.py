"""Files of a store, local or in an object store (fsspec), written so that a kill leaves no half file."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from storage.errors import StoreError

_ADVICE = {
    errno.EACCES: "you have no permission: choose another store or change its permissions",
    errno.EPERM: "you have no permission: choose another store or change its permissions",
    errno.EROFS: "the file system is read-only: choose another store",
    errno.ENOSPC: "the disk is full: free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.ENOTDIR: "a part of the path is a file: choose another store",
    errno.EEXIST: "a file is in the way: choose another store",
    errno.ENOENT: "it does not exist: create the folder or bucket, or correct the store's URI",
}


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
        """fsspec's path of something in the store."""
        return "/".join((self.path.rstrip("/"), *parts))

    @property
    def scratch(self) -> Path:
        """A local folder for what belongs to this store but cannot lie in it: staging and downloads of an
        object store, locks. A local store is its own scratch."""
        if self.local:
            return Path(self.path)
        key = hashlib.sha256(self.uri.encode("utf-8")).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"erl-pipeline-{os.getuid()}" / key


def open_root(uri: str) -> StoreRoot:
    """The root of the store at a path or a `file://`, `s3://`, `gs://` or `memory://` URI.

    Raises StoreError for an unknown protocol or one whose package is not installed.
    """
    try:
        fs, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise StoreError(
            f"cannot open store {uri!r}: {error}. Use a folder, file://, s3:// or gs://."
        ) from error
    return StoreRoot(uri, fs, path)


@contextmanager
def store_errors(action: str, where: str | Path) -> Iterator[None]:
    """Turn the operating system's errors into a StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "check the store's path and that its disk works")
        if isinstance(error, PermissionError):
            advice = _ADVICE[errno.EACCES]
        elif isinstance(error, FileNotFoundError):
            advice = _ADVICE[errno.ENOENT]
        raise StoreError(f"cannot {action} {where}: {error.strerror or error}; {advice}.") from error


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a local file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder under `folder` to disk, files first."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(parent))


def write_new(root: StoreRoot, path: str, content: bytes) -> bool:
    """Write a small file whole or not at all; False, and nothing changed, where it exists already."""
    with store_errors("write", path):
        if not root.local:
            try:
                root.fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            return True
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folder(target.parent)
        return True


def read_bytes(root: StoreRoot, path: str) -> bytes | None:
    """A small file's content, None where it does not exist."""
    with store_errors("read", path):
        try:
            return bytes(root.fs.cat_file(path))
        except (FileNotFoundError, NotADirectoryError):
            return None


def list_names(root: StoreRoot, path: str) -> list[str]:
    """Names directly under a folder, sorted; hidden ones left out; [] where there is no such folder."""
    with store_errors("list", path):
        try:
            found = root.fs.ls(path, detail=False, refresh=True)
        except FileNotFoundError:
            return []
    names = {str(item).rstrip("/").rsplit("/", 1)[-1] for item in found}
    return sorted(name for name in names if not name.startswith("."))


def publish_folder(folder: Path, target: Path) -> bool:
    """Move a written folder to its place; False, and nothing moved, where another is there already."""
    sync_tree(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    sync_folder(target.parent)
    return True
