"""Which episodes of a log are settled, and where their records are: one pass over the log, without tokens.

What is kept of each record is a few numbers, so that millions fit in memory; records are read again, episode
by episode, from their places. Parts of a log can be read in several processes.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, TypeAdapter

from erl_pipeline.serving.learning.processes import Map
from storage.artifacts.sealing import read_line
from storage.errors import store_errors
from storage.serving.traffic import Record, read_record
from storage.tables.trajectories import trajectory_id

_SEAL = slice(-67, -3)
"""Where a line of a log has the digest of its content."""
_DIGITS = 64
PART_BYTES = 32_000_000
"""Of a segment that is read at once."""
_BUFFER_BYTES = 1_000_000

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class _Seen(BaseModel):
    """What the pass reads of a record."""

    type: Literal["turn", "feedback", "end"]
    episode_id: str
    tenant: str
    turn_id: str = ""
    feedback_id: str = ""
    user: str | None = None
    task_type: str = ""
    reward: float | None = None
    arrived: datetime | None = None
    received: datetime | None = None


_SEEN = TypeAdapter(_Seen)


@dataclass(frozen=True)
class Sealed:
    """What earlier batches hold: ids of episodes as trajectories have them, and those of turns and feedback
    by `id_number`."""

    episodes: Collection[str]
    turns: array[int]
    feedback: array[int]


@dataclass
class TrafficIndex:
    """Numbers about each record of a log, in its order, and about each of its episodes, by their number."""

    run: str
    paths: Sequence[Path]
    torn: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    """Tenant and name of an episode -> its number, in the order of their first records. Where two servers
    have begun episodes of different users under one name, that of the later one has the user too; and where
    an earlier batch has an episode of that name, a digest."""
    of_episode: array[int] = field(default_factory=lambda: array("L"))
    segments: array[int] = field(default_factory=lambda: array("H"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("L"))
    ids: array[int] = field(default_factory=lambda: array("Q"))
    """Of turns and feedback; see `id_number`. 0 for the end of an episode."""
    seals: bytearray = field(default_factory=bytearray)
    heard: array[float] = field(default_factory=lambda: array("d"))
    """When something was last heard of an episode, in seconds since 1970."""
    has_turn: bytearray = field(default_factory=bytearray)
    is_rated: bytearray = field(default_factory=bytearray)
    has_ended: bytearray = field(default_factory=bytearray)
    task_types: list[str] = field(default_factory=list)
    users: list[str | None] = field(default_factory=list)
    """None where only its end is known."""

    def rated(self, episodes: Sequence[int]) -> int:
        """How many of these episodes somebody rated."""
        return sum(self.is_rated[episode] for episode in episodes)

    def rated_by_type(self, episodes: Sequence[int]) -> Counter[str]:
        """The same by the type of their tasks."""
        return Counter(self.task_types[episode] for episode in episodes if self.is_rated[episode])

    def are_sealed(self, before: Sealed) -> Flags:
        """Of each episode, whether an earlier batch has it: one of its turns is there.

        A name may come again, once the user who had it was forgotten. It decides where the log has no turn.
        """
        found = np.zeros(len(self.numbers), dtype=bool)
        turns = np.isin(_as_numbers(self.ids), _as_numbers(before.turns))
        found[_as_numbers(self.of_episode)[turns]] = True
        for number, name in enumerate(self.numbers):
            if not self.has_turn[number]:
                found[number] = episode_id(self.run, name) in before.episodes
        return found

    def unsealed(self, are_sealed: Flags, taken: Collection[str]) -> list[int]:
        """Numbers of the episodes that are not sealed yet. One whose id is `taken` is named apart."""
        flags = are_sealed.tolist()
        found = [number for number, has_turn in enumerate(self.has_turn) if has_turn and not flags[number]]
        if taken:
            self._name_apart(found, taken)
        return found

    def _name_apart(self, episodes: Sequence[int], taken: Collection[str]) -> None:
        """Add the digest of its first record to the name of each of these episodes whose id is `taken`."""
        names = list(self.numbers)
        again = [number for number in episodes if episode_id(self.run, names[number]) in taken]
        places = self.places(again)
        firsts = np.unique(_as_numbers(self.of_episode)[places], return_index=True)[1]
        for number, place in zip(again, places[firsts].tolist(), strict=True):
            names[number] += f"\n{self._seal(place).decode()}"
        self.numbers = {name: number for number, name in enumerate(names)}

    def settled(self, now: datetime, settle: timedelta, unsealed: Sequence[int]) -> list[int]:
        """Those of the `unsealed` episodes that are over: a client ended them, or nothing was heard of them
        for so long."""
        before = (now - settle).timestamp()
        return [number for number in unsealed if self.has_ended[number] or self.heard[number] <= before]

    def places(self, episodes: Sequence[int]) -> Places:
        """Numbers of the records of these episodes: episode by episode, each in the order of the log."""
        numbers = _as_numbers(self.of_episode)
        chosen = np.zeros(len(self.numbers), dtype=bool)
        chosen[list(episodes)] = True
        kept = np.flatnonzero(chosen[numbers])
        return kept[np.argsort(numbers[kept], kind="stable")]

    def digest(self, episodes: Sequence[int]) -> str:
        """A digest of all records of these episodes."""
        found = hashlib.sha256()
        for place in self.places(episodes).tolist():
            found.update(self._seal(place))
        return found.hexdigest()

    def _seal(self, place: int) -> bytearray:
        return self.seals[place * _DIGITS : (place + 1) * _DIGITS]

    def shares(self, episodes: Sequence[int], size: int) -> Iterator[EpisodePlaces]:
        """Where the records of these episodes are, for `size` episodes at a time."""
        places, names = self.places(episodes), list(self.numbers)
        of_episode = _as_numbers(self.of_episode)[places]
        begins = np.flatnonzero(np.diff(of_episode.astype(np.int64), prepend=-1))
        ends = np.append(begins[1:], len(places))
        for first in range(0, len(begins), size):
            chosen = slice(first, first + size)
            own = places[begins[first] : ends[chosen][-1]]
            yield EpisodePlaces(
                tuple(names[number] for number in of_episode[begins[chosen]].tolist()),
                tuple((ends - begins)[chosen].tolist()),
                *(_as_numbers(each)[own] for each in (self.segments, self.offsets, self.lengths)),
            )

    def late(self, are_sealed: Flags, before: Sealed) -> int:
        """Turns and feedback that came after their episode was sealed."""
        own = _as_numbers(self.ids)[are_sealed[_as_numbers(self.of_episode)]]
        known = np.isin(own, _as_numbers(before.turns)) | np.isin(own, _as_numbers(before.feedback))
        return int(np.count_nonzero((own != 0) & ~known))

    def take(self, segment: int, offset: int, line: bytes) -> None:
        where = f"{self.paths[segment]}, at byte {offset},"
        seen = read_line(line, _SEEN, where)
        number = self._number(f"{seen.tenant}\n{seen.episode_id}", seen.user)
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
        self.ids.append(0 if seen.type == "end" else id_number(seen.turn_id or seen.feedback_id))
        self.seals += line[_SEAL]

    def extend(self, later: TrafficIndex) -> None:
        """Add what the next part of the log holds."""
        names = ("\n".join(name.split("\n")[:2]) for name in later.numbers)
        numbers = [self._number(*each) for each in zip(names, later.users, strict=True)]
        for number, own in enumerate(numbers):
            self.heard[own] = max(self.heard[own], later.heard[number])
            if later.has_turn[number] and not self.has_turn[own]:
                self.has_turn[own], self.task_types[own] = 1, later.task_types[number]
            self.is_rated[own] |= later.is_rated[number]
            self.has_ended[own] |= later.has_ended[number]
        self.of_episode.extend(numbers[number] for number in later.of_episode)
        self.segments.extend(later.segments)
        self.offsets.extend(later.offsets)
        self.lengths.extend(later.lengths)
        self.ids.extend(later.ids)
        self.seals += later.seals
        self.torn += later.torn

    def _number(self, name: str, user: str | None) -> int:
        """The number of an episode, by its tenant and name, and by its user where others have that name."""
        known = self.numbers.get(name)
        if known is not None and user is not None:
            if self.users[known] is None:
                self.users[known] = user
            elif self.users[known] != user:
                name = f"{name}\n{user}"
        number = self.numbers.setdefault(name, len(self.numbers))
        if number == len(self.heard):
            self.heard.append(0.0)
            for flags in (self.has_turn, self.is_rated, self.has_ended):
                flags.append(0)
            self.task_types.append("")
            self.users.append(user)
        return number


@dataclass(frozen=True)
class EpisodePlaces:
    """Where the records of some episodes are: tenant and name of each episode, how many records it has, and
    the places of all of them, one episode after the other."""

    names: Sequence[str]
    counts: Sequence[int]
    segments: Places
    offsets: Places
    lengths: Places


def read_episodes(
    run: str, paths: Sequence[Path], places: EpisodePlaces
) -> Iterator[tuple[str, list[Record]]]:
    """Id and records of episodes, one episode after the other.

    Raises DamagedRecord for a record that was changed since the log was indexed.
    """
    with ExitStack() as opened:
        files: dict[int, int] = {}

        def read(segment: int, offset: int, length: int) -> Record:
            try:
                if segment not in files:
                    files[segment] = os.open(paths[segment], os.O_RDONLY)
                    opened.callback(os.close, files[segment])
                line = os.pread(files[segment], length, offset)
            except OSError:
                with store_errors("read", paths[segment]):
                    raise
            return read_record(line, f"{paths[segment]}, at byte {offset},")

        each = zip(places.segments.tolist(), places.offsets.tolist(), places.lengths.tolist(), strict=True)
        for name, count in zip(places.names, places.counts, strict=True):
            yield episode_id(run, name), [read(*place) for place in islice(each, count)]


def episode_id(run: str, name: str) -> str:
    """The id of an episode in trajectories, by its tenant and name."""
    return trajectory_id("served", run, name)


def id_number(name: str) -> int:
    """What is kept of the id of a turn or of feedback."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def index_traffic(run: str, paths: Sequence[Path], map_parts: Map = map) -> TrafficIndex:
    """Read the log of a served run once.

    Raises DamagedRecord, which names file and place, for a record that is not as it was written.
    """
    index = TrafficIndex(run, paths)
    for part in map_parts(partial(_index_part, run, paths), list(_parts(paths))):
        index.extend(part)
    return index


def _parts(paths: Sequence[Path]) -> Iterator[tuple[int, int, int]]:
    """Number of a segment, and the bytes at which a part of it begins and ends: whole lines."""
    for segment, path in enumerate(paths):
        with store_errors("read", path), path.open("rb") as file:
            begin, size = 0, os.fstat(file.fileno()).st_size
            while begin < size:
                file.seek(min(begin + PART_BYTES, size))
                file.readline()
                yield segment, begin, file.tell()
                begin = file.tell()


def _index_part(run: str, paths: Sequence[Path], part: tuple[int, int, int]) -> TrafficIndex:
    index = TrafficIndex(run, paths)
    segment, offset, end = part
    with store_errors("read", paths[segment]), paths[segment].open("rb", buffering=_BUFFER_BYTES) as file:
        file.seek(offset)
        for line in file:
            if line.endswith(b"\n"):
                index.take(segment, offset, line)
            else:
                index.torn += 1
            offset += len(line)
            if offset >= end:
                break
    return index


def _as_numbers(values: array[int]) -> Places:
    """An array for numpy, without a copy."""
    return np.frombuffer(values, dtype=f"u{values.itemsize}") if values else np.zeros(0, dtype=np.int64)
