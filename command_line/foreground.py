"""Long work in the foreground: with a progress display, quiet libraries, and a clean end on a signal."""

from collections.abc import Callable
from typing import TypeVar

import typer
from rich.console import Console

from command_line.interruption import StopRequest, call_interruptibly
from command_line.output import counted
from command_line.progress import ProgressDisplay
from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.config import method_columns
from erl_pipeline.runs.driver import OpenRun, open_run
from storage.errors import Interrupted

T = TypeVar("T")


def work_on_run(
    config: RunConfig,
    store: str,
    iterations: int,
    work: Callable[[OpenRun, Callable[[str], None]], T],
    when_stopped: Callable[[], str],
) -> T:
    """Open a run and call `work` with it, in a thread that signals do not disturb.

    `work` also gets a function that shows the user one line.

    Args:
        iterations: the run's number of iterations, for the display.
        when_stopped: gives the last line that is shown when the work was stopped.

    Raises typer.Exit, with the status that a shell expects, when a signal stopped the work.
    """

    def open_and_work(display: ProgressDisplay, stop: StopRequest) -> T:
        with open_run(config, store, display, stop.event) as opened:
            return work(opened, display.note)

    heading = f"Run {config.name} in {store}: {config.method.type}, {counted(iterations, 'iteration')}"
    return in_foreground(heading, iterations, config, open_and_work, when_stopped)


def in_foreground(
    heading: str,
    iterations: int,
    config: RunConfig,
    work: Callable[[ProgressDisplay, StopRequest], T],
    when_stopped: Callable[[], str],
) -> T:
    """Call `work` with a progress display and a `StopRequest`, in a thread that signals do not disturb.

    The display shows the columns of the configuration's method.

    Raises typer.Exit, with the status that a shell expects, when a signal stopped the work.
    """
    stop = StopRequest()
    # What stages say, such as lines of a server's log, is no markup.
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    display = ProgressDisplay(iterations, method_columns(config), console)
    try:
        with display:
            display.note(heading)
            return call_interruptibly(lambda: work(display, stop), stop, display.note)
    except Interrupted:
        display.note(when_stopped())
        raise typer.Exit(stop.exit_status) from None
