"""Comparing arms in the foreground: their runs are trained, and the result is written and printed."""

import sys
from pathlib import Path

import typer

from command_line.compare.rounds import Rounds
from command_line.interruption import StopRequest, call_interruptibly
from command_line.output import command, counted, print_json, print_line, print_table
from command_line.train.run import uncommitted_code
from erl_pipeline.comparison.design import Design
from erl_pipeline.comparison.document import document, write
from erl_pipeline.comparison.result import Result
from erl_pipeline.comparison.tables import preface, split_warning, tables, warnings
from storage.errors import ConfigError, Interrupted

_LEFT = ("arm", "number", "difference", "settings", "failed run", "reason")


def compare_arms(
    design: Design, store: str, jobs: int, threads: int, output: Path | None, allow_dirty: bool, json: bool
) -> None:
    """Train what is left of a comparison, and write and print its result.

    Raises ConfigError for changes of the code that are not committed, unless they are allowed; typer.Exit if
    a run failed, or when a signal asked to stop.
    """
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
    of_arm = {run.arm: run.config for run in design.runs}
    found = dict.fromkeys(each for config in of_arm.values() for each in uncommitted_code(config))
    if found:
        raise ConfigError(f"{'; '.join(found)}: commit them first, or add --allow-dirty for a trial")


def _work(design: Design, store: str, jobs: int, threads: int) -> Result:
    """Train what is left, until it is done. Raises typer.Exit when a signal asked to stop."""

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
    if said := split_warning(result):
        print_line(said + "\n")
    for text in (preface(result), *warnings(result)):
        print_line(text + "\n")
    for table in tables(result):
        print_line(table.title)
        print_table(table.rows, left=_LEFT)
        if table.note:
            print_line(table.note + "\n")
