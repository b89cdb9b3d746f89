"""`erl-pipeline train`: begins a run, or continues it after any interruption."""

from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ConfigFile, Json, LastIteration, Settings, Store

Name = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the run, instead of the configuration's.")
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Check every artifact of the run from its start, and make damaged ones again."
    ),
]
NoPrefect = Annotated[
    bool,
    typer.Option(
        "--no-prefect", help="Call the stages in this process, without Prefect: `runner: in_process`."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be reused and computed, as `plan` does.")
]


def train(
    config: ConfigFile,
    store: Store = DEFAULT_STORE,
    name: Name = None,
    iterations: LastIteration = None,
    settings: Settings = None,
    no_prefect: NoPrefect = False,
    check: Check = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a policy. A run that was stopped or killed continues from what it had committed.

    It continues after the newest complete iteration, and checks only the artifacts that it reads.
    `lineage verify` checks all artifacts, and `--check` makes damaged ones again.
    """
    from command_line.plan.making import plan_of_config
    from command_line.plan.showing import show_plan
    from command_line.train.run import train_until
    from erl_pipeline.config.loading import load_config

    resolved = load_config(
        config,
        [*(settings or []), *(["runner={type: in_process}"] if no_prefect else [])],
        {} if name is None else {"--name": ("name", name)},
    )
    target = iterations or resolved.iterations
    if dry_run:
        show_plan(plan_of_config(resolved, store, target), json)
    else:
        train_until(resolved, store, target, check, json)
