"""A slot of a device that cannot be renewed, with a server that stops answering in several ways."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Literal
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import scheduled_run
from flows.scheduled_run import device_slot
from tests.waiting import wait_for

Fault = Literal["none", "hangs", "busy", "refuses", "lost"]
LEASE, RENEW = 4.0, 0.5


@dataclass
class Leases:
    """A server that gives a lease and renews it, until it has a fault."""

    fault: Fault = "none"
    renewals: list[float] = field(default_factory=list)
    """When it has renewed the lease, or given it, by `time.monotonic()`."""
    released: int = 0
    ended: Event = field(default_factory=Event)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        leases = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Prefect's client asks for a token, which this server does not need."""
                self.send_response(404)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if leases.fault == "hangs":
                    leases.ended.wait(60.0)
                    return
                status = {"busy": 503, "lost": 410}.get(leases.fault, 200)
                if self.path.endswith("/decrement-with-lease"):
                    leases.released += 1
                elif status == 200:
                    leases.renewals.append(time.monotonic())
                body = json.dumps({"lease_id": str(uuid4()), "limits": [{"name": "device"}]}).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Leases, ThreadingHTTPServer]]:
    for name, value in {
        "LEASE_SECONDS": LEASE,
        "_RENEW_SECONDS": RENEW,
        "_AGAIN_SECONDS": 0.2,
        "_REQUEST_SECONDS": 0.2,
        "_RELEASE_RETRIES": 0,
    }.items():
        monkeypatch.setattr(scheduled_run, name, value)
    found = Leases()
    server = ThreadingHTTPServer(("127.0.0.1", 0), found.handler())
    Thread(target=server.serve_forever, daemon=True).start()
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}):
        yield found, server
    found.ended.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("fault", ["hangs", "busy", "refuses"])
def test_a_run_is_asked_to_stop_before_others_can_get_its_device(
    leases: tuple[Leases, ThreadingHTTPServer], fault: Fault
) -> None:
    given, server = leases
    stop, told = Event(), list[str]()
    with device_slot("device", str(uuid4()), stop, told.append):
        wait_for("a third renewal", lambda: len(given.renewals) >= 3)
        assert not stop.is_set()
        given.fault = fault
        if fault == "refuses":
            server.shutdown()
            server.server_close()
        assert stop.wait(10.0)
        waited = time.monotonic() - given.renewals[-1]
        asked = time.monotonic()
    left = time.monotonic() - asked
    assert LEASE - 2 * RENEW < waited < LEASE
    assert left < 5.0
    assert told[0].startswith("Stopping: the slot of 'device' could not be renewed; others may get it: ")


def test_a_run_whose_slot_the_server_no_longer_knows_is_asked_to_stop_at_once(
    leases: tuple[Leases, ThreadingHTTPServer],
) -> None:
    given, _ = leases
    stop, told = Event(), list[str]()
    with device_slot("device", str(uuid4()), stop, told.append):
        given.fault = "lost"
        assert stop.wait(10.0)
        assert time.monotonic() - given.renewals[-1] < LEASE / 2  # far less than a lost lease has left
    assert len(told) == 2


def test_a_moment_without_an_answer_stops_nothing(leases: tuple[Leases, ThreadingHTTPServer]) -> None:
    given, _ = leases
    stop, told = Event(), list[str]()
    with device_slot("device", str(uuid4()), stop, told.append):
        given.fault = "busy"
        assert not stop.wait(3 * RENEW)
        given.fault = "none"
        before = len(given.renewals)
        assert not stop.wait(LEASE)
        assert len(given.renewals) - before >= 4
    assert (told, given.released) == ([], 1)
