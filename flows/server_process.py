"""The program of the local Prefect server: `python -m flows.server_process FILE_DESCRIPTOR`.

It serves Prefect's API on a listening socket that it inherits, and ends when its standard input does:
the parent holds the other end, so the server cannot outlive it, however the parent ends.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

import uvicorn
from prefect.server.api.server import create_app
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_RETRY_AFTER_SECONDS = b"0.05"


def main() -> None:
    """Serve until told to stop or left alone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    listener = socket.socket(fileno=int(sys.argv[1]))
    app = retry_soon(create_app(ephemeral=True, final=True))
    uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)).run([listener])


def retry_soon(app: ASGIApp) -> ASGIApp:
    """Tell clients to come again at once where SQLite was busy.

    Two writers that meet in SQLite make Prefect's server answer 503, and its client then waits for two
    seconds, which a subflow per iteration meets again and again. The lock is held for milliseconds.
    """

    async def with_header(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                message["headers"] = [*message.get("headers", []), (b"retry-after", _RETRY_AFTER_SECONDS)]
            await send(message)

        await app(scope, receive, send_with_header)

    return with_header


def _end_with_parent() -> None:
    while os.read(0, 1):
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
