"""Which episodes of a log are settled, and where their records are: one pass over the log, without tokens.

What is kept of each record is a few numbers, so that millions fit in memory; records are read again, episode
by episode, from their places.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ValidationError

from storage.errors import DamagedRecord, store_errors
from storage.serving.traffic import Record, read_record, unsealed
from storage.tables.trajectories import trajectory_id

_SEAL = slice(-67, -3)
"""Where a line of a log has the digest of its content."""
_DIGITS = 64


class _Seen(BaseModel):
    """What the pass reads of a record."""

    type: Literal["turn", "feedback", "end"]
    episode_id: str
    tenant: str
    task_type: str = ""
    reward: float | None = None
    arrived: datetime | None = None
    received: datetime | None = None


@dataclass
class TrafficIndex:
    """Numbers about each record of a log, in its order, and about each of its episodes, by their number."""

    run: str
    paths: Sequence[Path]
    torn: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    """Tenant and name of an episode -> its number, in the order of their first records."""
    of_episode: array[int] = field(default_factory=lambda: array("L"))
    segments: array[int] = field(default_factory=lambda: array("H"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("L"))
    times: array[float] = field(default_factory=lambda: array("d"))
    seals: bytearray = field(default_factory=bytearray)
    heard: array[float] = field(default_factory=lambda: array("d"))
    """When something was last heard of an episode, in seconds since 1970."""
    has_turn: bytearray = field(default_factory=bytearray)
    is_rated: bytearray = field(default_factory=bytearray)
    has_ended: bytearray = field(default_factory=bytearray)
    task_types: list[str] = field(default_factory=list)

    def rated(self, episodes: Sequence[int]) -> int:
        """How many of these episodes somebody rated."""
        return sum(self.is_rated[episode] for episode in episodes)

    def rated_by_type(self, episodes: Sequence[int]) -> Counter[str]:
        """The same by the type of their tasks."""
        return Counter(self.task_types[episode] for episode in episodes if self.is_rated[episode])

    def settled(self, now: datetime, settle: timedelta, sealed: Collection[str]) -> list[int]:
        """Numbers of the episodes that are over and whose ids are not `sealed` yet: a client ended them, or
        nothing was heard of them for so long."""
        before = (now - settle).timestamp()
        return [
            number
            for name, number in self.numbers.items()
            if self.has_turn[number]
            and (self.has_ended[number] or self.heard[number] <= before)
            and not (sealed and self._episode_id(name) in sealed)
        ]

    def places(self, episodes: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Numbers of the records of these episodes: episode by episode, each in the order of the log."""
        numbers = np.frombuffer(self.of_episode, dtype=f"u{self.of_episode.itemsize}")
        chosen = np.zeros(len(self.numbers), dtype=bool)
        chosen[list(episodes)] = True
        kept = np.flatnonzero(chosen[numbers]) if len(numbers) else np.zeros(0, dtype=np.int64)
        return kept[np.argsort(numbers[kept], kind="stable")]

    def digest(self, episodes: Sequence[int]) -> str:
        """A digest of all records of these episodes."""
        found = hashlib.sha256()
        for place in self.places(episodes).tolist():
            found.update(self.seals[place * _DIGITS : (place + 1) * _DIGITS])
        return found.hexdigest()

    def records(self, episodes: Sequence[int]) -> Iterator[tuple[str, list[Record]]]:
        """Id and records of these episodes, one episode after the other.

        Raises DamagedRecord for a record that was changed meanwhile.
        """
        names = list(self.numbers)
        files = [os.open(path, os.O_RDONLY) for path in self.paths]
        try:
            number, read = -1, list[Record]()
            for place in self.places(episodes).tolist():
                if self.of_episode[place] != number:
                    if read:
                        yield self._episode_id(names[number]), read
                    number, read = self.of_episode[place], []
                segment, offset = self.segments[place], self.offsets[place]
                try:
                    line = os.pread(files[segment], self.lengths[place], offset)
                except OSError:
                    with store_errors("read", self.paths[segment]):
                        raise
                read.append(read_record(line, f"{self.paths[segment]}, at byte {offset},"))
            if read:
                yield self._episode_id(names[number]), read
        finally:
            for file in files:
                os.close(file)

    def late(self, sealed: dict[str, float]) -> int:
        """Records that came after their episode was sealed; `sealed`: id -> when, in seconds since 1970."""
        if not sealed:
            return 0
        limits = [sealed.get(self._episode_id(name), float("inf")) for name in self.numbers]
        return sum(at > limits[number] for number, at in zip(self.of_episode, self.times, strict=True))

    def _episode_id(self, name: str) -> str:
        """The id of an episode in trajectories."""
        return trajectory_id("served", self.run, name)

    def take(self, segment: int, offset: int, line: bytes) -> None:
        where = f"{self.paths[segment]}, at byte {offset},"
        try:
            seen = _Seen.model_validate_json(unsealed(line, where))
        except ValidationError as error:
            raise DamagedRecord(f"{where} is of another version of this program") from error
        number = self.numbers.setdefault(f"{seen.tenant}\n{seen.episode_id}", len(self.numbers))
        if number == len(self.heard):
            self.heard.append(0.0)
            for flags in (self.has_turn, self.is_rated, self.has_ended):
                flags.append(0)
            self.task_types.append("")
        moment = seen.arrived or seen.received
        assert moment is not None
        at = moment.timestamp()
        self.heard[number] = max(self.heard[number], at)
        if seen.type == "turn" and not self.has_turn[number]:
            self.has_turn[number], self.task_types[number] = 1, seen.task_type
        self.is_rated[number] |= seen.reward is not None
        self.has_ended[number] |= seen.type == "end"
        self.of_episode.append(number)
        self.segments.append(segment)
        self.offsets.append(offset)
        self.lengths.append(len(line))
        self.times.append(at)
        self.seals += line[_SEAL]


def index_traffic(run: str, paths: Sequence[Path]) -> TrafficIndex:
    """Read the log of a served run once.

    Raises DamagedRecord, which names file and place, for a record that is not as it was written.
    """
    index = TrafficIndex(run, paths)
    for segment, path in enumerate(paths):
        offset = 0
        with store_errors("read", path), path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    index.take(segment, offset, line)
                else:
                    index.torn += 1
                offset += len(line)
    return index
