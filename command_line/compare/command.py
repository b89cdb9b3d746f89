"""`erl-pipeline compare`: which method learns more from the same tokens and steps?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import command, counted, print_json, print_line, print_table
from storage.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from erl_pipeline.comparison.design import Design
    from erl_pipeline.comparison.result import Result

Comparison = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A comparison file, or a run configuration, in YAML.")
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="ARM,ARM,…",
        help="Arms of the file, and methods such as erl, rlvr+distillation, erl-no-memory; the first is the "
        "baseline unless the file names one. Default: all arms of the file.",
    ),
]
Seeds = Annotated[int, typer.Option(metavar="N", help="Runs of each arm, two or more.")]
Jobs = Annotated[int, typer.Option(min=1, metavar="J", help="Runs at the same time.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run.")]
Iterations = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Iterations of each run; default: the file's.")
]
AllowDirty = Annotated[
    bool,
    typer.Option("--allow-dirty", help="For trials: also with changes of the code that are not committed."),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="For the results; default: comparison/NAME.")
]

_LEFT = ("arm", "number", "difference", "settings", "failed run", "reason")


def compare(
    config: Comparison,
    methods: Methods = "",
    seeds: Seeds = 10,
    jobs: Jobs = 1,
    threads: Threads = 1,
    iterations: Iterations = None,
    store: Store = DEFAULT_STORE,
    output: Output = None,
    settings: Settings = None,
    allow_dirty: AllowDirty = False,
    json: Json = False,
) -> None:
    """Train arms from one start over several seeds, and compare them on tasks that nothing was tuned on.

    Arms are compared at equal generated tokens and at equal steps of the policy. Runs that were stopped or
    killed continue from what is committed. They are ordinary runs, so all other commands work on them.
    """
    from erl_pipeline.comparison.design import make_design
    from erl_pipeline.comparison.document import document, write

    arms = [name for name in methods.split(",") if name]
    design = make_design(config, arms, seeds, iterations, settings or [], threads)
    if not allow_dirty:
        _require_committed(design)
    result = _work(design, store, jobs, threads)
    files = write(result, output or Path("comparison") / design.name)
    if json:
        print_json(document(result))
    else:
        _print(result)
        print_line("Written: " + ", ".join(map(str, files)))
    if result.failures:
        print(
            f"{counted(len(result.failures), 'run')} failed; run the same command to try again.",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _require_committed(design: Design) -> None:
    """Raise ConfigError if code of an arm has changes that are not committed: the result would name a commit
    that does not have the code."""
    from command_line.train.run import uncommitted_code

    of_arm = {run.arm: run.config for run in design.runs}
    found = dict.fromkeys(each for config in of_arm.values() for each in uncommitted_code(config))
    if found:
        raise ConfigError(f"{'; '.join(found)}: commit them first, or add --allow-dirty for a trial")


def _work(design: Design, store: str, jobs: int, threads: int) -> Result:
    """Train what is left, until it is done. Raises typer.Exit when a signal asked to stop."""
    from command_line.compare.rounds import Rounds
    from command_line.interruption import StopRequest, call_interruptibly

    def notify(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    stop = StopRequest()
    notify(
        f"Comparison {design.name} in {store}: {', '.join(arm.name for arm in design.arms)}; "
        f"{counted(len(design.seeds), 'seed')} each, {counted(design.iterations, 'iteration')}"
    )
    try:
        rounds = Rounds(design, store, jobs, threads, stop.event, notify)
        return call_interruptibly(rounds.result, stop, notify)
    except Interrupted:
        notify(f"Stopped. What is committed is kept; continue with: {command(sys.argv[1:])}")
        raise typer.Exit(stop.exit_status) from None


def _print(result: Result) -> None:
    from erl_pipeline.comparison.tables import preface, split_warning, tables, warnings

    if said := split_warning(result):
        print_line(said + "\n")
    for text in (preface(result), *warnings(result)):
        print_line(text + "\n")
    for table in tables(result):
        print_line(table.title)
        print_table(table.rows, left=_LEFT)
        if table.note:
            print_line(table.note + "\n")
