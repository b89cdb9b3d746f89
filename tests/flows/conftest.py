"""One Prefect server for all tests of this folder, on a database of its own; a store for small plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_LOGGING_TO_API_ENABLED,
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    get_current_settings,
    temporary_settings,
)

from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.plan.runner import RunnerCall
from erl_pipeline.plan.stage import WorkerSettings
from flows.local_server import answers, prefect_api
from flows.runner import ThreadPool
from flows.submissions import Submissions
from tests.flows.records import begun
from tests.flows.small_plans import Recorded


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers that are started use this home folder, not the developer's."""
    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PREFECT_HOME", str(home))
        environment.setenv("DO_NOT_TRACK", "1")
        yield home


@pytest.fixture
def no_configured_api() -> Iterator[None]:
    """As in a command where nobody set PREFECT_API_URL: Prefect may start no server by itself."""
    with temporary_settings({PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}, restore_defaults={PREFECT_API_URL}):
        yield


@pytest.fixture(scope="package")
def api(prefect_home: Path) -> Iterator[str]:
    """The URL of the tests' server, to which flows in this process report. It does not stay for the tests of
    other folders, since an idle one takes some percent of a processor. Afterwards it must have ended."""
    assert not get_current_settings().api.url, "the tests start a server of their own: unset PREFECT_API_URL"
    with (
        prefect_api(prefect_home / "server.log") as url,
        temporary_settings({PREFECT_API_URL: url, PREFECT_LOGGING_TO_API_ENABLED: False}),
    ):
        assert url.startswith("http://127.0.0.1:")
        yield url
    assert not answers(url)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the run that small plans are for."""
    return begun(tmp_path / "store")


@pytest.fixture
def listener() -> Recorded:
    """Who hears of the run to which `submissions` belong."""
    return Recorded()


@pytest.fixture
def submissions(store: Path, listener: Recorded) -> Iterator[Submissions]:
    """What a run and its flow share: stages are computed in a thread, and none is submitted yet."""
    worker = WorkerSettings(store_uri=str(store), run="small", threads=1)
    call = RunnerCall(worker, ResourcesConfig(threads=1), listener, Event())
    with ThreadPool(call) as pool:
        yield Submissions(call, pool, {})
