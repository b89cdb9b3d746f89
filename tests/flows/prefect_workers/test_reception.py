"""Who gets a connection to the driver, and what ends with it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest

from erl_pipeline.network import Address
from flows import keyed_connection
from flows.keyed_connection import Line, Refused, dial
from flows.nodes.check import Node, NodeFinding
from flows.nodes.survey import survey_of
from flows.prefect_workers.attendance import attend
from flows.prefect_workers.questions import begin, examine
from flows.prefect_workers.reception import Invitation, Reception
from storage.errors import ConfigError
from tests.flows.prefect_workers.dialling import start_worker
from tests.strangers import SAID, seconds_until_dropped, visited


@pytest.fixture
def reception() -> Iterator[Reception]:
    with Reception("127.0.0.1:0") as open_reception:
        yield open_reception


def dialled(invitation: Invitation) -> Line:
    line = dial(invitation.address, bytes.fromhex(invitation.key))
    line.send_bytes(invitation.ticket.encode())
    return line


def test_an_invited_worker_is_connected_and_one_who_says_nothing_holds_up_nobody(
    reception: Reception,
) -> None:
    first, second = reception.invite(), reception.invite()
    assert first.ticket != second.ticket
    driver = Address.parse(first.address)
    with socket.create_connection((driver.host, driver.port)), dialled(second) as there:
        here = reception.receive(second, 20.0)
        assert here is not None
        here.send_bytes(b"welcome")
        assert there.recv_bytes() == b"welcome"
        assert reception.receive(first, 0.0) is None
        here.close()


def test_a_scan_of_the_port_holds_up_no_worker(reception: Reception) -> None:
    invitation = reception.invite()
    driver = Address.parse(invitation.address)
    with visited(driver.host, driver.port), dialled(invitation):
        here = reception.receive(invitation, 20.0)
        assert here is not None
        here.close()


def test_a_stranger_who_takes_its_time_is_sent_away(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_connection, "GREETING_SECONDS", 0.3)
    driver = Address.parse(reception.invite().address)
    assert seconds_until_dropped(driver.host, driver.port) < 10.0


@pytest.mark.parametrize("said", SAID)
def test_a_worker_that_dials_something_else_says_so(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        address = str(Address(*server.getsockname()))
        attending = pool.submit(attend, Invitation(address, "00" * 32, "ticket"))
        caller, _ = server.accept()
        with caller:
            with suppress(OSError):  # It may have left in the middle.
                caller.sendall(said)
                caller.shutdown(socket.SHUT_WR)
            attended = attending.result(30.0)
    assert attended.message.startswith(f"the driver at {address} cannot be reached (")


def test_a_wrong_key_gets_no_connection(reception: Reception) -> None:
    invitation = reception.invite()
    with pytest.raises(Refused, match="digest sent was rejected"):
        dialled(replace(invitation, key="00" * 32))
    assert reception.receive(invitation, 0.0) is None


def test_a_ticket_is_valid_once_and_not_after_it_is_cancelled(reception: Reception) -> None:
    used, cancelled = reception.invite(), reception.invite()
    with dialled(used):
        here = reception.receive(used, 20.0)
        assert here is not None
        reception.cancel(cancelled)
        for invitation in (used, cancelled):
            attended = attend(invitation)
            assert not attended.good
            assert attended.message.endswith("has ended, or does not expect this worker any more")
        here.close()


def test_a_driver_that_has_ended_is_named() -> None:
    with Reception("127.0.0.1:0") as open_reception:
        invitation = open_reception.invite()
    attended = attend(invitation)
    assert not attended.good
    assert attended.message.startswith(f"the driver at {invitation.address} cannot be reached (")
    assert "check runner.address" in attended.message


def test_a_worker_ends_when_its_driver_is_gone(reception: Reception) -> None:
    invitation = reception.invite()
    worker = start_worker(invitation)
    here = reception.receive(invitation, 30.0)
    assert here is not None
    begin(here)
    here.close()
    assert worker.wait(30.0) == 1


def test_an_address_that_is_taken_or_another_machines_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"runner.address: {taken}: this machine cannot listen there"):
            Reception(taken)
    with pytest.raises(ConfigError, match=r"an address of this machine that the workers' machines reach"):
        Reception("192.0.2.1:7070")


def examined(store: Path, *answers: object) -> NodeFinding[Node]:
    """The finding about a worker that answers the driver's questions with these."""
    here, there = Pipe()

    def answer() -> None:
        for each in answers:
            there.recv_bytes()
            there.send_bytes(json.dumps(each).encode())
        there.close()

    answering = threading.Thread(target=answer)
    answering.start()
    with survey_of(str(store), ()) as survey, here:
        finding = examine(here, survey, Node("ticket", "flow run"))
    answering.join()
    return finding


def test_a_report_of_another_version_is_a_problem_of_that_node(tmp_path: Path) -> None:
    finding = examined(tmp_path, {"host": "old", "python": "3.11.7", "colour": "blue"})
    assert finding.node.address == "old"
    assert finding.problems == ("erl-pipeline there is another version: install the same version on both",)


def test_a_worker_that_ends_without_an_answer_is_a_problem(tmp_path: Path) -> None:
    finding = examined(tmp_path)
    assert finding.problems == ("the worker gave no answer: its process ended, or the connection is lost",)
    assert finding.report is None
