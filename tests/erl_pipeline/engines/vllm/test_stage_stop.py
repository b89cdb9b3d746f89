"""A stage that takes too long ends what it waits for from an engine that is kept for later stages."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import pytest

from erl_pipeline.engines.interface import POLICY, EngineCall, SampledModel
from erl_pipeline.engines.vllm.engine import VllmEngine, open_served
from erl_pipeline.engines.vllm.settings import ServerAddress
from erl_pipeline.plan.stage import Listener, Resources, StageProgress, WorkerSettings
from storage.errors import Interrupted
from tests.erl_pipeline.engines.vllm.small_policies import ENGINE, served, tied_llama


def test_a_stage_that_takes_too_long_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    checkpoint = served(tied_llama(), "policy-1", tmp_path)
    model = SampledModel(POLICY, "policy-1", load=lambda: pytest.fail("not read"), served=lambda: checkpoint)
    run_stop, stage_stop = threading.Event(), threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Resources(WorkerSettings(str(tmp_path / "store"), "small", threads=1), run_stop) as worker,
    ):
        address = ServerAddress(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        settings = ENGINE.model_copy(update={"servers": (address,)})
        call = EngineCall(worker, StageProgress("stage", Listener(), stage_stop), stage_stop)
        threading.Timer(1.0, stage_stop.set).start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            open_served(settings, model, call)
        assert 0.9 < time.monotonic() - began < 30.0
        assert not run_stop.is_set()
        # The next stage, which has the same engine, has a stop of its own.
        engine: VllmEngine = worker.keep("engine", lambda: pytest.fail("it is kept"))
        assert engine.run(asyncio.sleep(0.5, "done")) == "done"
