"""A worker of `serve` that is asked to stop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flows import worker
from flows.worker_link import listen_to_flow_runs


@pytest.mark.usefixtures("prefect_home")
def test_a_worker_that_is_stopped_before_it_has_begun_just_ends() -> None:
    stop = threading.Event()
    stop.set()
    with listen_to_flow_runs(lambda _message: None) as (lines, _):
        asyncio.run(worker._work("early", 1, lines, stop))
