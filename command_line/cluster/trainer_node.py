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


def trainer_node(address: Where) -> None:
    """Start ranks here for runs that train on several machines (`trainer.nodes`), until Ctrl-C.

    The machine that computes the stage tells how many, what they train, and when they end.
    """
    # torch writes long traces of a store that is gone, as it is after every training.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import threading

    from erl_pipeline.network import Address
    from erl_pipeline.trainers.fsdp2.nodes import serve
    from flows.signals import call_beside_signals

    def tell(line: str) -> None:
        print(f"{datetime.now():%H:%M:%S}  {line}", file=sys.stderr, flush=True)

    try:
        place = Address.parse(address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    stop, signals = threading.Event(), list[int]()

    def end(number: int) -> None:
        signals.append(number)
        stop.set()

    call_beside_signals(lambda: serve(place, tell, stop), end)
    tell("Ended; no rank is left here.")
    raise typer.Exit(128 + signals[0])
