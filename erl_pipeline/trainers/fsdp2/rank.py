"""One rank: `python -m erl_pipeline.trainers.fsdp2.rank FOLDER`, started by torch's elastic launcher, which
gives it its number and the address of the store in environment variables.

It waits in the store for the number of the next order, reads the order from FOLDER, and says in the store
what it has done. When its standard input ends, its owner has ended; it then ends too, whatever it is doing.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from erl_pipeline.garbage import search_seldom
from erl_pipeline.network import Address
from erl_pipeline.trainers.fsdp2 import work as orders
from erl_pipeline.trainers.fsdp2.launcher import connect, end_with_owner
from erl_pipeline.trainers.interface import OnStep
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from storage.artifacts.late_files import LateFiles
from storage.errors import PipelineError

if TYPE_CHECKING:
    from erl_pipeline.trainers.fsdp2.learner import RankLearner

FAILED = 1
_CONNECT_SECONDS = 60.0
_LONGEST_WAIT = timedelta(days=20)
_LINGER_SECONDS = 40.0
"""How long a rank that has failed waits to be ended: the launcher ends all when one ends, and the store with
them, so that nothing more could be said of what came first."""
_LAST_LINES = 30


class _Driver:
    """The process of the stage, as a rank sees it."""

    def __init__(self, rank: int) -> None:
        address = Address(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._store = connect(address, _CONNECT_SECONDS)
        self._rank = rank
        self._said = 0
        self.say(process=os.getpid())

    def wait_for(self, order: int) -> None:
        self._store.wait([f"order/{order}"], _LONGEST_WAIT)

    def say(self, **words: Any) -> None:
        self._store.set(f"rank/{self._rank}/{self._said}", json.dumps(words))
        self._said += 1

    def say_failed(self, error: BaseException) -> None:
        """Say that this rank has failed, whether in an exchange, and how many had failed before."""
        known = type(error).__name__ if isinstance(error, PipelineError) else None
        trace = traceback.format_exc().splitlines()
        frames = traceback.extract_tb(error.__traceback__)
        self.say(
            failed=str(error),
            kind=known,
            lines="\n".join(trace[-_LAST_LINES:]),
            in_exchange=any("/torch/distributed/" in frame.filename for frame in frames),
            place=self._store.add("failures", 1),
        )


def main(folder: Path) -> None:
    """Carry out the driver's orders until the owner ends or something fails."""
    end_with_owner(lambda: os._exit(FAILED))
    driver, late_files = _Driver(int(os.environ["RANK"])), LateFiles()
    try:
        _work(folder, driver, late_files)
    # Whatever the error is: the driver must be told, and this process must end, since others wait for it.
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        driver.say_failed(error)
        late_files.end()
        time.sleep(_LINGER_SECONDS)
        os._exit(FAILED)


def _work(folder: Path, driver: _Driver, late_files: LateFiles) -> None:
    often = gc.get_threshold()
    search_seldom()
    # torch takes seconds to import.
    from erl_pipeline.policies.hardware import release_cached_memory
    from erl_pipeline.trainers.fsdp2.learner import RankLearner
    from erl_pipeline.trainers.fsdp2.sharding import join_ranks

    gc.set_threshold(*often)  # Cycles of a training may hold memory of the device.

    def on_step(step: int, loss: float) -> None:
        _note(f"step {step}, loss {loss:.6g}")
        if ranks.rank == 0:
            driver.say(step=step, loss=loss)

    ranks = join_ranks()
    learner: RankLearner | None = None
    number = 0
    while True:
        number += 1
        driver.wait_for(number)
        work = orders.WORK.validate_json(orders.order_file(folder, number).read_bytes())
        _note(work.do)
        if isinstance(work, orders.Begin):
            learner = None
            gc.collect()  # a sharded model refers to itself, and would stay while the next one is loaded
            release_cached_memory()
            learner = RankLearner(work, ranks)
        elif isinstance(work, orders.Sleep):
            if learner is not None:
                learner.sleep()
        elif learner is None:
            raise ValueError("a rank has nothing to train before it is told to begin")
        else:
            learner.wake()
            write = _do(work, learner, late_files, orders.sequences_file(folder, number), on_step)
            if write is not None and ranks.rank == 0:
                write(orders.answer_file(folder, number))
        driver.say(done=work.do)


def _note(what: str) -> None:
    """Write a line of the log. The last lines are shown where a rank ends without a message."""
    print(what, file=sys.stderr, flush=True)


def _do(
    work: orders.Work, learner: RankLearner, late_files: LateFiles, given: Path, on_step: OnStep
) -> Callable[[Path], None] | None:
    """Carry out an order that is about the learner; returns what writes its answer, if it has one."""
    if isinstance(work, orders.Save):
        learner.save(work)
        return None
    if isinstance(work, orders.BeginState):
        sizes = learner.begin_state(work, late_files)
        return lambda answer: orders.write_sizes(answer, sizes)
    sequences = orders.read_sequences(given)
    if isinstance(work, orders.Score):
        found = learner.scores(sequences, work.microbatch_tokens, work.what == "entropies")
        return lambda answer: orders.write_lists(
            answer, {orders.SCORES: (np.dtype("float32"), [each.cpu().numpy() for each in found])}
        )
    if isinstance(work, orders.ScoreTokens):
        scored = learner.token_scores(work, sequences)
        return lambda answer: orders.write_scores(answer, scored)
    metrics: UpdateMetrics | FineTuneMetrics
    if isinstance(work, orders.Reinforce):
        metrics = learner.reinforce(work, sequences, on_step)
    else:
        assert isinstance(work, orders.FineTune)
        metrics = learner.fine_tune(work, sequences, on_step)
    return lambda answer: orders.write_metrics(answer, metrics)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
