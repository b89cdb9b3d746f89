"""The processes of a trainer: started together, watched together, ended together."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from erl_pipeline.engines.vllm.server_log import last_lines
from erl_pipeline.trainers.fsdp2.work import WORK, Work, write_sequences
from erl_pipeline.trainers.interface import OnStep
from erl_pipeline.trainers.sequences import TrainingSequence
from storage import errors
from storage.errors import PipelineError

_LOOK_SECONDS = 0.2
_OUT_OF_MEMORY = "; the kernel ends a process in this way when memory runs out"
RANK_MODULE = "erl_pipeline.trainers.fsdp2.rank"


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    answers: IO[bytes]
    log: Path
    unread: bytes = b""
    failure: dict[str, Any] = field(default_factory=dict)

    @property
    def orders(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def read(self) -> list[dict[str, Any]]:
        """Its messages since the last call; waits while there are none and it has not ended."""
        *lines, self.unread = (self.unread + os.read(self.answers.fileno(), 65536)).split(b"\n")
        return [json.loads(line) for line in lines]


class RankGroup:
    """Ranks on this machine.

    They end with this object, with each other, and with this process, whose pipes they hold: a rank that
    outlived the others would wait for them until the timeout of NCCL or gloo.

    Args:
        threads: number of threads of each rank.
        scratch: where a folder for files and logs is made; the logs are kept where a rank failed.
    """

    def __init__(self, processes: int, threads: int, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="fsdp2-", dir=scratch))
        self._failed = False
        self._orders = 0
        self._ranks: list[_Rank] = []
        try:
            for number in range(processes):
                self._ranks.append(self._start(number, processes, threads))
        except BaseException:
            self.end()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks, in their order."""
        return [rank.process.pid for rank in self._ranks]

    def do(
        self, work: Work, sequences: Sequence[TrainingSequence] | None = None, on_step: OnStep | None = None
    ) -> Path:
        """Have all ranks do some work and wait for them; returns the file with the answer.

        Raises the `PipelineError` that a rank raised, a plain one where a rank fails otherwise or ends, and
        what `on_step` raises. The group has then ended.
        """
        if not self._ranks:
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
            for rank in self._ranks:
                # A rank that has ended is found below, with its last lines.
                with suppress(BrokenPipeError):
                    rank.orders.write(json.dumps(order).encode() + b"\n")
                    rank.orders.flush()
            self._await_all(on_step)
        except BaseException:
            self.end()
            raise
        given.unlink(missing_ok=True)
        return answer

    def end(self) -> None:
        """End all ranks, whatever they do; they have nothing to finish."""
        for rank in self._ranks:
            rank.process.kill()
            rank.process.wait()
            rank.orders.close()
            rank.answers.close()
        self._ranks = []
        if not self._failed:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir():
            if path.suffix != ".log":
                path.unlink()

    def _start(self, number: int, processes: int, threads: int) -> _Rank:
        log = self.folder / f"rank-{number}.log"
        reads, writes = os.pipe()
        environment = {
            **os.environ,
            # The ranks find the same modules as this process.
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": str(threads),
            # They are on one machine, and nobody else has to reach them.
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        }
        with log.open("wb") as output, os.fdopen(writes, "wb") as channel:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", RANK_MODULE),
                    *map(str, (number, processes, threads, channel.fileno(), self.folder / "rendezvous")),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[channel.fileno()],
                env=environment,
                # Not in this process's group: Ctrl-C is for this process, which ends them.
                process_group=0,
            )
        return _Rank(number, process, os.fdopen(reads, "rb", buffering=0), log)

    def _await_all(self, on_step: OnStep | None) -> None:
        """Wait until each rank is done. Raises as `do`."""
        waiting = {rank.number for rank in self._ranks}
        for rank, words in self._said():
            if "failed" in words:
                rank.failure = words
                self._fail()
            elif "step" in words:
                if on_step is not None:
                    on_step(words["step"], words["loss"])
            else:
                waiting.discard(rank.number)
                if not waiting:
                    return

    def _said(self) -> Iterator[tuple[_Rank, dict[str, Any]]]:
        """The messages of the ranks, until one ends."""
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.answers, selectors.EVENT_READ, rank)
            while True:
                for key, _ in selector.select(_LOOK_SECONDS):
                    speaker: _Rank = key.data
                    for words in speaker.read():
                        yield speaker, words
                # The end of its pipe is not enough: a process that it has started could hold that open.
                if any(each.process.poll() is not None for each in self._ranks):
                    self._fail()

    def _fail(self) -> NoReturn:
        """Raise for the rank that failed first: the others fail because they no longer hear from it."""
        ended = [rank for rank in self._ranks if rank.process.poll() is not None]
        for rank in ended:
            while data := os.read(rank.answers.fileno(), 65536):
                rank.unread += data
            # What comes after the last end of a line was cut off.
            for words in map(json.loads, rank.unread.split(b"\n")[:-1]):
                rank.failure = words if "failed" in words else rank.failure
        # A rank that was killed could send no message.
        killed = [rank for rank in ended if not rank.failure]
        told = sorted((rank for rank in self._ranks if rank.failure), key=lambda rank: rank.failure["at"])
        first = (killed or told)[0]
        which = f"rank {first.number} of {len(self._ranks)}"
        if first.failure.get("kind"):
            raise getattr(errors, first.failure["kind"], PipelineError)(first.failure["failed"])
        self._failed = True
        raise PipelineError(
            f"{which} of the trainer (trainer: fsdp2) {_end_of(first)}; the other ranks were ended, and "
            f"nothing was written. Its last lines, of {first.log}:\n{last_lines(first.log)}"
        )


def _end_of(rank: _Rank) -> str:
    status = rank.process.poll()
    if status is None or rank.failure:
        return f"failed ({rank.failure['failed'] or 'no message'})"
    if status < 0:
        hint = _OUT_OF_MEMORY if status == -signal.SIGKILL else ""
        return f"was ended by {signal.Signals(-status).name}{hint}"
    return f"ended with status {status}"
