"""`erl-pipeline env qualify`: examine an environment before anything is trained on it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, ConfigFile, Json, Settings, Store
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.runs.qualification import Qualified

Tasks = Annotated[int, typer.Option("--tasks", min=2, metavar="N", help="Tasks that are attempted.")]
Answers = Annotated[
    int, typer.Option("--answers", min=0, metavar="M", help="Hostile answers, over all tasks together.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="The run's seed, for the tasks too; default: the configuration's."),
]


def qualify(
    config: ConfigFile,
    tasks: Tasks = 100,
    answers: Answers = 1000,
    seed: Seed = None,
    settings: Settings = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Examine an environment, and keep the result as an artifact. Exit status 1 when a check failed.

    The same examination of the same code is not done again; another --seed is another examination.
    """
    from command_line.foreground import in_foreground
    from erl_pipeline.config.loading.load import load_config
    from erl_pipeline.runs.qualification import qualify_environment

    resolved = load_config(config, settings or [], {} if seed is None else {"--seed": ("seed", seed)})
    qualified = in_foreground(
        f"Examining environment {resolved.environment.type} of {shlex.quote(str(config))}",
        resolved.iterations,
        resolved,
        lambda display, stop: qualify_environment(resolved, store, tasks, answers, display, stop.event),
        lambda: "Stopped; nothing is kept of this examination.",
    )
    if json:
        print_json(_as_json(qualified))
    else:
        _print(qualified)
    if qualified.qualification.failed:
        raise typer.Exit(1)


def _print(qualified: Qualified) -> None:
    found, outcome = qualified.qualification, qualified.outcome
    print_table(
        [
            {
                "check": check.name,
                "result": check.verdict,
                "looked at": f"{check.counted:,} {check.unit}",
                "first counter-example, or why not": check.problem,
            }
            for check in found.checks
        ],
        left=("check", "result", "first counter-example, or why not"),
    )
    verdict = f"NOT qualified: {', '.join(found.failed)}" if found.failed else "qualified"
    known = "found committed" if outcome.reused else f"{outcome.seconds:.1f} s"
    slowest = outcome.metrics["slowest_call_seconds"]
    print_line(f"Environment {found.environment} is {verdict}.")
    print_line(
        f"Artifact {outcome.artifact_id[:12]} ({known}); the slowest call took {slowest * 1000:.1f} ms."
    )


def _as_json(qualified: Qualified) -> dict[str, Any]:
    from dataclasses import asdict

    found, outcome = qualified.qualification, qualified.outcome
    return {
        "environment": found.environment,
        "qualified": not found.failed,
        "artifact_id": outcome.artifact_id,
        "reused": outcome.reused,
        "checks": [asdict(check) for check in found.checks],
        "counters": dict(outcome.counters),
        "metrics": dict(outcome.metrics),
    }
