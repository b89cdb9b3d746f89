"""The line between the machine that computes a stage and another node of its trainer.

JSON with bytes behind it, over TCP. Both ends first show each other that they know the same key, which is
never sent. Until then nothing that the other sends can do more than end its own line, and all must be said
within a few seconds. What follows is neither encrypted nor signed, as little as what torch sends between the
nodes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from erl_pipeline.network import notice_silence
from storage.errors import ConfigError

_HEAD = struct.Struct("!IQ")
_PIECE = 1 << 20
_STALL_SECONDS = 30.0
_SILENCE_SECONDS = 10
_GREETING_SECONDS = 5.0
_GREETING_BYTES = 4096
_PROTOCOL = "erl-pipeline trainer-node 1"
_KEY_CHARACTERS = 16


class LineEnded(Exception):
    """The other end has closed the line, is gone, or says what nobody expects."""


class OtherKey(LineEnded):
    """The other end does not know the key."""


def key_from(environment: Mapping[str, str], variable: str, setting: str) -> bytes:
    """The key in an environment variable. Raises ConfigError, which names the setting, where it has none, or
    one that is easily guessed."""
    key = environment.get(variable, "")
    if len(key) < _KEY_CHARACTERS:
        what = f"has fewer than {_KEY_CHARACTERS} characters" if key else "is not set"
        raise ConfigError(
            f"{setting}: the environment variable {variable} {what}. Set it to the same secret on all nodes; "
            "`python -c 'import secrets; print(secrets.token_hex(32))'` makes one"
        )
    return key.encode()


class Line:
    """One end of the line.

    Args:
        seconds: within which both ends must have shown their key.
    """

    def __init__(self, connection: socket.socket, seconds: float = _GREETING_SECONDS) -> None:
        notice_silence(connection, _SILENCE_SECONDS)
        self._connection = connection
        self._until: float | None = time.monotonic() + seconds
        self._most: int | None = _GREETING_BYTES
        self.own, self.peer = (str(name[0]) for name in (connection.getsockname(), connection.getpeername()))
        """Numbers of the two machines."""

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, words: dict[str, Any], data: bytes = b"") -> None:
        """Send words and bytes. Raises LineEnded."""
        text = json.dumps(words).encode()
        try:
            self._limit_time()
            self._connection.sendall(_HEAD.pack(len(text), len(data)) + text)
            # The limit of time is for one call, and large data take longer.
            for begin in range(0, len(data), _PIECE):
                self._connection.sendall(memoryview(data)[begin : begin + _PIECE])
        except OSError as error:
            raise LineEnded(str(error)) from error

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        """Wait for words and bytes. Raises LineEnded."""
        words, data = _HEAD.unpack(self._exactly(_HEAD.size))
        if self._most is not None and words + data > self._most:
            raise LineEnded("it speaks another protocol")
        try:
            found = json.loads(self._exactly(words))
        except (ValueError, RecursionError) as error:
            raise LineEnded("it speaks another protocol") from error
        if not isinstance(found, dict):
            raise LineEnded("it speaks another protocol")
        return found, self._exactly(data)

    def greet(self, key: bytes) -> None:
        """Be the stage's end: let the other show that it knows the key, then show it too. Raises LineEnded,
        and OtherKey where the other end is a node with another key."""
        nonce = secrets.token_hex(32)
        self.send({"protocol": _PROTOCOL, "nonce": nonce})
        answer, _ = self.receive()
        theirs, shown = _word(answer, "nonce"), _word(answer, "proof")
        knows = hmac.compare_digest(_proof(key, "node", nonce, theirs), shown.encode())
        self.send({"proof": _proof(key, "stage", nonce, theirs).decode() if knows else ""})
        if not knows:
            raise OtherKey(f"{self.peer} has another key")
        self._trust()

    def introduce(self, key: bytes) -> None:
        """Be the node's end; otherwise as `greet`."""
        greeting, _ = self.receive()
        if greeting.get("protocol") != _PROTOCOL:
            raise LineEnded("it speaks another protocol")
        theirs, nonce = _word(greeting, "nonce"), secrets.token_hex(32)
        self.send({"nonce": nonce, "proof": _proof(key, "node", theirs, nonce).decode()})
        answer, _ = self.receive()
        shown = _word(answer, "proof")
        if not hmac.compare_digest(_proof(key, "stage", theirs, nonce), shown.encode()):
            raise OtherKey(f"{self.peer} has another key")
        self._trust()

    def _trust(self) -> None:
        self._most = self._until = None
        self._connection.settimeout(_STALL_SECONDS)

    def _limit_time(self) -> None:
        """Let the next operation take no longer than is left for the greeting. Raises LineEnded."""
        if self._until is None:
            return
        left = self._until - time.monotonic()
        if left <= 0:
            raise LineEnded("it has not shown its key in time")
        self._connection.settimeout(left)

    def _exactly(self, size: int) -> bytearray:
        found = bytearray(size)
        view, there = memoryview(found), 0
        while there < size:
            self._limit_time()
            try:
                count = self._connection.recv_into(view[there:])
            except OSError as error:
                raise LineEnded(str(error)) from error
            if not count:
                raise LineEnded("it has closed the connection")
            there += count
        return found


def _word(said: Mapping[str, Any], name: str) -> str:
    """A nonce or a proof that the other end has sent. Raises LineEnded."""
    word = said.get(name)
    if not isinstance(word, str) or not word.isascii():
        raise LineEnded("it speaks another protocol")
    return word


def _proof(key: bytes, role: str, *nonces: str) -> bytes:
    text = "\0".join((_PROTOCOL, role, *nonces))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest().encode()
