"""Runs of these tests compute all of their stages, cold starts too: they are killed, cut off and compared."""

from __future__ import annotations

import pytest

from tests.cold_starts import FOLDER_VARIABLE


@pytest.fixture(autouse=True)
def _own_cold_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
