"""The processes of a trainer: started together, watched together, ended together."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from erl_pipeline.network import interface_of, listen
from erl_pipeline.trainers.fsdp2.meeting import Met
from erl_pipeline.trainers.fsdp2.place import TCP
from erl_pipeline.trainers.fsdp2.rank_processes import RankNews, RankProcesses, Share, wait_for_news
from erl_pipeline.trainers.fsdp2.remote_ranks import RemoteRanks
from erl_pipeline.trainers.fsdp2.work import WORK, Work, write_sequences
from erl_pipeline.trainers.interface import OnStep
from erl_pipeline.trainers.sequences import TrainingSequence
from storage import errors
from storage.errors import PipelineError

_LAST_WORDS_SECONDS = 2.0
"""How long to listen after a rank has failed: the one that failed first may be heard after those that failed
since they no longer heard from it."""
_OUT_OF_MEMORY = "; the kernel ends a process in this way when memory runs out"


class RankGroup:
    """Ranks on this machine, and on the other nodes that were met.

    They end with this object, with each other, and with this process, whose pipes they hold: a rank that
    outlived the others would wait for them until the timeout of NCCL or gloo.

    Args:
        threads: number of threads of each rank.
        scratch: where a folder for files and logs is made; the logs are kept where a rank failed.
        met: the other nodes; each has as many of the ranks. None: all ranks are here.
    """

    def __init__(self, processes: int, threads: int, scratch: Path, met: Met | None = None) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="fsdp2-", dir=scratch))
        self._processes = processes
        self._failed = False
        self._orders = 0
        self._here: RankProcesses | None = None
        self._nodes: Sequence[RemoteRanks] = () if met is None else met.nodes
        try:
            self._start(threads, None if met is None else met.number)
        except BaseException:
            self.end()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks of this machine, in their order."""
        return [] if self._here is None else self._here.process_ids

    def do(
        self, work: Work, sequences: Sequence[TrainingSequence] | None = None, on_step: OnStep | None = None
    ) -> Path:
        """Have all ranks do some work and wait for them; returns the file with the answer.

        Raises the `PipelineError` that a rank raised, a plain one where a rank fails otherwise or ends, and
        what `on_step` raises. The group has then ended.
        """
        if self._here is None:
            raise RuntimeError("the ranks have ended")
        self._orders += 1
        given = self.folder / f"{self._orders}.safetensors"
        answer = self.folder / f"{self._orders}.answer"
        if sequences is not None:
            write_sequences(given, sequences)
        order = {
            "work": WORK.dump_python(work, mode="json"),
            "sequences": str(given),
            "answer": str(answer),
        }
        try:
            self._here.order(order)
            for node in self._nodes:
                node.order(order, None if sequences is None else given)
            self._await_all(on_step)
        except BaseException:
            self.end()
            raise
        given.unlink(missing_ok=True)
        return answer

    def end(self) -> None:
        """End all ranks, whatever they do; they have nothing to finish."""
        for node in self._nodes:
            node.end()
        if self._here is not None:
            self._here.end()
        self._here, self._nodes = None, ()
        if not self._failed:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir():
            if path.suffix != ".log":
                path.unlink()

    def _start(self, threads: int, number: str | None) -> None:
        count = self._processes // (1 + len(self._nodes))
        if number is None:
            # Nobody else has to reach them.
            loopback = "lo" if sys.platform == "linux" else "lo0"
            share = Share(0, count, self._processes, threads, str(self.folder / "rendezvous"), loopback)
            self._here = RankProcesses(share, self.folder)
            return
        # Rank 0 is given the socket, so that no other program can take its port meanwhile.
        with listen(number, 0) as listening:
            meet_at = f"{TCP}{number}:{listening.getsockname()[1]}"
            share = Share(0, count, self._processes, threads, meet_at, interface_of(number))
            self._here = RankProcesses(share, self.folder, listening)
        for place, node in enumerate(self._nodes, 1):
            node.start(Share(place * count, count, self._processes, threads, meet_at, ""))

    def _await_all(self, on_step: OnStep | None) -> None:
        """Wait until each rank is done. Raises as `do`."""
        waiting = set(range(self._processes))
        for news in self._news():
            if news.said is None or "failed" in news.said:
                self._fail(news)
            elif "step" in news.said:
                if on_step is not None:
                    on_step(news.said["step"], news.said["loss"])
            else:
                waiting.discard(news.rank)
                if not waiting:
                    return

    def _news(self, seconds: float = float("inf")) -> Iterator[RankNews]:
        """What all ranks say, for so long."""
        assert self._here is not None
        parties: list[RankProcesses | RemoteRanks] = [self._here, *self._nodes]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            wait_for_news([source for party in parties for source in party.sources])
            for party in parties:
                yield from party.news()

    def _fail(self, news: RankNews) -> NoReturn:
        """Raise for the rank that failed first: the others fail because they no longer hear from it."""
        self._failed = True
        told: dict[int, Mapping[str, Any]] = {}
        ended: dict[int, RankNews] = {}
        for each in chain([news], self._news(_LAST_WORDS_SECONDS)):
            if each.said is None:
                ended[each.rank] = each
                if len(ended) == self._processes:
                    break
            elif "failed" in each.said:
                told[each.rank] = each.said
        # A rank that was killed could send no message.
        killed = [rank for rank in ended if rank not in told]
        first = (killed or sorted(told, key=lambda rank: told[rank]["at"]))[0]
        which = f"rank {first} of {self._processes}"
        node = self._node_of(first)
        where = "" if node is None else f" on node {node}"
        if first in told and told[first]["kind"]:
            self._failed = False
            kind = getattr(errors, told[first]["kind"], PipelineError)
            raise kind(told[first]["failed"] + (f" (of {which}{where})" if where else ""))
        last = ended.get(first, RankNews(first, last_lines="(no log)"))
        log = f", of {self._here.log_of(first)}" if self._here is not None and node is None else ""
        raise PipelineError(
            f"{which}{where} of the trainer (trainer: fsdp2) {_end_of(last, told.get(first))}; the other "
            f"ranks were ended, and nothing was written. Its last lines{log}:\n{last.last_lines}"
        )

    def _node_of(self, rank: int) -> str | None:
        """The node of a rank; None for this machine."""
        place = rank // (self._processes // (1 + len(self._nodes)))
        return self._nodes[place - 1].node if place else None


def _end_of(last: RankNews, told: Mapping[str, Any] | None) -> str:
    if told is not None or last.status is None:
        return f"failed ({(told or {}).get('failed') or 'no message'})"
    if last.status < 0:
        hint = _OUT_OF_MEMORY if last.status == -signal.SIGKILL else ""
        return f"was ended by {signal.Signals(-last.status).name}{hint}"
    return f"ended with status {last.status}"
