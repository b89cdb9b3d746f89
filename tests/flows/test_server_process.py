from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol


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


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, None, 200),  # no browser
        ("http://{own}", None, 200),
        ("http://localhost:{port}", None, 200),
        ("https://other.example", None, 403),
        ("http://127.0.0.1:1", None, 403),  # another server of this machine
        ("null", None, 403),  # a file, or a frame of any page
        ("http://other.example:{port}", "other.example:{port}", 403),  # its name resolves to this machine
        ("http://[", None, 403),
    ],
)
def test_only_its_own_pages_may_use_prefects_api(
    api: str, origin: str | None, host: str | None, status: int
) -> None:
    own = api.removeprefix("http://").removesuffix("/api")
    named = {"origin": origin, "host": host}
    places = {"own": own, "port": own.rpartition(":")[2]}
    headers = {name: value.format(**places) for name, value in named.items() if value is not None}
    asked = httpx.post(f"{api}/deployments/filter", json={}, headers=headers)
    assert asked.status_code == status
    if origin is None:
        return
    how = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    before = httpx.options(f"{api}/deployments/filter", headers={**headers, **how})
    assert before.status_code == status


def test_a_page_of_another_site_gets_no_events(api: str) -> None:
    address = f"{api.replace('http', 'ws', 1)}/events/out"
    with (
        pytest.raises(InvalidStatus, match="403"),
        connect(address, subprotocols=[Subprotocol("prefect")], origin=Origin("https://other.example")),
    ):
        pass


def test_the_events_of_task_runs_are_not_compressed_on_their_way(api: str) -> None:
    address = f"{api.replace('http', 'ws', 1)}/events/in"
    with connect(address, subprotocols=[Subprotocol("prefect")]) as events:
        assert events.response is not None
        assert events.response.status_code == 101
        assert "Sec-WebSocket-Extensions" not in events.response.headers
