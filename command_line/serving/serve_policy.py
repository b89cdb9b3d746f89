"""`erl-pipeline serve-policy`: a stored run's checkpoint behind an address that OpenAI's clients talk to."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from command_line.interruption import StopRequest, call_interruptibly
from command_line.options import DEFAULT_STORE, ExistingStore, RunName, ServingConfig

Alias = Annotated[str, typer.Option(metavar="NAME", help="The alias whose checkpoint answers.")]
CanaryOption = Annotated[
    str | None,
    typer.Option(
        "--canary",
        metavar="ALIAS:SHARE",
        help="Another alias, and the share of users that it answers, such as candidate:0.05.",
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Where the server listens; 0: a free port.")]
Listen = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on. Clients need a key in any case.")
]


def serve_policy(
    run: RunName,
    alias: Alias = "production",
    canary: CanaryOption = None,
    config: ServingConfig = None,
    port: Port = 8080,
    listen: Listen = "127.0.0.1",
    store: ExistingStore = DEFAULT_STORE,
) -> None:
    """Serve a run's checkpoint behind OpenAI's API until Ctrl-C, and log what it answers and what is said
    about it.

    Calls are answered by the checkpoint that the alias means now; where it means nothing yet, it gets the
    run's latest one. A change of the alias is followed without a restart.
    """
    from erl_pipeline.serving.aliases import Canary
    from erl_pipeline.serving.serve import Serving
    from erl_pipeline.serving.serve import serve_policy as serve
    from erl_pipeline.serving.settings import load_serving_settings
    from storage.errors import Interrupted

    serving = Serving(
        store_uri=store,
        run=run,
        alias=alias,
        canary=None if canary is None else Canary.parse(canary),
        host=listen,
        port=port,
        settings=load_serving_settings(config),
    )

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    stop = StopRequest()
    with suppress(Interrupted):
        call_interruptibly(lambda: serve(serving, stop.event, tell), stop, tell, "the calls under way")
    if stop.signal_number is not None:
        tell("Stopped; no call is under way, and the log is closed.")
        raise typer.Exit(stop.exit_status)
