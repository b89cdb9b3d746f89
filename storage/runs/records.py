"""Small files that say what a run is, with a digest by which a change is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from storage.artifacts.recipe import canonical_json
from storage.errors import StoreError

_DIGEST = "sha256"


def record_bytes(content: Mapping[str, Any]) -> bytes:
    """JSON for people to read, with the digest of `content` beside it."""
    text = json.dumps({**content, _DIGEST: _sha256(content)}, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def read_record(written: bytes, path: str) -> dict[str, Any]:
    """The content of a file of `record_bytes`. Raises StoreError where it is not as it was written."""
    try:
        content = json.loads(written)
        whole = isinstance(content, dict) and content.pop(_DIGEST, None) == _sha256(content)
    except ValueError as error:
        raise StoreError(f"{path} cannot be read: {error}. Put it back from a copy.") from error
    if not whole:
        raise StoreError(f"{path} was changed after it was written. Put it back from a copy.")
    return content


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode("utf-8")).hexdigest()
