"""One rank: `python -m erl_pipeline.trainers.fsdp2.rank RANK LOCAL PROCESSES THREADS CHANNEL SOCKET
RENDEZVOUS`.

It reads orders from its standard input, one line of JSON each, and answers through the pipe of number
CHANNEL. SOCKET is the number of the rendezvous' socket, or `none`. When its standard input ends, its owner
has ended; it then ends too, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from erl_pipeline.trainers.fsdp2.place import Place
from erl_pipeline.trainers.fsdp2.work import (
    SCORES,
    WORK,
    Begin,
    FineTune,
    Reinforce,
    Save,
    Score,
    Work,
    read_sequences,
    write_lists,
    write_metrics,
)
from erl_pipeline.trainers.interface import OnStep
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from storage.errors import PipelineError

if TYPE_CHECKING:
    from erl_pipeline.trainers.fsdp2.learner import RankLearner

FAILED = 1


class _Line:
    """The connection to the owner of the rank."""

    def __init__(self, channel: int) -> None:
        self._answers: TextIO = os.fdopen(channel, "w", buffering=1, encoding="utf-8")
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def order(self) -> dict[str, Any]:
        """Wait for the next order."""
        return self._orders.get()

    def say(self, **words: Any) -> None:
        self._answers.write(json.dumps(words) + "\n")

    def _read(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
        # The other ranks end in the same way, so none is left waiting in an exchange with this one.
        os._exit(0)


def main(place: Place, channel: int) -> None:
    """Carry out the owner's orders until the owner ends or something fails."""
    line = _Line(channel)
    try:
        _work(place, line)
    # Whatever the error is: the owner must be told, and this process must end, since others wait for it.
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        known = type(error).__name__ if isinstance(error, PipelineError) else None
        line.say(failed=str(error), kind=known, at=time.time())
        os._exit(FAILED)


def _work(place: Place, line: _Line) -> None:
    order = line.order()
    if not isinstance(WORK.validate_python(order["work"]), Begin):
        raise ValueError("a rank has nothing to train before it is told to begin")
    # torch takes seconds to import.
    from erl_pipeline.trainers.fsdp2.learner import RankLearner
    from erl_pipeline.trainers.fsdp2.sharding import join_ranks

    def on_step(step: int, loss: float) -> None:
        _note(f"step {step}, loss {loss:.6g}")
        if place.rank == 0:
            line.say(step=step, loss=loss)

    ranks = join_ranks(place)
    learner: RankLearner | None = None
    while True:
        work = WORK.validate_python(order["work"])
        _note(work.do)
        if isinstance(work, Begin):
            learner = None  # frees its memory before the next is loaded
            learner = RankLearner(work, ranks)
        else:
            assert learner is not None
            _do(work, learner, order, on_step, answers=place.rank == 0)
        line.say(done=work.do)
        order = line.order()


def _note(what: str) -> None:
    """Write a line of the log. The last lines are shown where a rank ends without a message."""
    print(what, file=sys.stderr, flush=True)


def _do(
    work: Work, learner: RankLearner, order: Mapping[str, str], on_step: OnStep, *, answers: bool
) -> None:
    answer = Path(order["answer"])
    if isinstance(work, Save):
        learner.save(work.folder)
        return
    sequences = read_sequences(Path(order["sequences"]))
    if isinstance(work, Score):
        found = learner.scores(sequences, work.microbatch_tokens, work.what == "entropies")
        if answers:
            rows = [each.cpu().numpy() for each in found]
            write_lists(answer, {SCORES: (np.dtype("float32"), rows)})
        return
    metrics: UpdateMetrics | FineTuneMetrics
    if isinstance(work, Reinforce):
        metrics = learner.reinforce(work, sequences, on_step)
    else:
        assert isinstance(work, FineTune)
        metrics = learner.fine_tune(work, sequences, on_step)
    if answers:
        write_metrics(answer, metrics)


if __name__ == "__main__":
    rank, local, processes, threads, channel = (int(word) for word in sys.argv[1:6])
    listening = None if sys.argv[6] == "none" else int(sys.argv[6])
    main(Place(rank, local, processes, threads, sys.argv[7], listening), channel)
