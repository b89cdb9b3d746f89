"""Training in processes that are killed, forked from one that has imported everything."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from erl_pipeline.config.loading.load import load_config
from erl_pipeline.config.plugins.installed import Plugin
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan import sources
from erl_pipeline.plan.plugin_code import plugin_fingerprints
from erl_pipeline.runs.certificate.driver_process import driver_context, start_driver
from erl_pipeline.runs.certificate.moments import Watch, after, after_publication, before_publication
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.waiting import wait_for


def start_training(config: Path, store: Path, check: bool = False) -> BaseProcess:
    """A process that trains."""
    return start_driver(load_config(config, ["runner.type=in_process"]), str(store), check=check)


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
    """Train, and kill the process as soon as `moment` is true. Returns False when it ended before."""
    return kill_at(moment, start_training(config, store))


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
    process = driver_context().Process(target=_train_edited, args=given)
    process.start()
    return process


def _train_edited(settings: dict[str, Any], store: str, edit: str) -> None:
    from erl_pipeline.plan.listener import NullListener
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.runs.train import train

    def edited(found: Sequence[Plugin]) -> dict[str, str]:
        return {package: each + edit for package, each in plugin_fingerprints(found).items()}

    setattr(sources, "plugin_fingerprints", edited)  # noqa: B010
    with open_run(RunConfig.model_validate(settings), store, NullListener(), threading.Event()) as opened:
        train(opened)
    os._exit(0)


def random_moment(store: Path, whole: float, chance: random.Random) -> Watch:
    """A random time within the run, or within the commit of one of the next artifacts."""
    kind = chance.choice(["time", "time", "before", "after"])
    number = chance.randint(1, 5)
    if kind == "time":
        return after(chance.uniform(0.0, 0.7 * whole))
    return (before_publication if kind == "before" else after_publication)(store, number)
