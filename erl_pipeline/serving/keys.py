"""Whose calls they are: keys of clients, and how often each may call."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading import load_settings
from storage.serving.users import LOCAL_TENANT

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class ClientKey(Settings):
    """What is known of a key."""

    tenant: str = Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]*$")
    """Whose it is. Episodes and feedback of one tenant do not exist for another. It has no control
    characters: a line feed stands between the tenant and the name of an episode where these are one text."""
    requests_per_minute: int | None = Field(default=None, ge=1)


class _KeysFile(Settings):
    keys: dict[Sha256, ClientKey]


class Client:
    """One key, and how many calls it has left. A minute's calls may come at once."""

    def __init__(self, key: ClientKey, clock: Callable[[], float] = time.monotonic) -> None:
        self.tenant = key.tenant
        self._per_minute = key.requests_per_minute
        self._left = float(key.requests_per_minute or 0)
        self._clock = clock
        self._counted = clock()

    def seconds_to_wait(self) -> float:
        """Count a call; 0 if it may be made, else the seconds until one may be."""
        if self._per_minute is None:
            return 0.0
        now = self._clock()
        grown = (now - self._counted) * self._per_minute / 60
        self._left, self._counted = min(float(self._per_minute), self._left + grown), now
        if self._left < 1.0:
            return (1.0 - self._left) * 60 / self._per_minute
        self._left -= 1.0
        return 0.0


class KeyRing:
    """The clients, by the SHA-256 of their keys: no key is kept."""

    def __init__(self, keys: Mapping[str, ClientKey]) -> None:
        self._clients = {digest: Client(key) for digest, key in keys.items()}

    def client(self, key: str) -> Client | None:
        """The client that has this key; None if nobody has it."""
        return self._clients.get(_digest(key))


def read_keys(path: Path | None) -> tuple[KeyRing, str | None]:
    """The keys in a file, or one that is made now; the second value is that key.

    Raises ConfigError, which lists all problems of the file.
    """
    if path is not None:
        return KeyRing(
            load_settings(path, _KeysFile, "docs/serving.md says what keys_file holds", only="keys").keys
        ), None
    key = secrets.token_urlsafe(32)
    return KeyRing({_digest(key): ClientKey(tenant=LOCAL_TENANT)}), key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
