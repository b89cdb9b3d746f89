"""A number of a stage that people look at, and how it is shown."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ChartLine:
    """How reports draw a column: as a line in the chart with the title `chart`, which columns may share.

    `line` is its name there, `unit` the label of the vertical axis; `note` is written below the title.
    """

    chart: str
    line: str
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Headline:
    """A figure at the top of a report: the total over all iterations, the newest value, or the first and the
    newest. In `detail`, a counter's name in braces is replaced by the counter's total."""

    label: str
    over: Literal["total", "newest", "change"]
    detail: str


@dataclass(frozen=True)
class Column:
    """A number that people look at: where a run's manifests hold it, and how it is shown.

    Terminal tables, reports, differences of runs, drawings and progress displays all show the columns of the
    run's method. `label` is short, for terminals; `title` heads the column in reports (default: the label).
    `format` is a format specification such as `.3f` or `,d`. `compare`: differences between runs are of
    interest. `share`: the number is a share in [0, 1], which reports give in percent. `interval`: the
    manifest has the ends of its 95 % interval as `METRIC_low` and `METRIC_high`. `adds_up`: its sum over
    iterations is of interest. `only_with` names another number; this one has a meaning only if the manifest
    has the other and it is not 0. Without `in_tables`, only reports show the number, by its `drawn` line. A
    column is left out of tables in which it has no value.
    """

    stage: str
    metric: str
    label: str
    meaning: str
    format: str = ".3f"
    compare: bool = False
    title: str = ""
    share: bool = False
    interval: bool = False
    adds_up: bool = False
    only_with: str = ""
    in_tables: bool = True
    drawn: ChartLine | None = None
    headline: Headline | None = None

    @property
    def name(self) -> str:
        """Its unique name, as used by trackers and in JSON output."""
        return f"{self.stage}/{self.metric}"

    def text(self, value: float) -> str:
        """A value as tables show it."""
        return format(round(value) if self.format.endswith("d") else value, self.format)


def only_drawn(
    stage: str, metric: str, line: ChartLine, *, format: str = ".3f", only_with: str = ""
) -> Column:
    """A column that reports draw and no table shows."""
    return Column(stage, metric, metric, line.chart, format, in_tables=False, only_with=only_with, drawn=line)
