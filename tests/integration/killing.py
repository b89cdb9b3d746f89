"""Training in forked processes that are killed, so that a kill interrupts work and not an import."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from safetensors import SafetensorError, safe_open

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.plugins import Plugin
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan import sources
from erl_pipeline.plan.plugin_code import plugin_fingerprints
from storage.artifacts.late_files import LateFiles
from storage.artifacts.store import ArtifactStore
from storage.errors import PipelineError
from storage.filesystem import open_root
from storage.runs.run import RunStore
from tests.forked import end_with_parent, forking
from tests.late_writing import slowed
from tests.waiting import wait_for

_PAUSE_SECONDS = 0.005
_STATES = "*/*/optimizer.safetensors"


def start_driver(
    config: RunConfig, store_uri: str, *, check: bool = False, slow_disk: bool = False
) -> BaseProcess:
    """Start a process that trains a run or continues it; the process ends when this one does.

    Its exit status is 0 when the run is complete, and 2 after a `PipelineError`, which a user can act on.

    Args:
        check: look at every artifact of the run.
        slow_disk: pause after each part of a file that is written beside the stages.
    """
    settings = config.model_dump(mode="json")
    process = forking().Process(target=_drive, args=(settings, store_uri, check, slow_disk))
    process.start()
    return process


def _drive(settings: dict[str, Any], store_uri: str, check: bool, slow_disk: bool) -> None:
    """The body of the process: train, then exit without any cleanup of the interpreter."""
    os.setsid()  # Ctrl-C must reach only the process that started this one and ends it.
    threading.Thread(target=end_with_parent, daemon=True).start()
    import torch
    from transformers.utils import logging as transformers_logging

    from erl_pipeline.plan.stage import Listener
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.runs.train import train

    if slow_disk:
        # So that kills hit the writing.
        setattr(LateFiles, "begin", slowed(partial(time.sleep, _PAUSE_SECONDS)))  # noqa: B010
    config = RunConfig.model_validate(settings)
    torch.set_num_threads(config.resources.threads)
    transformers_logging.disable_progress_bar()
    try:
        with open_run(config, store_uri, Listener(), threading.Event()) as opened:
            train(opened, check=check)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    os._exit(0)


Watch = Callable[[], bool]
"""Says whether the moment has come; it is called repeatedly."""


def after(seconds: float) -> Watch:
    """The moment that many seconds from now."""
    end = time.monotonic() + seconds

    def moment() -> bool:
        return time.monotonic() >= end

    return moment


def before_publication(store: Path, number: int) -> Watch:
    """The moment when the files of the `number`-th artifact from now are at their place, without a
    manifest."""
    return _nth_new(lambda: {str(path) for path in (store / "artifacts").glob("*/*")}, number)


def after_publication(store: Path, number: int) -> Watch:
    """The moment when the `number`-th artifact from now is visible; its ledger line is not written yet."""
    return _nth_new(lambda: {str(path) for path in (store / "artifacts").glob("*/*/manifest.json")}, number)


def during_late_writing(store: Path, number: int) -> Watch:
    """The moment when the `number`-th file from now is at its place and still being written."""

    def being_written(path: Path) -> bool:
        with suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    return _nth_new(
        lambda: {str(path) for path in (store / "artifacts").glob(_STATES) if being_written(path)}, number
    )


def _is_cut_short(path: Path) -> bool:
    try:
        with safe_open(path, framework="np"):
            return False
    except SafetensorError:
        return True


def where_it_died(store: Path, run: str) -> str:
    """What a kill interrupted: work or which part of a commit, and after which stage of the ledger."""
    root = open_root(str(store))
    runs = RunStore(str(store))
    entries = runs.open(run).recorded() if run in runs.list() else []
    folders = list(Path(root.join("artifacts")).glob("*/*"))
    artifacts = {folder.name for folder in folders if (folder / "manifest.json").exists()}
    if any(map(_is_cut_short, Path(root.join("artifacts")).glob(_STATES))):
        part = "writing a file of an earlier stage"
    elif len(artifacts) < len(folders):
        part = "before publication"
    elif artifacts - {entry.artifact_id for entry in entries}:
        part = "before the ledger"
    else:
        part = "at work"
    return f"{part} after {entries[-1].stage if entries else 'nothing'}"


def _nth_new(look: Callable[[], set[str]], number: int) -> Watch:
    seen = look()
    before = len(seen)

    def moment() -> bool:
        seen.update(look())
        return len(seen) >= before + number

    return moment


def workers_of(driver: int | None) -> set[int]:
    """The worker processes that Prefect has started for a driver; none when it has ended."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(driver).children():
            with suppress(psutil.NoSuchProcess):  # It may end meanwhile.
                if any("multiprocessing.spawn" in argument for argument in child.cmdline()):
                    found.add(child.pid)
    return found


def start_training(config: Path, store: Path, check: bool = False, slow_disk: bool = False) -> BaseProcess:
    """A process that trains."""
    settings = load_config(config, ["runner.type=in_process"])
    return start_driver(settings, str(store), check=check, slow_disk=slow_disk)


def train_to_the_end(config: Path, store: Path, check: bool = False) -> None:
    """Train undisturbed; with `check` every artifact is checked."""
    process = start_training(config, store, check)
    process.join()
    assert process.exitcode == 0


def seconds_of(store: Path, run: str = "small") -> float:
    """The time of a run's stages, from the beginning of the first to the end of the last."""
    artifacts = ArtifactStore(str(store))
    made = [artifacts.open(entry.artifact_id).manifest for entry in RunStore(str(store)).open(run).stages()]
    whole = max(one.finished_at for one in made) - min(one.started_at for one in made)
    return whole.total_seconds()


def train_until(config: Path, store: Path, moment: Watch) -> bool:
    """Train, on a slow disk, and kill the process as soon as `moment` is true. Returns False when it ended
    before."""
    return kill_at(moment, start_training(config, store, slow_disk=True))


def kill_at(moment: Watch, process: BaseProcess) -> bool:
    """Kill a process as soon as `moment` is true. Returns False when it ended before."""
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


def start_edited(config: RunConfig, store: Path, edit: str) -> BaseProcess:
    """A process that trains as if a line of each plug-in package had been edited: `edit` goes into the
    fingerprints of their code."""
    given = (config.model_dump(mode="json"), str(store), edit)
    process = forking().Process(target=_train_edited, args=given)
    process.start()
    return process


def _train_edited(settings: dict[str, Any], store: str, edit: str) -> None:
    from erl_pipeline.plan.stage import Listener
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.runs.train import train

    def edited(found: Sequence[Plugin]) -> dict[str, str]:
        return {package: each + edit for package, each in plugin_fingerprints(found).items()}

    setattr(sources, "plugin_fingerprints", edited)  # noqa: B010
    with open_run(RunConfig.model_validate(settings), store, Listener(), threading.Event()) as opened:
        train(opened)
    os._exit(0)


def random_moment(store: Path, whole: float, chance: random.Random, late: bool = False) -> Watch:
    """A random time within the run, or within the commit of one of the next artifacts. `late`: or within the
    writing of a file beside the next stage."""
    kind = chance.choice(["time", "time", "before", "after", *(["writing"] if late else [])])
    number = chance.randint(1, 5)
    if kind == "time":
        return after(chance.uniform(0.0, 0.7 * whole))
    if kind == "writing":
        return during_late_writing(store, chance.randint(1, 2))
    return (before_publication if kind == "before" else after_publication)(store, number)
