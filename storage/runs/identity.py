"""What tells a run apart from every other one, also from a run of the same name in another store."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from storage.filesystem import StoreRoot, open_root, read_bytes, store_errors, write_new


def run_identity(store_uri: str, name: str) -> str:
    """16 hexadecimal digits that only this run has; it keeps them. The run has to be locked.

    A copy of a store is another store, also at the same path of another machine, since both may be worked on
    at the same time. A folder that was moved gets another identity too. Only a copy of a whole disk, block by
    block, has the same.

    Raises StoreError when the store cannot be read or written.
    """
    root = open_root(store_uri)
    path = root.join("runs", name, "identity")
    token = read_bytes(root, path)
    if token is None:
        token = secrets.token_hex(16).encode()
        write_new(root, path, token, unique=True)
    return hashlib.sha256(token + _place(root, path).encode()).hexdigest()[:16]


def _place(root: StoreRoot, path: str) -> str:
    if not root.local:
        return root.uri.rstrip("/")
    with store_errors("look at", path):
        file = Path(path).resolve()
        found = file.stat()
    # Whoever copies the file gets another inode and another time of change, which nobody can set. The path
    # distinguishes a snapshot of the file system, in which both are the same.
    return f"{file} {found.st_ino} {found.st_ctime_ns}"
