"""A client that does not send a whole request cannot hold a connection, nor keep others out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import uvicorn

from command_line.ui import access
from command_line.ui.access import LimitedProtocol, access_for, listen
from command_line.ui.app import create_app
from storage.errors import InputError
from tests.waiting import wait_for


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[uvicorn.Server]:
    monkeypatch.setattr(access, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(access, "MOST_CONNECTIONS", 20)
    app = create_app(str(tmp_path / "store"), access_for("127.0.0.1"))
    with listen("127.0.0.1", 0) as listener:
        # So the kernel takes no whole answer from the server, for a client that does not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = uvicorn.Server(uvicorn.Config(app, http=LimitedProtocol, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_for("the server", lambda: server.started)
        yield server
        server.should_exit = True
        thread.join()


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


def is_closed(client: socket.socket) -> bool:
    client.settimeout(5)
    return client.recv(1) == b""


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_half_a_request_ends_at_its_deadline(port: int, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(begun)
        assert is_closed(client)


def test_half_a_second_request_ends_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(b"GET /runs/")
        client.settimeout(5)
        while client.recv(65536):
            pass


ASKED = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BODY = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("begun", [BODY, ASKED + BODY], ids=["alone", "behind another request"])
def test_a_body_ends_at_its_deadline_whatever_it_holds(port: int, begun: bytes) -> None:
    """Neither a byte now and then nor what looks like the end of a head keeps the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(begun)
        assert client.recv(12).startswith(b"HTTP/1.1 ")
        client.settimeout(0.2)
        assert any(has_ended(client, b"\r\n\r\n") for _ in range(25))


def has_ended(client: socket.socket, more: bytes) -> bool:
    try:
        client.sendall(more)
        return client.recv(65536) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_connection_ends_after_a_body_that_came_behind_its_answer(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 405")
        client.sendall(b"\r\n\r\n")
        client.settimeout(5)
        while client.recv(65536):
            pass


def test_an_honest_client_is_answered_beside_many_silent_ones(port: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
    for _ in range(3):
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
    assert is_closed(silent[0])
    for client in silent:
        client.close()


def test_a_client_is_answered_beside_many_that_were_answered_and_stay(port: int) -> None:
    kept = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for client in kept:
        client.sendall(ASKED)
        assert client.recv(12) == b"HTTP/1.1 200"
    for _ in range(3):
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
    for client in kept:
        client.close()


@pytest.mark.parametrize("requests", [1, 300])
def test_clients_that_take_no_answers_keep_nobody_out_and_cannot_stay(
    server: uvicorn.Server, port: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ask again and again, and read nothing."""
    monkeypatch.setattr(access, "ANSWER_SECONDS", 3.0)
    asked = b"GET /static/vendor/htmx/htmx.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", port))
            client.sendall(asked * requests)
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/", timeout=60.0).status_code == 200
        wait_for("their end", lambda: not server.server_state.connections)


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several times as long as a client may take nothing."""
    monkeypatch.setattr(access, "ANSWER_SECONDS", 0.5)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /static/vendor/htmx/htmx.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        taken, began = b"", time.monotonic()
        while len(taken) < 37_000:
            time.sleep(0.1)  # It is slow.
            part = client.recv(1500)
            assert part, f"cut off after {len(taken)} bytes"
            taken += part
        assert time.monotonic() - began > 1.5


def test_an_empty_host_is_no_address() -> None:
    with pytest.raises(InputError, match="no address is given by --host"), listen("", 0):
        pass
