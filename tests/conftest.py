"""What all tests have in common: the environment, the order, and one small finished run.

Numeric libraries have one thread: the tests are small, and spinning threads cost more than they gain.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # as in the command, which sets it before the import
# Otherwise torch's attention in bf16 fails on a processor with AMX: oneDNN asks for a layout that torch's
# code for AVX2 cannot write.
if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

from erl_pipeline.garbage import search_seldom
from flows.stage_tasks import PREFECT_VARIABLES

# As in the command, before Prefect is imported. Else it would start a server of its own for an event that
# comes after the end of a flow run.
os.environ.update(PREFECT_VARIABLES)

from pathlib import Path

import hypothesis
import pytest
import torch

import tests.cold_starts  # noqa: F401 - runs that are trained in this process take what others have made
from tests.command_line.invoke import SMALL, FinishedRun, invoke

torch.set_num_threads(1)
# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
search_seldom()  # as in the command; by default a fifth of the collection of tests

MOSTLY_WAITING = ("tests/flows/", "tests/erl_pipeline/trainers/fsdp2/", "tests/integration/test_bad_stores")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that mostly wait for other processes: in `make test`, vLLM keeps a core busy
    meanwhile. Tests that compute come when both cores are free."""
    items.sort(key=lambda item: not item.nodeid.startswith(MOSTLY_WAITING))


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
