from __future__ import annotations

import pytest

from tests.histories import History, write_history


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Read only."""
    return write_history(str(tmp_path_factory.mktemp("history") / "store"))
