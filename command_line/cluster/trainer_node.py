"""`erl-pipeline trainer-node`: this machine takes part in the training of runs on another machine."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import Annotated

import typer

Where = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="`trainer.address` of the runs: where they train.")
]
KeyVariable = Annotated[
    str,
    typer.Option(
        "--key-variable",
        metavar="NAME",
        help="Environment variable with the secret; `trainer.key_variable` of the runs.",
    ),
]


def trainer_node(address: Where, key_variable: KeyVariable = "ERL_PIPELINE_TRAINER_KEY") -> None:
    """Start ranks here for runs that train on several machines (`trainer.nodes`), until Ctrl-C.

    The machine that computes the stage tells how many, what they train, and when they end.
    """
    import threading

    from erl_pipeline.network import Address
    from erl_pipeline.trainers.fsdp2.line import key_from
    from erl_pipeline.trainers.fsdp2.node import serve
    from flows.signals import call_beside_signals

    def tell(line: str) -> None:
        print(f"{datetime.now():%H:%M:%S}  {line}", file=sys.stderr, flush=True)

    try:
        place = Address.parse(address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    key = key_from(os.environ, key_variable, "--key-variable")
    stop, signals = threading.Event(), list[int]()

    def end(number: int) -> None:
        signals.append(number)
        stop.set()

    call_beside_signals(lambda: serve(place, key, tell, stop), end)
    tell("Ended; no rank is left here.")
    raise typer.Exit(128 + signals[0])
