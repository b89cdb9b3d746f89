"""The line between two nodes: what it carries, and whom it trusts."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from erl_pipeline.trainers.fsdp2.line import Line, LineEnded, OtherKey
from tests.strangers import SAID, seconds_until_dropped

ONE, OTHER = b"one key of sixteen", b"another of sixteen"


@pytest.fixture
def ends() -> Iterator[tuple[Line, Line]]:
    """The stage's end and the node's end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = Line(socket.create_connection(server.getsockname()))
        stage = Line(server.accept()[0])
    yield stage, node
    stage.close()
    node.close()


def test_words_and_many_bytes_arrive_once_both_have_shown_their_key(ends: tuple[Line, Line]) -> None:
    stage, node = ends
    data = bytes(range(256)) * 20_000  # 5 MB, more than one piece

    def introduce() -> None:
        node.introduce(ONE)
        node.send({"a": [1, "é"]}, data)

    introducing = threading.Thread(target=introduce)
    introducing.start()
    stage.greet(ONE)
    words, found = stage.receive()
    assert words == {"a": [1, "é"]}
    assert bytes(found) == data
    introducing.join()
    node.close()
    with pytest.raises(LineEnded, match="it has closed the connection"):
        stage.receive()


def test_both_ends_refuse_another_key(ends: tuple[Line, Line]) -> None:
    stage, node = ends
    found = list[str]()

    def introduce() -> None:
        with pytest.raises(OtherKey):
            node.introduce(OTHER)
        found.append("refused")

    introducing = threading.Thread(target=introduce)
    introducing.start()
    with pytest.raises(OtherKey, match=r"127\.0\.0\.1 has another key"):
        stage.greet(ONE)
    introducing.join()
    assert found == ["refused"]


def test_a_stage_that_only_repeats_what_the_node_said_is_not_trusted(ends: tuple[Line, Line]) -> None:
    stage, node = ends
    found = list[str]()

    def introduce() -> None:
        with pytest.raises(OtherKey):
            node.introduce(ONE)
        found.append("refused")

    introducing = threading.Thread(target=introduce)
    introducing.start()
    stage.send({"protocol": "erl-pipeline trainer-node 1", "nonce": "0" * 64})
    said, _ = stage.receive()
    stage.send({"proof": said["proof"]})
    introducing.join()
    assert found == ["refused"]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\0\0\0\2" + bytes(8) + b"[]",
        b"\0\0\0\2" + bytes(8) + b"{]",
        b"\0\0\0\2" + bytes(8) + b"{}",
    ],
)
def test_another_protocol_is_not_listened_to(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stranger = socket.create_connection(server.getsockname())
        stage = Line(server.accept()[0])
    stranger.sendall(said)
    with pytest.raises(LineEnded, match="it speaks another protocol"):
        stage.greet(ONE)
    stage.close()
    stranger.close()


def framed(text: str) -> bytes:
    words = text.encode()
    return struct.pack("!IQ", len(words), 0) + words


GREETING = '{"protocol": "erl-pipeline trainer-node 1", "nonce": "00"}'
HOSTILE = [
    framed("[" * 4000),
    framed('{"a":' * 800),
    framed(r'{"nonce": "\ud800", "proof": "00"}'),
    framed(r'{"nonce": "00", "proof": "\ud800"}'),
    framed('{"nonce": "00", "proof": 7}'),
    framed('{"nonce": ["00"], "proof": "00"}'),
    framed('{"nonce": "00", "proof": "' + "0" * 64 + '"}'),
    framed(r'{"protocol": "erl-pipeline trainer-node 1", "nonce": "\ud800"}'),
    framed(GREETING) + framed(r'{"proof": "\udfff"}'),
    framed(GREETING) + framed('{"proof": ""}'),
    framed(GREETING) + framed("[" * 4000),
    struct.pack("!IQ", 3, 2**63) + b"{} ",
    *(struct.pack("!IQ", len(said), 0) + said for said in SAID),
    *SAID,
]


@pytest.mark.parametrize("said", HOSTILE)
@pytest.mark.parametrize("role", ["stage", "node"])
def test_nothing_that_a_stranger_sends_does_more_than_end_its_line(role: str, said: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as stranger,
    ):
        line = Line(server.accept()[0])
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        with pytest.raises(LineEnded):
            line.greet(ONE) if role == "stage" else line.introduce(ONE)
        line.close()


def test_the_whole_greeting_has_one_limit_of_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as others:
        dropped = others.submit(seconds_until_dropped, *server.getsockname())
        line = Line(server.accept()[0], seconds=0.1)
        with pytest.raises(LineEnded, match=r"in time|timed out"):
            line.greet(ONE)
        line.close()
        assert dropped.result() < 10.0
