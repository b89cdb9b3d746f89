"""The program of the local Prefect server: `python -m flows.server_process FILE_DESCRIPTOR [--schedule]`.

It serves Prefect's API on a listening socket that it inherits. It ends when its standard input ends: the
parent holds the other end, so the server cannot outlive it, however the parent ends. With `--schedule` it
also has Prefect's page and the services that make flow runs by schedules.
"""

import logging
import os
import socket
import sys
import threading
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from erl_pipeline.garbage import search_seldom
from erl_pipeline.network import interface_of, own_names

_RETRY_AFTER_SECONDS = 0.05
_RETRY_AFTER_SECONDS_OF_MANY = 0.5


def main() -> None:
    """Serve until a signal, or until the parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    search_seldom()
    from prefect.server.api.server import create_app  # takes seconds

    listener = socket.socket(fileno=int(sys.argv[1]))
    ephemeral = "--schedule" not in sys.argv[2:]
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

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] in ("http", "websocket") else Headers()
        origin = headers.get("origin")
        if origin is None or is_own_page(origin, headers.get("host", "")):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:
            refused = PlainTextResponse(f"pages of {origin} may not use this server\n", 403)
            await refused(scope, receive, send)

    return guarded


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page of an origin belongs to the server that it asks by this `Host`. Both have to name this
    machine, since anybody can make a name of their own lead to it. PREFECT_UI_API_URL can name a proxy."""
    try:
        page, server = urlsplit(origin), urlsplit(f"//{host}")
        return page.port == server.port and all(_names_this_server(each.hostname) for each in (page, server))
    except ValueError:
        return False


def _names_this_server(name: str | None) -> bool:
    if name is None:
        return False
    listening = os.environ.get("PREFECT_SERVER_API_HOST")
    proxy = urlsplit(os.environ.get("PREFECT_UI_API_URL", "")).hostname
    if name in own_names() or name in (listening, proxy):
        return True
    try:
        return bool(interface_of(name))
    except (OSError, ValueError):
        return False


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
