"""`erl-pipeline cluster|trainer-node`: the machines that a run is computed on."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import print_json, print_line, print_table
from flows.signals import call_beside_signals
from storage.errors import InputError

if TYPE_CHECKING:
    from flows.ray.nodes import NodeFinding

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
    findings = _examine_nodes(config, address, settings or [], store)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([_node_cells(finding) for finding in findings], left=("node", "host", "verdict"))
    wrong = [(finding.node, problem) for finding in findings for problem in finding.problems]
    for node, problem in wrong:
        print(f"node {node.address}: {problem}", file=sys.stderr)
    if wrong:
        raise typer.Exit(2)
    if not json:
        print_line("The nodes can compute together.")


def _examine_nodes(
    config: Path | None, address: str | None, settings: list[str], store: str
) -> list[NodeFinding]:
    """Examine each node of the cluster of a configuration, or of the cluster at an address."""
    from pydantic import ValidationError

    from erl_pipeline.config.explain import explain
    from erl_pipeline.config.loading import load_config
    from erl_pipeline.plan.sources import code_packages
    from flows.ray.settings import RayConfig
    from flows.ray.survey import examine

    if config is None:
        if settings:
            raise InputError("--set is for a configuration: name one")
        try:
            runner = RayConfig() if address is None else RayConfig(address=address)
        except ValidationError as error:
            raise InputError(f"--{'; '.join(explain(error, RayConfig, {}))}") from error
        return examine(runner, store)
    resolved = load_config(
        config, settings, {} if address is None else {"--address": ("runner.address", address)}
    )
    if not isinstance(resolved.runner, RayConfig):
        raise InputError(f"{config}: runner.type is {resolved.runner.type}; only ray has a cluster")
    packages = [each for of_owner in code_packages(resolved).values() for each in of_owner]
    return examine(resolved.runner, store, packages, resolved.resources, resolved.nodes_to_find)


def _node_cells(finding: NodeFinding) -> dict[str, str]:
    """The row of a node in the table."""
    node, report = finding.node, finding.report
    return {
        "node": node.address,
        "host": "" if report is None else report.host,
        "CPUs": f"{node.cpus:g}",
        "GPUs": f"{node.gpus:g}",
        "memory": f"{node.memory_bytes / 1e9:.1f} GB",
        "Python": "" if report is None else report.python,
        "code": "" if report is None else report.code,
        "clock": "" if report is None else f"{finding.clock_offset * 1000:+.0f} ms",
        "verdict": "problem" if finding.problems else "ok",
    }


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
