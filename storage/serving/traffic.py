"""The log of a policy that serves: each answer, each piece of feedback, and each end of an episode.

Layout: `STORE/serving/RUN/log/<begun>-<random>.jsonl`, one segment for each server process. A record is a
sealed line of JSON. Records are only ever appended. A kill may cut off the last line of a segment; any other
line that is not as it was written is damage. A server locks its segment as long as it writes to it; only a
segment without a lock is ever rewritten (`storage.serving.rewriting`).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from storage.artifacts import sealing
from storage.errors import InputError, store_errors
from storage.filesystem import make_folder, open_root, open_to_write, sync_folder


class ServedTurn(sealing.Record):
    """One answer of the policy. A call with `n` choices has as many turns."""

    type: Literal["turn"] = "turn"
    turn_id: str
    call_id: str
    """What the client was told as the id of its answer."""
    episode_id: str
    tenant: str
    """Whose key it was."""
    user: str
    """A keyed digest of the user's name; empty where the request named none."""
    task_type: str
    alias: str
    policy_version: str
    """Artifact id of the checkpoint."""
    tokenizer_digest: str
    temperature: float
    after: str | None
    """The turn behind whose tokens this one was sampled; None where it begins a token sequence."""
    context_token_ids: tuple[int, ...]
    """The tokens between that turn and this one; the whole prompt where there is none."""
    sampled_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampled tokens, in nats, after temperature."""
    seed: int
    finish_reason: Literal["stop", "length"]
    not_trainable: str
    """Why its tokens can never be trained, such as a temperature of 0; empty where they can."""
    messages: tuple[Mapping[str, Any], ...]
    """What the client sent after the messages of `after`, as it wrote them."""
    answer: Mapping[str, Any]
    """The assistant's message."""
    notes: str
    """What was put into the system message, such as notes of the memory; empty for nothing."""
    memory_version: str
    memory_entry_ids: tuple[str, ...]
    arrived: datetime
    seconds: float
    """From the call's arrival to its last token."""


class Feedback(sealing.Record):
    """What somebody said about a call or about a whole episode."""

    type: Literal["feedback"] = "feedback"
    feedback_id: str
    episode_id: str
    call_id: str | None
    tenant: str
    user: str
    """Of the episode."""
    metric: str
    """A metric that the server's settings declare, or `comment` or `correction`."""
    value: float | str
    reward: float | None
    """The value as a reward from 0 to 1; None for texts."""
    source: str
    received: datetime


class EpisodeEnd(sealing.Record):
    """A client said that an episode is over. Other episodes end when nothing is heard of them."""

    type: Literal["end"] = "end"
    episode_id: str
    tenant: str
    received: datetime


Record = ServedTurn | Feedback | EpisodeEnd
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="type")])


def serving_folder(store_uri: str, run: str) -> Path:
    """Where everything of a served run lies. Raises InputError for a store that is not local: an object store
    cannot append to a file."""
    root = open_root(store_uri)
    if not root.local:
        raise InputError(f"{store_uri}: a policy is served from a store on a local disk, not an object store")
    return Path(root.join("serving", run))


class TrafficLog:
    """The segment that one server writes. Its methods may be called from several threads."""

    def __init__(self, store_uri: str, run: str) -> None:
        folder = serving_folder(store_uri, run) / "log"
        make_folder(folder)
        self.path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{secrets.token_hex(4)}.jsonl"
        with store_errors("write", self.path):
            self._file = open_to_write(self.path, "ab")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            sync_folder(folder)
        self._lines: list[bytes] = []
        self._whole = 0
        """Bytes of the segment that were written as they were meant."""
        self._taking, self._writing = threading.Lock(), threading.Lock()

    def append(self, records: Iterable[Record]) -> None:
        """Take records; they are on disk after the next `sync`."""
        lines = [sealing.sealed_line(each) for each in records]
        with self._taking:
            self._lines.extend(lines)

    @property
    def waiting(self) -> int:
        """Records that no `sync` has taken yet."""
        return len(self._lines)

    def sync(self) -> None:
        """Write what was appended before, and wait for the disk.

        Raises StoreError when it cannot be written; nothing is lost then, and the next `sync` tries again.
        """
        with self._writing:
            with self._taking:
                lines, self._lines = self._lines, []
            if not lines:
                return
            # Past Python's buffer, which would keep what could not be written, and write it again.
            descriptor = self._file.fileno()
            end = self._whole
            unwritten = memoryview(b"".join(lines))
            try:
                with store_errors("write", self.path):
                    # A part of a line, of a time when the disk failed, must not stand before what follows.
                    if os.fstat(descriptor).st_size > end:
                        os.ftruncate(descriptor, end)
                    while unwritten:
                        unwritten = unwritten[os.write(descriptor, unwritten) :]
                    os.fdatasync(descriptor)
                    self._whole = os.fstat(descriptor).st_size
            except BaseException:
                with self._taking:
                    self._lines = lines + self._lines
                with suppress(OSError):  # A disk that fails may refuse this too; the next call tries again.
                    os.ftruncate(descriptor, end)
                raise

    def close(self) -> None:
        """Write what is left, and end the segment; one without records is removed."""
        self.sync()
        self._file.close()
        if not self.path.stat().st_size:
            self.path.unlink()


@dataclass
class ReadTraffic:
    """What reading a log has found. `torn` counts records that a kill cut short."""

    torn: int = 0


def segments(store_uri: str, run: str) -> list[Path]:
    """The segments of a run's log, the oldest first."""
    folder = serving_folder(store_uri, run) / "log"
    return sorted(folder.glob("*.jsonl")) if folder.exists() else []


def read_traffic(paths: Iterable[Path], found: ReadTraffic) -> Iterator[Record]:
    """The records of segments, in their order.

    Raises DamagedRecord, which names file and line, for one that is not as it was written.
    """
    for path in paths:
        with store_errors("read", path), path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    found.torn += 1
                    continue
                yield read_record(line, f"{path}, line {number}")


def read_record(line: bytes, where: str) -> Record:
    """The record in a line of a log. Raises DamagedRecord, which says `where`, for one that is not as it was
    written."""
    return sealing.read_line(line, _RECORD, where)
