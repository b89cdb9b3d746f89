"""The ranks of another node, as seen from the machine that computes the stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from erl_pipeline.trainers.fsdp2.line import Line, LineEnded
from erl_pipeline.trainers.fsdp2.rank_processes import RankNews, Readable, Share, wait_for_news
from storage.errors import PipelineError

_NEWS: TypeAdapter[RankNews] = TypeAdapter(RankNews)


class RemoteRanks:
    """What `RankProcesses` is on this machine. They end when the line does.

    Args:
        node: the node's name, for messages.
        clock_offset: seconds by which its clock is ahead of this machine's.
    """

    def __init__(self, line: Line, node: str, clock_offset: float) -> None:
        self._line = line
        self._clock_offset = clock_offset
        self._ranks = range(0)
        self.node = node

    @property
    def sources(self) -> list[Readable]:
        """What can be read when there is news."""
        return [self._line]

    def start(self, share: Share) -> None:
        """Let the node start ranks. Its own interface takes the place of that in `share`."""
        self._ranks = share.ranks
        self._send({"start": asdict(share)})

    def order(self, order: Mapping[str, Any], sequences: Path | None) -> None:
        """Give all ranks an order, with the content of a file."""
        self._send({"order": dict(order)}, b"" if sequences is None else sequences.read_bytes())

    def news(self) -> Iterator[RankNews]:
        """What is new since the last call; does not wait. Raises PipelineError where the node is lost."""
        while wait_for_news([self._line], 0):
            try:
                words, _ = self._line.receive()
            except LineEnded as error:
                raise self._lost(error) from error
            if "gone" in words:
                raise self._lost(words["gone"])
            news = _NEWS.validate_python(words)
            if news.said is not None and "at" in news.said:
                at = news.said["at"] - self._clock_offset
                news = replace(news, said={**news.said, "at": at})
            yield news

    def end(self) -> None:
        """Let the node end its ranks."""
        self._line.close()

    def _send(self, words: dict[str, Any], data: bytes = b"") -> None:
        try:
            self._line.send(words, data)
        except LineEnded as error:
            raise self._lost(error) from error

    def _lost(self, why: LineEnded | str) -> PipelineError:
        first, last = self._ranks.start, self._ranks.stop - 1
        which = f"rank {first}" if first == last else f"ranks {first} to {last}"
        return PipelineError(
            f"node {self.node}, which has {which} of the trainer (trainer: fsdp2), is lost ({why}); the "
            "other ranks were ended, and nothing was written. Where `erl-pipeline trainer-node` has ended "
            "there, start it again; then run the same command"
        )
