"""One small trained run for all tests of this folder; tests that change it take a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.erl_pipeline.runs.small_runs import go, small


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run `small`, trained for two iterations; it must not be changed."""
    store = tmp_path_factory.mktemp("trained") / "store"
    go(small(), store)
    return store


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "store"))
