"""Small finished runs, trained once, which the tests look into and do not change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_line.invoke import REMEMBERING, SMALL, Result, invoke


@dataclass(frozen=True)
class FinishedRun:
    """A run that was trained once, and what that printed."""

    config: Path
    store: Path
    training: Result


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return _trained(tmp_path_factory.mktemp("finished"), SMALL)


@pytest.fixture(scope="session")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run whose reflections saw memory."""
    return _trained(tmp_path_factory.mktemp("remembering"), REMEMBERING)


def _trained(folder: Path, settings: str) -> FinishedRun:
    config, store = folder / "small.yaml", folder / "store"
    config.write_text(settings)
    training = invoke("train", config, "--store", store, "--no-prefect")
    assert training.status == 0, training.errors
    return FinishedRun(config, store, training)
