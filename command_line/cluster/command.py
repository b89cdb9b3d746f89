"""`erl-pipeline cluster|trainer-node`: the machines that a run is computed on."""

import os
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import print_json, print_line, print_table
from flows.signals import call_beside_signals

Config = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]", help="Also check the plug-ins and resources that this configuration needs."
    ),
]
Head = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The cluster's head, instead of runner.address.")
]


def doctor(
    config: Config = None,
    address: Head = None,
    settings: Settings = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Examine every node of a Ray cluster, as a run does before it starts. Exit status 2 when something is
    wrong."""
    from command_line.cluster.nodes import examine_nodes, node_cells

    findings = examine_nodes(config, address, settings or [], store)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([node_cells(finding) for finding in findings], left=("node", "host", "verdict"))
    wrong = [(finding.node, problem) for finding in findings for problem in finding.problems]
    for node, problem in wrong:
        print(f"node {node.address}: {problem}", file=sys.stderr)
    if wrong:
        raise typer.Exit(2)
    if not json:
        print_line("The nodes can compute together.")


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


app = typer.Typer(help="The machines that a run is computed on.", no_args_is_help=True)
app.command("doctor")(doctor)


@app.callback()
def _group() -> None:
    """Makes a group of a single command."""
