"""Small files that describe a run: sealed JSON, indented for people to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.artifacts.sealing import SCHEMA_VERSION, open_document, says_other_version, seal
from storage.errors import DamagedRecord


def record_bytes(content: Mapping[str, Any]) -> bytes:
    """A sealed document with the schema version and `content`, which must be finite JSON."""
    document = {"schema_version": SCHEMA_VERSION, **content}
    return seal(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))


def read_record(written: bytes, path: str) -> dict[str, Any]:
    """The content of a file that `record_bytes` made.

    Raises DamagedRecord if it was changed, StoreError if another version of this program wrote it.
    """
    document = open_document(written, path)
    if document is None:
        raise DamagedRecord(
            f"{path} was changed after it was written{says_other_version(written)}. Put it back from a copy."
        )
    content: dict[str, Any] = json.loads(document)
    del content["schema_version"]
    return content
