"""Access to the page: only requests to this server's own address, from its own pages, that only read; its
socket, and the limits of a connection to it."""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from urllib.parse import parse_qsl, urlencode, urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from erl_pipeline.network import is_address, is_loopback, own_names
from storage.errors import InputError

TOKEN = "token"
"""The parameter of the printed address that holds the token; it becomes a cookie and is then dropped."""

LONGEST_ADDRESS = 8192
"""Bytes of a path and its parameters; no form of the page sends more."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_READING = ("GET", "HEAD")


@dataclass(frozen=True)
class Access:
    """How the server may be reached.

    `names` are the host names, without ports, to which requests may be made. With `any_address` every IP
    address is allowed too, for a server that listens on all addresses of a machine. With a `token` each
    request needs it in a cookie.
    """

    names: frozenset[str]
    any_address: bool = False
    token: str | None = None

    def allows_host(self, host: str) -> bool:
        """Whether a `Host` header names this server. A name of another site that resolves to this machine is
        refused."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.names or (self.any_address and is_address(name))


def access_for(host: str) -> Access:
    """The rules for a server that listens at an address: loopback is open to this machine's users, any other
    address needs a token, which is made here."""
    if is_loopback(host):
        return Access(frozenset({"localhost", "127.0.0.1", "::1", host.lower()}))
    wildcard = is_address(host) and ipaddress.ip_address(host).is_unspecified
    return Access(own_names() | {host.lower()}, any_address=wildcard, token=secrets.token_urlsafe(32))


class Guard:
    """Refuses requests by the rules of `Access`, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._entrance(scope) or self.app
        await answer(scope, receive, send_protected)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _READING:
            return _plain("This page only shows things; it takes no request that could change one.", 405)
        if len(scope["raw_path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            return _plain(f"This address is longer than {LONGEST_ADDRESS:,} bytes.", 414)
        host = headers.get("host", "")
        if not self._access.allows_host(host):
            return _plain("This server does not answer to that host name.", 421)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return _plain("Requests from pages of other sites are refused.", 403)
        # Links from other sites are allowed; scripts and frames of other sites may not read anything.
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return _plain("Requests from pages of other sites are refused.", 403)
        return None

    def _entrance(self, scope: Scope) -> Response | None:
        """For a server with a token: the response to a request without the right cookie; else None."""
        token = self._access.token
        if token is None:
            return None
        if _same(_cookie(Headers(scope=scope), token), token):
            return None
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == TOKEN and _same(value, token) for name, value in given):
            return _plain(
                "Open this page by the address, with its token, that `erl-pipeline ui` printed.", 401
            )
        rest = urlencode([(name, value) for name, value in given if name != TOKEN])
        answer = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), status_code=303)
        # Not "strict": then browsers send none with a link in a mail or a chat.
        answer.set_cookie(cookie_name(token), token, httponly=True, samesite="lax", path="/")
        return answer


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status_code=status)


def cookie_name(token: str) -> str:
    """Of the cookie that holds a token. Browsers share cookies among the ports of a machine, so pages with
    other tokens need others."""
    return f"erl_pipeline_token_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _cookie(headers: Headers, token: str) -> str:
    # Other programs of this host may have set cookies that Python's own parser cannot read.
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(token), "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


REQUEST_SECONDS = 10.0
"""Most seconds from the first byte of a request, or from the connection, to the request's end: the page takes
no body, so one has no time of its own."""
ANSWER_SECONDS = 60.0
"""Most seconds in which a client takes nothing of what was written for it."""
MOST_CONNECTIONS = 256
"""With more, the connection on which nothing has been asked, or taken, for longest is closed."""


class LimitedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, but a client that never sends its whole request, or takes no answers, cannot
    stay."""

    _deadline: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # So `pause_writing` is called wherever a client has not taken all. An end of the connection too waits
        # for what it has not taken.
        transport.set_write_buffer_limits(high=0)
        self._await_request()
        if len(self.connections) > MOST_CONNECTIONS:
            # Also one that is kept after an answer: else clients that ask now and then would fill all places.
            silent = [
                (since, each)
                for each in self.connections
                if isinstance(each, LimitedProtocol) and (since := each._silent_since()) is not None
            ]
            min(silent, key=itemgetter(0))[1]._end_for_another()

    def data_received(self, data: bytes) -> None:
        self._await_request()
        super().data_received(data)

    def handle_events(self) -> None:
        """Called for what was received, and after an answer for a request that was received meanwhile."""
        super().handle_events()
        if self.conn.their_state is h11.SEND_BODY:
            self._await_request()
        elif self.conn.their_state is not h11.IDLE:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        # No browser sends a request before it has the answer to the last one, and many of them would keep the
        # connection from being closed for a newer one.
        if self.conn.trailing_data[0]:
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._untaken is None:
            self._await_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_writing()
        super().connection_lost(exc)

    def _silent_since(self) -> float | None:
        """The time of the connection, of the first byte of its request, of the first byte that its client has
        not taken, or of its last answer; None while a request is answered, or when it is ending."""
        if self._untaken is not None:
            return self._untaken.when() - ANSWER_SECONDS
        if self.transport.is_closing():
            return None
        if self._deadline is not None:
            return self._deadline.when() - REQUEST_SECONDS
        kept = self.timeout_keep_alive_task
        return None if kept is None else kept.when() - self.timeout_keep_alive

    def _await_request(self) -> None:
        if self._deadline is None:
            # Not `close`, which waits for a client that reads nothing.
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _await_taking(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._untaken = self.loop.call_later(ANSWER_SECONDS, self._look_what_was_taken, left)

    def _look_what_was_taken(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._await_taking()
        else:
            self.transport.abort()

    def _end_for_another(self) -> None:
        self._stop_writing()  # Else it would be chosen again until the loop tells that it has ended.
        self.transport.abort()

    def _stop_writing(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket; port 0 takes a free one.

    Raises InputError, which says what to do, if the server cannot listen on this address.
    """
    if not host:  # else all addresses, none of which could be printed
        raise InputError("no address is given by --host; 0.0.0.0 is every address of this machine.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}, port {port}: {error.strerror}. Choose another --port, or 0 for a "
                "free one, or another --host."
            ) from error
        listener.listen(128)
        yield listener
