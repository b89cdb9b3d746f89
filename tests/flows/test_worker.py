"""A worker of `serve`: what a killed one left is begun again, and one that is asked to stop ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import anyio
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State, StateType
from prefect.states import Pending, Running, Scheduled
from prefect.workers.process import ProcessWorker

from flows import worker
from flows.deployments import WORK_POOL, connected, deploy, run_once
from flows.local_server import OrchestratorError
from flows.worker import MAX_STARTS, only_worker, restart_orphans
from flows.worker_link import listen_to_flow_runs


@pytest.fixture
def client(api: str) -> Iterator[SyncPrefectClient]:
    with connected(api) as client:
        yield client


def at_work(client: SyncPrefectClient, run: str, worker: str, starts: int = 1) -> UUID:
    """A flow run in the state in which its worker left it."""
    deploy(client, "train", run, "/store", None, "skip", {}, Path("/"))
    flow_run = run_once(client, "train", run, "/store", {})
    for start in range(starts):
        if start:
            client.set_flow_run_state(flow_run.id, Scheduled(), force=True)
        client.set_flow_run_state(flow_run.id, Pending())
        client.set_flow_run_state(flow_run.id, Running())
    client.update_flow_run_labels(flow_run.id, {"prefect.worker.name": worker})
    return flow_run.id


def test_what_a_killed_worker_left_is_started_again_but_not_for_ever(client: SyncPrefectClient) -> None:
    first = at_work(client, "orphan", "here")
    doomed = at_work(client, "doomed", "here", starts=MAX_STARTS)
    elsewhere = at_work(client, "elsewhere", "there")
    assert restart_orphans(client, WORK_POOL, "here") == [client.read_flow_run(first).name]
    states = [client.read_flow_run(each).state for each in (first, doomed, elsewhere)]
    assert [state.name for state in states if state is not None] == ["AwaitingRetry", "Crashed", "Running"]
    assert states[0] is not None
    assert states[0].message == "Its worker was killed; it goes on from what is committed"
    assert restart_orphans(client, WORK_POOL, "here") == []


def test_what_was_being_cancelled_is_cancelled_and_not_started_again(client: SyncPrefectClient) -> None:
    stopped = at_work(client, "stopped", "here")
    client.set_flow_run_state(stopped, State(type=StateType.CANCELLING))
    assert restart_orphans(client, WORK_POOL, "here") == []
    state = client.read_flow_run(stopped).state
    assert state is not None
    assert (state.type, state.message) == (
        StateType.CANCELLED,
        "Asked to stop, and then its worker was killed; what was committed is kept",
    )


def test_a_worker_has_its_name_to_itself(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    with (
        only_worker(home, "gpu machine"),
        only_worker(home, "other"),
        pytest.raises(OrchestratorError, match="a worker 'gpu machine' runs on this machine already"),
        only_worker(home, "gpu machine"),
    ):
        pass
    with only_worker(home, "gpu machine"):
        pass


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with (
        pytest.raises(OrchestratorError, match="set PREFECT_HOME to another"),
        only_worker(tmp_path / "file" / "prefect", "here"),
    ):
        pass


@pytest.mark.usefixtures("prefect_home")
def test_a_worker_that_is_stopped_before_it_has_begun_just_ends() -> None:
    stop = threading.Event()
    stop.set()
    with listen_to_flow_runs(lambda _message: None) as (lines, _):
        asyncio.run(worker._work("early", 1, lines, stop, lambda: ""))


def test_a_worker_ends_when_its_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's worker goes on asking for minutes."""

    class Asking:
        limiter = anyio.CapacityLimiter(2)

        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def start(self) -> None:
            await asyncio.sleep(600.0)

    asked: list[str] = []
    monkeypatch.setattr(worker, "ProcessWorker", Asking)
    answers = iter(["", "", "Prefect's server has ended"])
    with listen_to_flow_runs(lambda _message: None) as (lines, _):
        monkeypatch.setattr(lines, "ask_to_stop", lambda: asked.append("flow runs"))
        with pytest.raises(OrchestratorError, match="Prefect's server has ended"):
            asyncio.run(worker._work("early", 2, lines, threading.Event(), lambda: next(answers)))
    assert asked == ["flow runs"]


@pytest.mark.usefixtures("api")
def test_prefects_worker_has_tokens_by_which_flow_runs_at_work_are_counted() -> None:
    """`ProcessWorker.limiter` is in none of Prefect's documents."""

    async def tokens() -> tuple[float, float]:
        async with ProcessWorker(WORK_POOL, name="counted", limit=2) as begun:
            begun.limiter.acquire_on_behalf_of_nowait(object())
            return begun.limiter.borrowed_tokens, begun.limiter.available_tokens

    with pytest.raises(RuntimeError, match="has not been correctly initialized"):
        ProcessWorker(WORK_POOL, name="early", limit=2).limiter  # noqa: B018
    assert asyncio.run(tokens()) == (1, 1)
