"""A store of its own for every test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_line.invoke import FinishedRun


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    shutil.copytree(finished.store, folder)
    return folder
