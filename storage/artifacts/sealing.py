"""Small sealed JSON documents: the last member of each is the digest of all that comes before it.

Sealed documents are manifests, records of an artifact's pruned files, the descriptions of a run and of its
origin, and each line of a ledger. The digest is of the bytes as they were written, so every changed byte is
found. It protects against faults, not against forgery.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from storage.errors import DamagedRecord, StoreError
from storage.filesystem import StoreRoot, read_bytes

T = TypeVar("T")

SCHEMA_VERSION = 3
"""The format of a store's documents. All but the lines of ledgers hold it, as `schema_version`."""

_SEAL = re.compile(rb'"seal": ?"[^"]{64}"\s*\}\s*$')


class Record(BaseModel):
    """What a document says; nothing else may stand in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def seal(document: str) -> bytes:
    """A JSON object with its digest as last member; a document of several lines ends in a newline.

    Raises ValueError if it is not a JSON object, or an empty one.
    """
    body = document.encode("utf-8").rstrip()
    if not (body.startswith(b"{") and body.endswith(b"}") and len(body) > 2):
        raise ValueError("only a JSON object with members can be sealed")
    return _sealed(body[:-1].rstrip())


def unseal(written: bytes) -> bytes | None:
    """The JSON object that was sealed, without its digest; None if any byte was changed."""
    # Faster than the search below: logs have millions of lines.
    content = written[:-_LINE_END]
    if b"\n" not in content and written.endswith(_line_end(content)):
        return content + b"}"
    found = _SEAL.search(written, max(0, len(written) - 120))
    if found is None:
        return None
    content = written[: found.start()].rstrip().removesuffix(b",")
    return content + b"}" if _sealed(content) == written else None


def open_document(written: bytes, where: str) -> bytes | None:
    """Like `unseal`, for a document that holds its schema version.

    Raises StoreError, which says what to do, for a document of another version of this program.
    """
    content = unseal(written)
    if content is None and _SEAL.search(written):
        return None
    try:
        document = json.loads(written if content is None else content)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    version = document.get("schema_version")
    if version == SCHEMA_VERSION:
        return content
    older = not isinstance(version, int) or version < SCHEMA_VERSION
    found = "no schema version" if version is None else f"schema version {version}"
    writer = "an earlier" if older else "a later"
    advice = "Use the program that wrote it" if older else "Use a newer program"
    raise StoreError(
        f"{where} was written by {writer} version of erl-pipeline: it has {found}, and this program reads "
        f"version {SCHEMA_VERSION}. {advice}, or train into a new store (--store)."
    )


def says_other_version(written: bytes) -> str:
    """A phrase for a document that was changed and holds another schema version; else empty."""
    try:
        version = json.loads(written).get("schema_version", SCHEMA_VERSION)
    except (ValueError, AttributeError):
        return ""
    if version == SCHEMA_VERSION:
        return ""
    return f"; it says schema version {version}, and this program reads version {SCHEMA_VERSION}"


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


def read_as(root: StoreRoot, path: str, kind: TypeAdapter[T], what: str) -> T | None:
    """What a file says that `record_bytes` made of a record; None where there is none.

    Raises StoreError, which says `what` it should be, for one that holds something else, and what
    `read_record` raises.
    """
    written = read_bytes(root, path)
    if written is None:
        return None
    try:
        return kind.validate_python(read_record(written, path))
    except ValidationError as error:
        raise StoreError(f"{path} is not {what} ({error.error_count()} errors).") from error


def sealed_line(record: Record) -> bytes:
    """A record as a line of a file."""
    return seal(json.dumps(record.model_dump(mode="json"), ensure_ascii=False)) + b"\n"


def read_line(line: bytes, kind: TypeAdapter[T], where: str) -> T:
    """What a line says that `sealed_line` made. Raises DamagedRecord, which says `where`, for one that is not
    as it was written, or of another version of this program."""
    content = unseal(line.rstrip(b"\n"))
    if content is None:
        raise DamagedRecord(f"{where} is not as it was written; put it back from a copy")
    try:
        found: T = kind.validator.validate_json(content)
    except ValidationError as error:
        raise DamagedRecord(f"{where} is of another version of this program") from error
    return found


def _sealed(content: bytes) -> bytes:
    """`content` is a JSON object without its closing brace."""
    if b"\n" in content:
        digest = hashlib.sha256(content).hexdigest().encode()
        return content + b',\n "seal": "' + digest + b'"\n}\n'
    return content + _line_end(content)


_LINE_END = len(',"seal":""}') + 64


def _line_end(content: bytes) -> bytes:
    """What seals a document of one line."""
    return b',"seal":"' + hashlib.sha256(content).hexdigest().encode() + b'"}'
