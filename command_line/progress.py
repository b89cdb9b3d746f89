"""The progress of stages, on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from command_line.output import counted
from erl_pipeline.evaluation.iterations import IterationRow, iteration_row, shown_value
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.stage import Listener, StageOutcome

_TELL_EVERY_SECONDS = 30
_TOGETHER_SECONDS = 1.0
_DETAIL_LENGTH = 60
_BAR_WIDTH = 24
_NAME_WIDTH = 18


@dataclass
class _StageAtWork:
    """The progress of a stage that has begun but not ended."""

    begun: float
    told: float
    """When its progress was last printed, or when it began; only without a terminal."""
    total: int | None = None
    done: int = 0
    first: float | None = None
    """When the first of its units was done."""
    unit: str = ""
    note: str = ""
    told_waiting: float | None = None
    """The waiting time, in seconds, that was last printed; only without a terminal."""


@dataclass
class _Iteration:
    """The outcomes of an iteration's stages, and whether its line was written."""

    outcomes: list[StageOutcome] = field(default_factory=list)
    shown: bool = False


class ProgressDisplay(Listener):
    """A `Listener` that shows progress. Its methods may be called from any thread.

    On a terminal every stage at work has a bar, and a finished iteration is one line. Elsewhere each finished
    stage is one line, and a long one has a line every half minute. Reused artifacts are only counted.

    Args:
        iterations: the run's number of iterations, for the headings.
        columns: the columns of the run's method, whose numbers are shown.
        clock: seconds since some moment.
    """

    def __init__(
        self,
        iterations: int,
        columns: Sequence[Column],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        self._target = iterations
        self._columns = columns
        self._reused = 0
        self._at_work: dict[str, _StageAtWork] = {}
        self._iterations: dict[int, _Iteration] = {}
        self._lock = threading.RLock()
        self._live = Live(console=console, get_renderable=self.bars, refresh_per_second=8, transient=True)

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._at_work.clear()
            self._show_iterations(before=None)
        if self._console.is_terminal:
            self._live.stop()

    def stage_started(self, title: str) -> None:
        """A stage begins, or begins again."""
        with self._lock:
            self._at_work[title] = self._new_stage()

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units."""
        with self._lock:
            stage = self._stage(title)
            stage.total, stage.done, stage.first, stage.unit = total, 0, None, unit

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """A stage has done `amount` more of its units; without a terminal a line says so twice a minute."""
        with self._lock:
            stage = self._stage(title)
            stage.done += amount
            stage.note = self._in_words(numbers)
            now = self._clock()
            if stage.first is None:
                stage.first = now
            # Units that are done side by side end together, and the first of them says little.
            together = now - stage.first < _TOGETHER_SECONDS
            if not (self._console.is_terminal or together) and now - stage.told >= _TELL_EVERY_SECONDS:
                stage.told = now
                words = (_count(stage), f"after {_clock(now - stage.begun)}", stage.note)
                self.note(f"{title}: {'  '.join(word for word in words if word)}")

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """A stage waits for something; without a terminal a line says so immediately, then twice a minute."""
        message = f"waiting {seconds:.0f} s for {what}"
        with self._lock:
            stage = self._stage(title)
            stage.note = f"{message}  {detail[:_DETAIL_LENGTH]}"
            told = stage.told_waiting
            if not self._console.is_terminal and (
                told is None or not 0 <= seconds - told < _TELL_EVERY_SECONDS
            ):
                stage.told_waiting = seconds
                self.note(f"{title}: {message}: {detail}")

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """A stage has given its artifact."""
        outcome = replace(outcome, seconds=outcome.making_seconds)  # as `status` and the report show it
        with self._lock:
            self._at_work.pop(title, None)
            iteration = outcome.iteration or 0
            known = self._iterations.setdefault(iteration, _Iteration())
            is_part = outcome.kind == "trajectories" and outcome.key != ""
            if self._console.is_terminal or is_part:
                known.outcomes.append(outcome)
            if outcome.reused:
                self._reused += 1
                return
            self._tell_reused()
            if (known.shown or not self._console.is_terminal) and not is_part:
                self.note(self._stage_line(outcome))
            elif self._console.is_terminal:
                self._show_iterations(before=iteration)

    def warn(self, message: str) -> None:
        """Show a warning that does not stop the run."""
        self.note(Text.assemble(("warning: ", "yellow"), message))

    def note(self, message: str | Text) -> None:
        """Print a line above the bars."""
        with self._lock:
            self._console.print(message, soft_wrap=True, markup=False)

    def _stage(self, title: str) -> _StageAtWork:
        if title not in self._at_work:
            self._at_work[title] = self._new_stage()
        return self._at_work[title]

    def _new_stage(self) -> _StageAtWork:
        now = self._clock()
        return _StageAtWork(begun=now, told=now)

    def bars(self) -> Table:
        """A line for each stage at work, in the order in which they began."""
        table = Table.grid(padding=(0, 2))
        for column in range(5):
            table.add_column(no_wrap=True, justify="right" if column == 3 else "left")
        with self._lock:
            for title, stage in self._at_work.items():
                seconds = self._clock() - stage.begun
                bar = ProgressBar(
                    total=stage.total or None,
                    completed=stage.done,
                    width=_BAR_WIDTH,
                    pulse=not stage.total,
                    animation_time=seconds,
                )
                # A line of a server's log, or a name, is no markup.
                table.add_row(Text(f"  {title}"), bar, _count(stage), _clock(seconds), Text(stage.note))
        return table

    def _stage_line(self, outcome: StageOutcome) -> str:
        """The line of a finished stage; that of rollouts has the time and the rate of all shards."""
        known = self._iterations[outcome.iteration or 0]
        parts: list[StageOutcome] = []
        if outcome.kind == "rollouts":
            parts, known.outcomes = known.outcomes, []
        row = iteration_row(outcome.iteration or 0, [*parts, outcome], self._columns)
        name = f"{outcome.stage:<{_NAME_WIDTH}}"
        words = self._row_in_words(row)
        numbers = {**outcome.counters, **outcome.metrics}
        if not words and numbers.get("optimizer_steps") == 0:
            words = "read all rows, none to train on"
        elif not words and "loss" in numbers:
            words = f"loss {numbers['loss']:.4f}"
        return f"{self._heading(row.iteration)}  {name}  {row.seconds:6.1f} s  {words}".rstrip()

    def _heading(self, iteration: int) -> str:
        title = f"iteration {iteration}/{self._target}" if iteration else "start"
        return f"{title:<16}"

    def _show_iterations(self, before: int | None) -> None:
        """On a terminal, print a line for each iteration before `before` (None: for all) whose stages have
        ended."""
        for iteration in sorted(self._iterations):
            known = self._iterations[iteration]
            if known.shown or (before is not None and iteration >= before):
                continue
            if before is not None and any(self._of(title, iteration) for title in self._at_work):
                continue
            known.shown = True
            if self._console.is_terminal and any(not each.reused for each in known.outcomes):
                row = iteration_row(iteration, known.outcomes, self._columns)
                line = f"{self._heading(iteration)}  {row.seconds:6.1f} s  {self._row_in_words(row)}"
                self.note(line.rstrip())
            known.outcomes = []

    def _of(self, title: str, iteration: int) -> bool:
        """Whether a stage at work belongs to an iteration; its title ends with the number."""
        named = title.endswith(f" of iteration {iteration}")
        return named or (not iteration and " of iteration " not in title)

    def _row_in_words(self, row: IterationRow) -> str:
        shown = [
            f"{column.label} {column.text(row.values[column.name])}"
            for column in self._columns
            if column.in_tables and column.name in row.values
        ]
        return "  ".join(shown)

    def _in_words(self, numbers: Mapping[str, float]) -> str:
        """Numbers of a stage at work as text: those of columns as tables show them, and the loss."""
        shown = {
            column.metric: f"{column.label} {column.text(value)}"
            for column in self._columns
            if column.in_tables and (value := shown_value(column, numbers)) is not None
        }
        if "loss" in numbers:
            shown["loss"] = f"loss {numbers['loss']:.4f}"
        return "  ".join(shown.values())

    def _tell_reused(self) -> None:
        if self._reused:
            self.note(
                f"{counted(self._reused, 'artifact')} found committed and looked at; continuing from there"
            )
            self._reused = 0


def _count(stage: _StageAtWork) -> str:
    return f"{stage.done:,}/{stage.total:,} {stage.unit}" if stage.total else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
