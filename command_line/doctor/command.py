"""`erl-pipeline doctor`: what this machine can run, and what to do about the rest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from command_line.doctor.checks import Finding

Executable = Annotated[
    str | None,
    typer.Option(
        "--executable",
        metavar="PYTHON",
        help="Interpreter to ask for vLLM, if it is in an environment of its own.",
    ),
]


Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help="Also estimate the memory that this configuration needs."
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--sequence-tokens",
        min=1,
        metavar="N",
        help="With --config: tokens of a sequence that is being sampled, prompt and answer together.",
    ),
]


def doctor(
    config: Config = None,
    settings: Settings = None,
    sequence_tokens: Tokens = None,
    executable: Executable = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Check what this machine can run. Exit status 1 when the default configuration cannot run.

    With --config, also estimate how much memory a configuration needs, and for what; no weights are loaded.
    """
    from command_line.doctor.checks import can_run
    from command_line.doctor.diagnose import diagnose
    from command_line.doctor.memory_needed import memory_needed, print_memory
    from storage.errors import InputError

    if config is None and (settings or sequence_tokens is not None):
        raise InputError("--set and --sequence-tokens are for --config CONFIG: name a configuration")
    needed = None if config is None else memory_needed(config, settings or [], sequence_tokens)
    findings = list(diagnose(store, executable))
    able = can_run(findings)
    if json:
        shown = {"can_run": able, "findings": [asdict(finding) for finding in findings]}
        print_json(shown if needed is None else {**shown, "memory": needed.as_json()})
    else:
        print_table([_cells(finding) for finding in findings], left=("check", "verdict", "found"))
        for finding in findings:
            if finding.advice:
                print_line(f"{finding.subject}: {finding.advice}")
        if needed is not None:
            print_memory(needed)
        print_line(f"The default configuration {'can' if able else 'cannot'} run here.")
    if not able:
        raise typer.Exit(1)


def _cells(finding: Finding) -> dict[str, str]:
    return {"check": finding.subject, "verdict": finding.verdict, "found": finding.found}
