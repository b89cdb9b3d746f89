"""What the client asks of a connection, with a server that closes it as vLLM's does."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from erl_pipeline.engines.vllm import client
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def test_an_idle_connection_is_not_used_again_since_the_server_may_be_closing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server answers once on a connection, and closes it when it hears of it again."""
    monkeypatch.setattr(client, "_IDLE_SECONDS", 0.1)
    asked: list[int] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(len(asked))
        await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        writer.write(ANSWER)
        await reader.read(1)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, VllmClient(f"http://127.0.0.1:{port}", None, frozenset(), 60.0) as asking:
            await asking.label_weights("one")
            await asyncio.sleep(0.3)  # A connection becomes idle by time alone.
            await asking.label_weights("two")

    asyncio.run(scenario())
    assert asked == [0, 1]


@pytest.mark.parametrize("health", ["hangs", "is bad"])
def test_a_call_fails_when_health_is_bad_but_not_because_it_is_slow(
    health: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call itself is answered after half a second."""
    monkeypatch.setattr(client, "_SECONDS_BETWEEN_HEALTH", 0.05)

    async def label(request: web.Request) -> web.Response:
        await asyncio.sleep(0.5)
        return web.json_response({})

    async def look(request: web.Request) -> web.Response:
        if health == "hangs":
            await asyncio.sleep(60.0)
        return web.Response(status=503)

    async def scenario() -> None:
        app = web.Application()
        app.add_routes([web.post("/update_weight_version", label), web.get("/health", look)])
        async with (
            TestServer(app) as server,
            VllmClient(str(server.make_url("")), None, frozenset(), 3.0) as asking,
        ):
            await asking.label_weights("one")

    if health == "hangs":
        asyncio.run(scenario())
    else:
        with pytest.raises(ServerFailure, match="/health answered 503"):
            asyncio.run(scenario())


@pytest.mark.vllm
def test_vllms_server_keeps_idle_connections_for_longer_than_the_client_uses_them() -> None:
    from vllm import envs

    assert client._IDLE_SECONDS < envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE
