"""A server that cannot be made to serve a policy, for a reason that is no failure of the server."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from erl_pipeline.engines.interface import OutputHead
from erl_pipeline.engines.vllm.client import VllmClient
from erl_pipeline.engines.vllm.replica import Replica
from erl_pipeline.engines.vllm.server_pool import ServerPool
from erl_pipeline.engines.vllm.serving_copy import ServingCopy
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy
from storage.errors import EngineError
from tests.erl_pipeline.engines.vllm.test_interrupted_sync import Server, policy


class FullDisk(ServingCopy):
    def write(self) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")


@asynccontextmanager
async def listening(answer: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def serve(answer: Handler, served: ServedPolicy) -> None:
    async def scenario() -> None:
        async with listening(answer) as url, ServerPool(1, 30.0) as pool, asyncio.timeout(30.0):
            await pool.admit(Replica(VllmClient(url, None, frozenset({0}), 30.0)))
            await pool.serve(served)

    asyncio.run(scenario())


def test_a_copy_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Nobody awaits the task that hands the weights over: its error would be seen nowhere."""
    copy = FullDisk(tmp_path, tmp_path / "copy", OutputHead("lm_head.weight", "wte.weight"))
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:.* OSError: .*No space left on device") as told:
        serve(Server().answer, replace(policy("A"), copy=copy))
    assert isinstance(told.value.__cause__, OSError)


def test_an_address_at_which_something_else_answers_is_told() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>Welcome</html>", content_type="text/html")

    with pytest.raises(EngineError, match=r"/is_sleeping answers no JSON object.*<html>Welcome</html>"):
        serve(page, policy("A"))
