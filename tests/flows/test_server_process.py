from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from urllib.parse import urlsplit

import httpx
import pytest
from prefect.settings import (
    PREFECT_SERVER_API_HOST,
    PREFECT_SERVER_API_PORT,
    PREFECT_UI_API_URL,
    temporary_settings,
)
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from flows.local_server import answers
from tests.waiting import wait_for


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
        ("http://other.example:{port}", "other.example:{port}", 421),  # its name resolves to this machine
        (None, "other.example:{port}", 421),  # what that page reads: then a browser names no origin
        (None, "localhost:{port}", 200),
        (None, "10.0.0.7:1", 200),  # a port that is forwarded from another machine
        ("http://10.0.0.7:{port}", None, 403),
        ("http://[", None, 403),
        (None, "[", 421),
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
    assert httpx.get(f"{api}/health", headers=headers).status_code == status
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


def test_a_name_that_only_leads_to_this_machine_gets_no_events(api: str) -> None:
    own = urlsplit(api)
    address = f"ws://other.example:{own.port}/api/events/out"
    with (
        socket.create_connection((own.hostname, own.port)) as connection,
        pytest.raises(InvalidStatus, match="403"),
        connect(address, sock=connection, subprotocols=[Subprotocol("prefect")]),
    ):
        pass


def statuses(host: str, asked: list[tuple[str | None, str]]) -> list[int]:
    """How requests from origins to hosts are answered by a server that listens on a host."""
    from flows.server_process import only_own_pages

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("")(scope, receive, send)

    async def ask() -> list[int]:
        with temporary_settings({PREFECT_SERVER_API_HOST: host}):
            guarded = only_own_pages(app)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://x") as client:
            headers = [({"origin": origin} if origin else {}) | {"host": name} for origin, name in asked]
            return [(await client.get("/", headers=each)).status_code for each in headers]

    return asyncio.run(ask())


@pytest.mark.parametrize("url", ["https://Prefect.example/api", "https://prefect.example:443/api"])
def test_the_page_of_a_proxy_may_use_the_api_with_each_host_that_the_proxy_sends(url: str) -> None:
    page, other = "https://prefect.example", "https://other.example"
    # A setting of Prefect can be in a profile, and has two names as a variable.
    with temporary_settings({PREFECT_UI_API_URL: url}):
        assert statuses(
            "127.0.0.1",
            [
                (page, "127.0.0.1:4200"),
                (page, "localhost"),
                (page, "prefect.example"),
                (None, "prefect.example"),
                (other, "prefect.example"),
                (page, "other.example"),
            ],
        ) == [200, 200, 200, 200, 403, 421]
    assert statuses("127.0.0.1", [(page, "127.0.0.1:4200"), (None, "prefect.example")]) == [403, 421]


def test_no_request_waits_for_a_look_up_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has one thread. A look-up can take many seconds, and one on loopback needs none."""
    looked_up: list[str] = []

    def full_name() -> str:
        looked_up.append("")
        return "node7.cluster.example"

    monkeypatch.setattr(socket, "gethostname", lambda: "Node7")
    monkeypatch.setattr(socket, "getfqdn", full_name)
    own: list[tuple[str | None, str]] = [
        (f"http://{name}:4200", f"{name}:4200") for name in ("127.0.0.1", "localhost", "node7", "[::1]")
    ]
    assert statuses("127.0.0.1", own) == [200] * 4
    assert looked_up == []
    assert statuses("0.0.0.0", [*own, (None, "node7.cluster.example:4200")]) == [200] * 5
    assert len(looked_up) == 1


@pytest.mark.usefixtures("prefect_home")
def test_a_container_serves_prefects_page_by_its_settings_and_until_a_signal() -> None:
    """With no standard input, and without a parent's socket."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = f"http://127.0.0.1:{port}"
    place = {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
    command = [sys.executable, "-m", "flows.server_process"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **place}) as server:
        try:
            wait_for("the server", lambda: server.poll() is not None or answers(f"{page}/api"))
            assert "<html" in httpx.get(page, follow_redirects=True).text
            assert httpx.get(f"{page}/api/health", headers={"host": "other.example"}).status_code == 421
            server.terminate()
            assert server.wait(30) in (0, -signal.SIGTERM)
        finally:
            server.kill()


def test_a_port_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import server_process

    monkeypatch.setattr(sys, "argv", ["server_process"])
    monkeypatch.setattr(server_process, "search_seldom", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = {PREFECT_SERVER_API_HOST: "127.0.0.1", PREFECT_SERVER_API_PORT: port}
        said = (
            rf"^no server can listen on 127\.0\.0\.1, port {port} \(Address already in use\); choose another"
        )
        with temporary_settings(place), pytest.raises(SystemExit, match=said):
            server_process.main()


def test_the_events_of_task_runs_are_not_compressed_on_their_way(api: str) -> None:
    address = f"{api.replace('http', 'ws', 1)}/events/in"
    with connect(address, subprotocols=[Subprotocol("prefect")]) as events:
        assert events.response is not None
        assert events.response.status_code == 101
        assert "Sec-WebSocket-Extensions" not in events.response.headers
