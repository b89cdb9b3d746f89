"""`erl-pipeline doctor`: what this machine can run, and what to do about the rest."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from command_line.doctor.finding import Finding

Executable = Annotated[
    str | None,
    typer.Option(
        "--executable",
        metavar="PYTHON",
        help="Interpreter to ask for vLLM, where it lives in an environment of its own.",
    ),
]


def doctor(store: Store = DEFAULT_STORE, executable: Executable = None, json: Json = False) -> None:
    """Say what this machine can run. Exit status 1 when the default configuration cannot."""
    from command_line.doctor.diagnose import diagnose
    from command_line.doctor.finding import can_run

    findings = list(diagnose(store, executable))
    able = can_run(findings)
    if json:
        print_json({"can_run": able, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table([_cells(finding) for finding in findings], left=("check", "verdict", "found"))
        for finding in findings:
            if finding.advice:
                print_line(f"{finding.subject}: {finding.advice}")
        print_line(f"The default configuration {'can' if able else 'cannot'} run here.")
    if not able:
        raise typer.Exit(1)


def _cells(finding: Finding) -> dict[str, str]:
    return {"check": finding.subject, "verdict": finding.verdict, "found": finding.found}
