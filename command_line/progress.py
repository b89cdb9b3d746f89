"""Showing what the stages do: bars on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.views.iteration_table import iteration_row

_SHOWN_NUMBERS = {
    "success_first": "1st attempt {:.2f}",
    "success_second": "2nd {:.2f}",
    "greedy_success": "held-out {:.3f}",
    "policy_loss": "loss {:+.4f}",
    "loss": "loss {:.4f}",
    "entries": "{:,.0f} entries",
    "sft_rows": "{:,.0f} rows",
    "tokens_per_second": "{:,.0f} tokens/s",
}

_STARTING = "starting"
_TELL_EVERY_SECONDS = 30
_DETAIL_LENGTH = 60


def shown_numbers(numbers: Mapping[str, float]) -> str:
    """The numbers of a stage that matter to a person watching, in a fixed order."""
    return "  ".join(form.format(numbers[name]) for name, form in _SHOWN_NUMBERS.items() if name in numbers)


class ProgressDisplay:
    """A `ProgressListener`.

    On a terminal the stages of the iteration at work have a bar each, and a finished iteration is one
    line. Elsewhere each finished stage is one line. Work that was found committed is only counted.

    Args:
        iterations: where the run ends, for the headings.
    """

    def __init__(self, iterations: int, console: Console) -> None:
        self._console = console
        self._iterations = iterations
        self._iteration = 0
        self._outcomes: list[StageOutcome] = []
        self._reused = 0
        self._bars: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}
        self._lock = threading.RLock()
        self._progress = Progress(
            TextColumn("  {task.description:<18}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]:<8}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        self._add_bar(_STARTING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._end_iteration()
            self._progress.stop()

    def stage_started(self, stage: str, iteration: int | None, total: int | None, unit: str) -> None:
        """A stage begins; one that begins again in its iteration (a rollout shard) extends its bar."""
        with self._lock:
            if (iteration or 0) != self._iteration:
                self._end_iteration()
                self._iteration = iteration or 0
            self._remove_bar(_STARTING)
            self._totals[stage] = self._totals.get(stage, 0) + (total or 0)
            if stage in self._bars:
                self._progress.update(self._bars[stage], total=self._totals[stage])
            else:
                self._add_bar(stage, unit)

    def advance(self, stage: str, amount: int, **numbers: float) -> None:
        """A stage has done `amount` more of its units."""
        with self._lock:
            self._progress.update(self._bars[stage], advance=amount, numbers=shown_numbers(numbers))

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """A stage waits for something; without a terminal told at once and then twice a minute."""
        message = f"waiting {seconds:.0f} s for {what}"
        with self._lock:
            if self._console.is_terminal:
                newest = list(self._bars.values())[-1]
                self._progress.update(newest, numbers=f"{message}  {detail[:_DETAIL_LENGTH]}")
            elif int(seconds) % _TELL_EVERY_SECONDS == 1:
                self.note(f"{message}: {detail}")

    def stage_finished(self, outcome: StageOutcome) -> None:
        """A stage has given its artifact."""
        with self._lock:
            self._outcomes.append(outcome)
            whole = self._totals[outcome.stage] or 1
            shown = "found committed" if outcome.reused else shown_numbers(_numbers(outcome))
            bar = self._bars[outcome.stage]
            if outcome.stage == "rollout_shard":
                self._progress.update(bar, numbers=shown)
            else:
                self._progress.update(bar, total=whole, completed=whole, numbers=shown)
            if outcome.reused:
                self._reused += 1
            else:
                self._tell_reused()
                if not self._console.is_terminal and outcome.stage != "rollout_shard":
                    self.note(self._stage_line(outcome))

    def warn(self, message: str) -> None:
        """Something the user should know, which does not stop the run."""
        self.note(Text.assemble(("warning: ", "yellow"), message))

    def note(self, message: str | Text) -> None:
        """A line above the bars."""
        self._console.print(message, soft_wrap=True, markup=False)

    def _stage_line(self, outcome: StageOutcome) -> str:
        numbers, seconds = _numbers(outcome), outcome.seconds
        if outcome.stage == "generate_rollouts":
            row = iteration_row(self._iteration, self._outcomes)
            seconds = sum(each.seconds for each in self._outcomes if "rollout" in each.stage)
            if row.tokens_per_second is not None:
                numbers["tokens_per_second"] = row.tokens_per_second
        parts = (self._heading(), f"{outcome.stage:<18}", f"{seconds:6.1f} s", shown_numbers(numbers))
        return "  ".join(parts).rstrip()

    def _heading(self) -> str:
        if not self._iteration:
            return f"{'before the first':<16}"
        return f"{f'iteration {self._iteration}/{self._iterations}':<16}"

    def _end_iteration(self) -> None:
        """Replace the bars by one line, unless the lines of the stages stand there already."""
        for stage in list(self._bars):
            self._remove_bar(stage)
        if self._console.is_terminal and any(not outcome.reused for outcome in self._outcomes):
            row = iteration_row(self._iteration, self._outcomes)
            numbers = {
                "success_first": row.first,
                "success_second": row.second,
                "greedy_success": row.held_out,
                "tokens_per_second": row.tokens_per_second,
                "entries": row.memory,
            }
            known = {name: number for name, number in numbers.items() if number is not None}
            self.note(f"{self._heading()}  {row.seconds:6.1f} s  {shown_numbers(known)}".rstrip())
        self._totals, self._outcomes = {}, []

    def _add_bar(self, stage: str, unit: str = "") -> None:
        total = self._totals.get(stage) or None
        self._bars[stage] = self._progress.add_task(stage, total=total, unit=unit, numbers="")

    def _remove_bar(self, stage: str) -> None:
        if stage in self._bars:
            self._progress.remove_task(self._bars.pop(stage))

    def _tell_reused(self) -> None:
        if self._reused:
            artifacts = "artifact" if self._reused == 1 else "artifacts"
            self.note(f"{self._reused} {artifacts} of earlier work found committed; going on from there")
            self._reused = 0


def _numbers(outcome: StageOutcome) -> dict[str, float]:
    return {**outcome.counters, **outcome.metrics}
