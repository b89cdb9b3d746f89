"""`erl-pipeline cluster doctor`: whether the nodes of a Ray cluster can compute a run together."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from flows.ray.nodes import NodeFinding

Config = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]", help="Also check the plug-ins and resources that this configuration needs."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="The cluster's head, instead of runner.address."),
]


def doctor(
    config: Config = None,
    address: Address = None,
    settings: Settings = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Examine every node of a Ray cluster, as a run does before it starts. Exit status 2 when something is
    wrong."""
    findings = _findings(config, address, settings or [], store)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([_cells(finding) for finding in findings], left=("node", "host", "verdict"))
    wrong = [(finding.node, problem) for finding in findings for problem in finding.problems]
    for node, problem in wrong:
        print(f"node {node.address}: {problem}", file=sys.stderr)
    if wrong:
        raise typer.Exit(2)
    if not json:
        print_line("The nodes can compute together.")


def _findings(config: Path | None, address: str | None, settings: list[str], store: str) -> list[NodeFinding]:
    from pydantic import ValidationError

    from erl_pipeline.config.explain import explain
    from erl_pipeline.config.loading import load_config
    from erl_pipeline.plan.sources import code_packages
    from flows.ray.settings import RayConfig
    from flows.ray.survey import examine
    from storage.errors import InputError

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
    resources = resolved.resources
    return examine(
        resolved.runner, store, packages, resources.devices, resources.threads, resolved.nodes_to_find
    )


def _cells(finding: NodeFinding) -> dict[str, str]:
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
