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

from storage.artifacts.store import ArtifactStore
from storage.filesystem import list_names, open_root
from storage.runs.run import RunStore
from tests.waiting import wait_for

MODULES = [
    "erl_pipeline.runs.train",
    "erl_pipeline.config.loading.load",
    "erl_pipeline.episodes.play",
    "erl_pipeline.engines.embedded_models",
    "erl_pipeline.policies.embedding",
    "erl_pipeline.policies.tiny.cold_start",
    "erl_pipeline.trainers.local.trainer",
    "storage.memory.reflection_memory",
]
"""What a stage imports when it begins."""

Watch = Callable[[], bool]


def train_here(config: str, store: str, check: bool) -> None:
    """The body of a process: train, and end without ceremony."""
    import torch
    from transformers.utils import logging as transformers_logging

    from erl_pipeline.config.loading.load import load_config
    from erl_pipeline.plan.listener import NullListener
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.runs.train import train

    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    settings = load_config(Path(config), ["runner.type=in_process"])
    with open_run(settings, store, NullListener(), threading.Event()) as opened:
        train(opened, check=check)
    os._exit(0)


def start_training(config: Path, store: Path, check: bool = False) -> BaseProcess:
    """A process that trains."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    process = context.Process(target=train_here, args=(str(config), str(store), check))
    process.start()
    return process


def train_to_the_end(config: Path, store: Path, check: bool = False) -> None:
    """Train undisturbed; with `check` every artifact is looked at."""
    process = start_training(config, store, check)
    process.join()
    assert process.exitcode == 0


def seconds_of(store: Path, run: str = "small") -> float:
    """How long a run's stages took, from the first's beginning to the last's end."""
    artifacts = ArtifactStore(str(store))
    made = [artifacts.open(entry.artifact_id).manifest for entry in RunStore(str(store)).open(run).stages()]
    whole = max(one.finished_at for one in made) - min(one.started_at for one in made)
    return whole.total_seconds()


def train_until(config: Path, store: Path, moment: Watch) -> bool:
    """Train, and kill the process as soon as `moment` says so. False when it ended before."""
    process = start_training(config, store)
    wait_for(
        "the moment, or the end",
        lambda: process.exitcode is not None or moment(),
        patience=600.0,
        interval=0.001,
    )
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def after(seconds: float) -> Watch:
    """A moment so long after now."""
    end = time.monotonic() + seconds

    def moment() -> bool:
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
