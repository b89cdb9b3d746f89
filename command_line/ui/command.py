"""`erl-pipeline ui`: serves a page that shows a store."""

import sys
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ExistingStore

Port = Annotated[int, typer.Option(min=0, max=65535, help="Where the page listens; 0: a free port.")]
Host = Annotated[
    str,
    typer.Option(help="Address to listen on. Beyond this machine, the page asks for the token it prints."),
]


def ui(store: ExistingStore = DEFAULT_STORE, port: Port = 4300, host: Host = "127.0.0.1") -> None:
    """Serve a page that shows a store, until Ctrl-C: runs, episodes, memory, lineage. It only reads."""
    import uvicorn

    from command_line.ui.access import TOKEN, LimitedProtocol, access_for, listen
    from command_line.ui.app import create_app

    access = access_for(host)
    app = create_app(store, access)
    with listen(host, port) as listener:
        bound = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        token = "" if access.token is None else f"?{TOKEN}={access.token}"
        print(f"Page: http://{shown}:{bound}/{token}", file=sys.stderr, flush=True)
        if access.token is not None:
            print("Whoever has this address can read the whole store.", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            app, http=LimitedProtocol, log_level="warning", access_log=False, server_header=False
        )
        # Live streams stay open for hours; Ctrl-C must not wait for them.
        config.timeout_graceful_shutdown = 1
        uvicorn.Server(config).run(sockets=[listener])
