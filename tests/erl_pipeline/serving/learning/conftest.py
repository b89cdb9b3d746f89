"""A small trained run, whose own rollouts are what it said when it served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.erl_pipeline.runs.small_runs import go, small
from tests.erl_pipeline.serving.learning.served_traffic import RUN


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a small run with one iteration."""
    store = tmp_path_factory.mktemp("served")
    go(small(name=RUN, iterations=1, method={"type": "rlvr"}), store)
    return store


@pytest.fixture
def served(trained: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(trained, tmp_path / "store"))
