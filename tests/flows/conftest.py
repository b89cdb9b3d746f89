"""One Prefect server for all tests of this folder, on a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.local_server import prefect_api


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers that are started within have this home, and none that a developer may have configured."""
    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as environment, temporary_settings(restore_defaults={PREFECT_API_URL}):
        environment.setenv("PREFECT_HOME", str(home))
        environment.setenv("DO_NOT_TRACK", "1")
        yield home


@pytest.fixture(scope="session")
def api(prefect_home: Path) -> Iterator[str]:
    """The URL of the tests' server, which flows in this process report to."""
    with prefect_api(prefect_home / "server.log") as url, temporary_settings({PREFECT_API_URL: url}):
        yield url
