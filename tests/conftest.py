"""One thread for all numeric libraries: the tests are small, and spinning threads cost more than they
gain."""

from __future__ import annotations

import gc
import os

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # as in the command, which sets it before the import

from pathlib import Path

import hypothesis
import pytest
import torch

from tests.command_line.invoke import SMALL, FinishedRun, invoke

torch.set_num_threads(1)
# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
gc.set_threshold(50_000, 10, 10)  # as in the command; by default a fifth of the collection of tests


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """One small finished run, trained in this process; tests read it, or change a copy of its store."""
    return trained(tmp_path_factory.mktemp("finished"), SMALL)


def trained(folder: Path, settings: str) -> FinishedRun:
    """The run of a configuration, trained in a store in this folder."""
    config, store = folder / "small.yaml", folder / "store"
    config.write_text(settings)
    training = invoke("train", config, "--store", store, "--no-prefect")
    assert training.status == 0, training.errors
    return FinishedRun(config, store, training)
