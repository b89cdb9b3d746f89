from __future__ import annotations

import pytest

from tests.histories import History, write_history


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """The history of `tests/histories.py`; tests must not change it."""
    return write_history(str(tmp_path_factory.mktemp("history") / "store"))
