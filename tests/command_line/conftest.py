"""A run beside the one that all tests share; trained once, looked into and not changed."""

from __future__ import annotations

import pytest

from tests.command_line.invoke import REMEMBERING, FinishedRun
from tests.conftest import trained


@pytest.fixture(scope="session")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run whose reflections saw memory."""
    return trained(tmp_path_factory.mktemp("remembering"), REMEMBERING)
