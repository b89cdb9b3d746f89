"""Who is who in served traffic: records hold a keyed digest of a user's name, never the name.

Two tenants that name the same user mean two users.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from storage.errors import DamagedRecord, store_errors
from storage.filesystem import open_root, write_new
from storage.serving.traffic import serving_folder

_KEY_BYTES = 32

LOCAL_TENANT = "local"
"""The tenant of a server without a file of keys."""


@dataclass(frozen=True)
class NamedUser:
    """A user as records of a served run name it: by a tenant and one of these digests."""

    tenant: str
    digests: tuple[str, ...]
    """What is written now comes first. Earlier versions wrote one that users of this name shared."""

    def has(self, user: str, tenant: str) -> bool:
        """Whether a record with this digest and this tenant is of this user."""
        return tenant == self.tenant and user in self.digests


def named_user(store_uri: str, run: str, tenant: str, name: str) -> NamedUser:
    """The user that a tenant calls by this name, with the digest of earlier versions; raises as
    `user_key`."""
    key = user_key(store_uri, run)
    digests = (digest_of(key, each, name) for each in (tenant, LOCAL_TENANT))
    return NamedUser(tenant, tuple(dict.fromkeys(filter(None, digests))))


def user_key(store_uri: str, run: str) -> bytes:
    """The key of the digests that records of a served run hold in place of users' names.

    It is made at the first call and can be read by this user of the machine only. Whoever has it can try
    names; whoever has lost it cannot find a user's records any more.

    Raises DamagedRecord where the key is not as it was made, InputError for a store that is not local.
    """
    path = serving_folder(store_uri, run) / "user_key"
    if not path.exists():  # the first of several processes wins
        write_new(open_root(store_uri), str(path), secrets.token_bytes(_KEY_BYTES), mode=0o600)
    with store_errors("read", path):
        key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise DamagedRecord(f"{path} is not the key that was made; put it back from a copy")
    return key


def digest_of(key: bytes, tenant: str, name: str) -> str:
    """A tenant's user's digest, by the key: 32 hex digits, empty for an empty name.

    Names hold no control characters, so no name means two users. That of a server without a file of keys is
    the digest of the name alone, as it was for all tenants once.
    """
    said = name if tenant == LOCAL_TENANT else f"{tenant}\0{name}"
    return hmac.new(key, said.encode("utf-8"), hashlib.sha256).hexdigest()[:32] if name else ""


def user_task_type(user: str) -> str:
    """Task type of the memory entries that only this user's conversations see."""
    return f"user:{user}"
