"""A second run in addition to the one that all tests share; it is trained once and only read."""

from __future__ import annotations

import pytest

import erl_pipeline.policies.lean_imports  # noqa: F401 - before a test imports transformers
from tests.command_line.invoke import REMEMBERING, FinishedRun
from tests.conftest import trained


@pytest.fixture(scope="session")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run whose reflections saw memory."""
    return trained(tmp_path_factory.mktemp("remembering"), REMEMBERING)
