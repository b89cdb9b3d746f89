from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send
from websockets.sync.client import connect
from websockets.typing import Subprotocol


def headers_of_an_answer(status: int) -> list[tuple[bytes, bytes]]:
    # It imports the whole server, which not every process that collects the tests needs.
    from flows.server_process import retry_soon

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []

    async def answer() -> None:
        await retry_soon(app, 0.05)({"type": "http"}, receive, send)

    asyncio.run(answer())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    return list(sent[0]["headers"])


def test_only_a_busy_database_is_answered_with_a_time_to_come_again() -> None:
    assert headers_of_an_answer(200) == [(b"a", b"b")]
    assert headers_of_an_answer(503) == [(b"a", b"b"), (b"retry-after", b"0.05")]


def test_the_events_of_task_runs_are_not_compressed_on_their_way(api: str) -> None:
    address = f"{api.replace('http', 'ws', 1)}/events/in"
    with connect(address, subprotocols=[Subprotocol("prefect")]) as events:
        assert events.response is not None
        assert events.response.status_code == 101
        assert "Sec-WebSocket-Extensions" not in events.response.headers
