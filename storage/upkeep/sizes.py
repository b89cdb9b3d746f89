"""Bytes on disk of files, of which several may be hard links to the same bytes: such as the checkpoint of an
update that had nothing to train on, and the one that it was given."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

OwnerT = TypeVar("OwnerT", bound=Hashable)


@dataclass(frozen=True)
class StoredFile:
    """`inode` is the same for hard links to the same bytes; `links` is how many there are, in any folder."""

    inode: Hashable
    links: int
    bytes: int


def listed_file(info: Mapping[str, Any]) -> StoredFile:
    """A file by fsspec's information. An object has no links."""
    return StoredFile(info.get("ino", info["name"]), int(info.get("nlink", 1)), int(info["size"]))


def local_file(path: Path) -> StoredFile:
    found = path.stat()
    return StoredFile(found.st_ino, found.st_nlink, found.st_size)


def stored_bytes(files: Iterable[StoredFile]) -> int:
    """Bytes that files take together."""
    return sum({file.inode: file.bytes for file in files}.values())


def freed_bytes(removed: Mapping[OwnerT, Iterable[StoredFile]]) -> dict[OwnerT, int]:
    """Bytes that are freed once the files of all owners are removed: of these files nothing is left only if
    all links to them are among them. They count for the first owner that has one."""
    first: dict[Hashable, tuple[OwnerT, StoredFile]] = {}
    seen: Counter[Hashable] = Counter()
    for owner, files in removed.items():
        for file in files:
            first.setdefault(file.inode, (owner, file))
            seen[file.inode] += 1
    freed = dict.fromkeys(removed, 0)
    for inode, (owner, file) in first.items():
        if seen[inode] >= file.links:
            freed[owner] += file.bytes
    return freed
