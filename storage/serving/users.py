"""Who is who in served traffic: records hold a keyed digest of a user's name, never the name."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from storage.errors import DamagedRecord, store_errors
from storage.filesystem import make_folder, sync_folder
from storage.serving.traffic import serving_folder

_KEY_BYTES = 32


def user_digest(store_uri: str, run: str, name: str) -> str:
    """What records of a served run hold in place of a user's name: 32 hex digits, empty for an empty name.

    The key is made at the first call and can be read by this user of the machine only. Whoever has it can
    try names; whoever has lost it cannot find a user's records any more.

    Raises DamagedRecord where the key is not as it was made, InputError for a store that is not local.
    """
    return digest_of(user_key(store_uri, run), name)


def user_key(store_uri: str, run: str) -> bytes:
    """The key of a served run's digests, for those who need many; see `user_digest`."""
    path = serving_folder(store_uri, run) / "user_key"
    if not path.exists():
        _make_key(path)
    with store_errors("read", path):
        key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DamagedRecord(f"{path} is not the key that was made; put it back from a copy")
    return key


def digest_of(key: bytes, name: str) -> str:
    """A user's digest, by the key."""
    return hmac.new(key, name.encode("utf-8"), hashlib.sha256).hexdigest()[:32] if name else ""


def user_task_type(user: str) -> str:
    """Task type of the memory entries that only this user's conversations see."""
    return f"user:{user}"


def _make_key(path: Path) -> None:
    """Make the key, whole or not at all; the first of several processes wins."""
    make_folder(path.parent)
    temporary = path.with_name(f".user_key.{secrets.token_hex(8)}")
    with store_errors("write", path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
        sync_folder(path.parent)
