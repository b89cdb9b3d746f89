"""Addresses of servers in settings."""

from __future__ import annotations

from urllib.parse import urlsplit


def checked_address(url: str) -> str:
    """The address, without a slash at its end. Settings are stored, so it may hold no key.

    Raises ValueError for what is no address of a server, or holds a name, a password or a query.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url}: allowed are addresses such as http://gpu-1:8000")
    if parts.username is not None or parts.password is not None or parts.query:
        raise ValueError(
            "it holds a name, a password or a query, and settings are stored; put the key into an "
            "environment variable and name that in api_key_variable"
        )
    return url.rstrip("/")
