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

import uvicorn
from prefect.server.api.server import create_app
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_RETRY_AFTER_SECONDS = 0.05
_RETRY_AFTER_SECONDS_OF_MANY = 0.5


def main() -> None:
    """Serve until a signal, or until the parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    listener = socket.socket(fileno=int(sys.argv[1]))
    ephemeral = "--schedule" not in sys.argv[2:]
    # With many writers a short wait would soon fail five times, and then Prefect's client gives up.
    seconds = _RETRY_AFTER_SECONDS if ephemeral else _RETRY_AFTER_SECONDS_OF_MANY
    app = retry_soon(create_app(ephemeral=ephemeral, final=True), seconds)
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
