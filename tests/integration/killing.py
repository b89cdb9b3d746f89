"""Training in processes that are killed, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from storage.filesystem import list_names, open_root
from storage.runs.run import RunStore

MODULES = ["erl_pipeline.pipeline.train", "erl_pipeline.pipeline.context"]
SMALL = """\
name: small
iterations: 2
threads: 1
environment: {type: frozen_lake, training_boards: 32, rows: [3, 3], path_length: [1, 2], max_steps: 2}
policy: {type: tiny, layers: 2, cold_start: {steps: 60, demonstrations_per_step: 16}}
rollouts: {tasks_per_iteration: 4, group_size: 4, tasks_per_shard: 2}
evaluation: {tasks: 8, every: 1}
"""
"""A run of seconds that remembers something and distils something."""

Watch = Callable[[], bool]


def train_here(config: str, store: str) -> None:
    """The body of a process: train, and end without ceremony."""
    import torch
    from transformers.utils import logging as transformers_logging

    from erl_pipeline.config.load import load_config
    from erl_pipeline.pipeline.context import open_context
    from erl_pipeline.pipeline.outcome import Silent
    from erl_pipeline.pipeline.train import train

    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    with open_context(load_config(Path(config)), store, Silent(), threading.Event()) as context:
        train(context)
    os._exit(0)


def start_training(config: Path, store: Path) -> BaseProcess:
    """A process that trains."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    os.environ["OMP_NUM_THREADS"] = "1"
    process = context.Process(target=train_here, args=(str(config), str(store)))
    process.start()
    return process


def train_to_the_end(config: Path, store: Path) -> float:
    """Train undisturbed; gives the seconds that it took."""
    begin = time.monotonic()
    process = start_training(config, store)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - begin


def train_until(config: Path, store: Path, moment: Watch) -> bool:
    """Train, and kill the process as soon as `moment` says so. False when it ended before."""
    process = start_training(config, store)
    while process.exitcode is None and not moment():
        pass
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def after(seconds: float) -> Watch:
    """A moment so long after now."""
    end = time.monotonic() + seconds

    def moment() -> bool:
        time.sleep(0.001)
        return time.monotonic() >= end

    return moment


def before_publication(store: Path, number: int) -> Watch:
    """The moment when the manifest of the next artifact, or of a later one, is in its staging folder."""
    return _nth_new(lambda: {str(path) for path in (store / "staging").glob("*/manifest.json")}, number)


def after_publication(store: Path, number: int) -> Watch:
    """The moment when the next artifact, or a later one, is to be seen; its ledger line is not written."""
    return _nth_new(lambda: {str(path) for path in (store / "artifacts").glob("*/*")}, number)


def _nth_new(look: Callable[[], set[str]], number: int) -> Watch:
    seen = look()
    before = len(seen)

    def moment() -> bool:
        seen.update(look())
        return len(seen) >= before + number

    return moment


def random_moment(store: Path, whole: float, chance: random.Random) -> Watch:
    """At some time within the run, or within the commit of one of the next artifacts."""
    kind = chance.choice(["time", "time", "before", "after"])
    number = chance.randint(1, 5)
    if kind == "time":
        return after(chance.uniform(0.0, 0.7 * whole))
    return (before_publication if kind == "before" else after_publication)(store, number)


def where_it_died(store: Path) -> str:
    """What a kill interrupted: the stage after the last line of the ledger, and whether in its commit."""
    root = open_root(str(store))
    runs = RunStore(str(store))
    entries = runs.open("small").recorded() if "small" in runs.list() else []
    artifacts = {
        name
        for stage in list_names(root, root.join("artifacts"))
        for name in list_names(root, root.join("artifacts", stage))
    }
    if list((store / "staging").glob("*/manifest.json")):
        part = "before publication"
    elif artifacts - {entry.artifact_id for entry in entries}:
        part = "before the ledger"
    else:
        part = "at work"
    return f"{part} after {entries[-1].stage if entries else 'nothing'}"
