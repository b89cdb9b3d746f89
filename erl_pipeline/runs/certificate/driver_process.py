"""The driver of a run in its own process, which may be killed at any moment.

The process is forked from one that has imported everything, so that a kill interrupts work and not an import.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from erl_pipeline.config.run import RunConfig
from storage.errors import PipelineError

_MODULES = [
    "erl_pipeline.runs.train",
    "erl_pipeline.episodes.play",
    "erl_pipeline.engines.embedded_models",
    "erl_pipeline.policies.embedding",
    "erl_pipeline.policies.tiny.cold_start",
    "erl_pipeline.trainers.local.trainer",
    "storage.memory.view",
]
"""Modules that a stage imports when it begins."""


def driver_context() -> ForkServerContext:
    """The context whose processes have imported what a training needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    return context


def start_driver(
    config: RunConfig,
    store_uri: str,
    *,
    iterations: int | None = None,
    check: bool = False,
    log_file: Path | None = None,
) -> BaseProcess:
    """Start a process that trains a run or continues it; the process ends when this one does.

    Its exit status is 0 when the run is complete, and 2 after a `PipelineError`, which a user can act on.

    Args:
        iterations: where the run ends; default: the configuration's.
        check: look at every artifact of the run.
        log_file: file to which the process's output is appended; default: it is printed.
    """
    context = driver_context()
    settings = config.model_dump(mode="json")
    log = None if log_file is None else str(log_file)
    process = context.Process(target=_drive, args=(settings, store_uri, iterations, check, log))
    process.start()
    return process


def _drive(
    settings: dict[str, Any], store_uri: str, iterations: int | None, check: bool, log_file: str | None
) -> None:
    """The body of the process: train, then exit without any cleanup of the interpreter."""
    os.setsid()  # Ctrl-C must reach only the process that started this one and ends it.
    if log_file is not None:
        descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch
    from transformers.utils import logging as transformers_logging

    from erl_pipeline.plan.listener import NullListener
    from erl_pipeline.runs.driver import open_run
    from erl_pipeline.runs.train import train

    config = RunConfig.model_validate(settings)
    torch.set_num_threads(config.resources.threads)
    transformers_logging.disable_progress_bar()
    try:
        with open_run(config, store_uri, NullListener(), threading.Event()) as opened:
            train(opened, iterations, check=check)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    os._exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
