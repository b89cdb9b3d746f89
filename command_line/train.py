"""`erl-pipeline train`: begins a run, or continues it after any interruption."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, ConfigFile, Json, Settings, Store
from command_line.output import command, counted, print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import Plan
    from erl_pipeline.runs.driver import OpenRun
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import Run


Iterations = Annotated[
    int | None,
    typer.Option("--iterations", min=1, metavar="N", help="Last iteration, instead of the configuration's."),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the run, instead of the configuration's."),
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
    iterations: Iterations = None,
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
    from command_line.run_state import find_finished_run
    from erl_pipeline.config.loading import load_config
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.verification import mend_run

    resolved = load_config(
        config,
        [*(settings or []), *(["runner={type: in_process}"] if no_prefect else [])],
        {} if name is None else {"--name": ("name", name)},
    )
    target = iterations or resolved.iterations
    if dry_run:
        from command_line.plan.command import show_plan
        from command_line.plan.making import plan_of_config

        show_plan(plan_of_config(resolved, store, target), None, json)
        return
    for damage in (
        mend_run(ArtifactStore(store), resolved.name, resolved.model_dump(mode="json")) if check else ()
    ):
        print(f"Made again: {damage}", file=sys.stderr)
    finished = None if check else find_finished_run(resolved, store, target)
    if finished is not None:
        print(
            f"Run {finished.name} is finished: it has {counted(target, 'iteration')}, all committed.",
            file=sys.stderr,
        )
    else:
        _work(resolved, store, target, check)
    _conclude(finished or RunStore(store).open(resolved.name), store, target, finished is None, json)


def _work(config: RunConfig, store: str, target: int, check: bool) -> None:
    """Train with a progress display until the target. Raises typer.Exit when a signal stopped the work."""
    from command_line.before_training import reuse_lines, uncommitted_code, warn_of_qualification
    from command_line.foreground import work_on_run

    def work(opened: OpenRun, note: Callable[[str], None]) -> None:
        from erl_pipeline.runs.train import train as train_run

        def notify(plan: Plan) -> None:
            for line in reuse_lines(opened, plan):
                note(line)
            for line in uncommitted_code(opened.config):
                opened.listener.warn(line)
            warn_of_qualification(opened.store, opened.config, plan, note, opened.listener.warn)

        train_run(opened, target, check=check, notify=notify)

    work_on_run(config, store, target, work, lambda: _kept(config, store))


def _kept(config: RunConfig, store: str) -> str:
    from erl_pipeline.runs.state import completed_iterations
    from storage.runs.run import RunStore

    entries = RunStore(store).open(config.name).stages()
    return (
        f"Stopped. Run {config.name} is kept through iteration {completed_iterations(config, entries)}, "
        f"{counted(len(entries), 'artifact')} in all; continue with: {command(sys.argv[1:])}"
    )


def _conclude(run: Run, store: str, target: int, worked: bool, json: bool) -> None:
    """Print the newest iterations, write the report of a run that is not long, and name the commands to try
    next."""
    from erl_pipeline.evaluation.iterations import stored_rows
    from erl_pipeline.runs.config import method_columns, run_config
    from erl_pipeline.runs.state import latest_checkpoint
    from erl_pipeline.views.report.tables import MOST_ROWS, iteration_table
    from storage.artifacts.store import ArtifactStore

    artifacts = ArtifactStore(store)
    entries = run.stages()
    config = run_config(run)
    checkpoint = latest_checkpoint(config, entries)
    assert checkpoint is not None
    newest = checkpoint.iteration or 0
    columns = method_columns(config)
    shown = [entry for entry in entries if newest - (entry.iteration or 0) < MOST_ROWS]
    rows = stored_rows(artifacts, shown, columns)
    report = _report(artifacts, run, newest, worked)
    if json:
        print_json(
            {
                "run": run.name,
                "store": store,
                "iterations": target,
                "worked": worked,
                "checkpoint": checkpoint.artifact_id,
                "report": report and str(report),
                "rows": [row.plain(columns) for row in rows],
            }
        )
        return
    table = iteration_table(rows, columns)
    print_table(table.cells)
    if newest >= MOST_ROWS:
        print_line(f"The newest {counted(MOST_ROWS, 'iteration')}; `status` shows all.")
    print_line(table.legend + "\n")
    place = [] if store == DEFAULT_STORE else ["--store", store]
    tries = [
        ["status", run.name],
        ["evaluate", run.name, "--tasks", "generated"],
        *([["memory", "list", run.name]] if any(entry.kind == "memory" for entry in entries) else []),
        ["lineage", "show", run.name, checkpoint.artifact_id[:12]],
    ]
    if report is None:
        tries.append(["report", run.name])
    else:
        print_line(f"Report: {report}")
    print_line("Try next:")
    for words in tries:
        print_line("  " + command([*words, *place]))
    print_line("  " + command([*_without("--iterations", sys.argv[1:]), "--iterations", str(target + 10)]))


def _without(option: str, words: Sequence[str]) -> list[str]:
    """A command line without an option that has a value."""
    return [
        word
        for place, word in enumerate(words)
        if word != option and not word.startswith(f"{option}=") and words[max(0, place - 1)] != option
    ]


def _report(artifacts: ArtifactStore, run: Run, newest: int, worked: bool) -> Path | None:
    """The run's report, renewed if anything was trained or it is missing; None for a run that is too long."""
    from command_line.run_state import run_folder
    from erl_pipeline.runs.state import renew_report

    report = run_folder(artifacts.uri, run.name) / "report.html"
    return report if report.exists() and not worked else renew_report(artifacts, run, newest, report)
