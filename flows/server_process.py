"""The program of the local Prefect server: `python -m flows.server_process [FILE_DESCRIPTOR [--schedule]]`.

It serves Prefect's API on a listening socket that it inherits. It ends when its standard input ends: the
parent holds the other end, so the server cannot outlive it, however the parent ends. With `--schedule` it
also has Prefect's page and the services that make flow runs by schedules.

Without arguments it serves all of that, as `prefect server start` does, until a signal, where
PREFECT_SERVER_API_HOST and PREFECT_SERVER_API_PORT say.
"""

import logging
import os
import socket
import sys
import threading
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import uvicorn
from prefect.settings import get_current_settings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from erl_pipeline.garbage import search_seldom
from erl_pipeline.network import interface_of, is_address, is_loopback, listen, own_names, reason

_RETRY_AFTER_SECONDS = 0.05
_RETRY_AFTER_SECONDS_OF_MANY = 0.5


def main() -> None:
    """Serve until a signal, or until the parent is gone."""
    is_child = len(sys.argv) > 1
    if is_child:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    search_seldom()
    from prefect.server.api.server import create_app  # takes seconds

    if is_child:
        listener = socket.socket(fileno=int(sys.argv[1]))
    else:
        place = get_current_settings().server.api
        try:
            listener = listen(place.host, place.port)
        except OSError as error:
            sys.exit(
                f"no server can listen on {place.host}, port {place.port} ({reason(error)}); choose another "
                "place by PREFECT_SERVER_API_HOST and PREFECT_SERVER_API_PORT"
            )
    ephemeral = is_child and "--schedule" not in sys.argv[2:]
    # With many writers a short wait would soon fail five times, and then Prefect's client gives up.
    seconds = _RETRY_AFTER_SECONDS if ephemeral else _RETRY_AFTER_SECONDS_OF_MANY
    app = only_own_pages(retry_soon(create_app(ephemeral=ephemeral, final=True), seconds))
    logging.getLogger("docket.dependencies").addFilter(_no_retry_notice)
    config = uvicorn.Config(
        app,
        log_level="warning",
        timeout_graceful_shutdown=2,
        # Else each event of a task run is compressed by the driver and uncompressed here.
        ws_per_message_deflate=False,
    )
    uvicorn.Server(config).run([listener])


def retry_soon(app: ASGIApp, seconds: float) -> ASGIApp:
    """Wrap an app so that it tells clients to retry after `seconds` when SQLite was busy.

    When two writers meet in SQLite, Prefect's server answers 503, and its client waits for two seconds. That
    happens often, but the lock is held only for milliseconds.
    """

    async def with_header(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                message["headers"] = [*message.get("headers", []), (b"retry-after", str(seconds).encode())]
            await send(message)

        await app(scope, receive, send_with_header)

    return with_header


def only_own_pages(app: ASGIApp) -> ASGIApp:
    """Wrap an app so that only its own pages can use it, and clients that are no browsers.

    A browser lets every page ask servers of this machine, Prefect's server allows all pages to read the
    answers, and a flow run that one of them made may name any command for the worker to start.
    """
    own = own_places()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(Headers(scope=scope), own) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    return guarded


@dataclass(frozen=True)
class Places:
    """How this server is reached: names of hosts, without ports, and the origin at which its page asks, which
    can be a proxy's."""

    names: frozenset[str]
    public: str

    def has_host(self, host: str) -> bool:
        """Whether a `Host` names this server. Anybody can make a name of their own lead to this machine; for
        a page that did so, the browser would take the server for the page's own. Nobody can do it with a
        number."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.names or is_address(name)

    def has_page(self, origin: str, host: str) -> bool:
        """Whether a page of an origin belongs to this server, which was asked by this `Host`."""
        if origin == self.public:
            return True
        try:
            page, server = urlsplit(origin), urlsplit(f"//{host}")
            if page.port != server.port or page.hostname is None:
                return False
            return page.hostname in (server.hostname, *self.names) or bool(interface_of(page.hostname))
        except (OSError, ValueError):
            return False


def own_places() -> Places:
    """By Prefect's settings, which come from the environment or from a profile."""
    settings = get_current_settings().server
    host = settings.api.host.lower()
    # To find the full name can take many seconds; who asks loopback does not use it.
    own = {"localhost", socket.gethostname().lower()} if is_loopback(host) else own_names()
    public = urlsplit(settings.ui.api_url or "")
    return Places(frozenset({host, *own, public.hostname or host}), _origin(public))


def _origin(url: SplitResult) -> str:
    """As browsers write it: without the port that a scheme has by default."""
    usual = {"http": ":80", "https": ":443"}.get(url.scheme, "")
    return f"{url.scheme}://{url.netloc.lower().removesuffix(usual)}"


def _refusal(headers: Headers, own: Places) -> Response | None:
    host, origin = headers.get("host", ""), headers.get("origin")
    if not own.has_host(host):
        answer = f"this server does not answer to the name {host!r}, unless PREFECT_UI_API_URL has it\n"
        return PlainTextResponse(answer, 421)
    if origin is None or own.has_page(origin, host):
        return None
    return PlainTextResponse(f"pages of {origin} may not use this server\n", 403)


def _no_retry_notice(record: logging.LogRecord) -> bool:
    """Drop the log record of a worker's poll that met another writer in SQLite: Prefect retries it half a
    second later.

    Each record has two tracebacks, and there would be several a minute for months.
    """
    return "mark_deployments_ready" not in record.getMessage()


def _end_with_parent() -> None:
    while os.read(0, 1):
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
