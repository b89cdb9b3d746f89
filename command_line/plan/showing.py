"""A plan that is shown, as text or JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from command_line.output import bytes_text, counted, print_json, print_line, print_table, seconds_text
from command_line.plan.making import ShownPlan
from erl_pipeline.plan.forecast import Cost, Forecast, iterations_text
from erl_pipeline.runs.store_lookups import MEASURED
from storage.texts import listed


def show_plan(shown: ShownPlan, json: bool) -> None:
    """Print a plan."""
    if json:
        print_json(plan_json(shown))
    else:
        print_plan(shown)


_REASONS = 3


def print_plan(shown: ShownPlan) -> None:
    """Print the plan as a table, with its totals."""
    print_line(f"{shown.what}; {counted(shown.iterations, 'iteration')}")
    if shown.refusal:
        print_line(
            f"To train this, give it a new --name: `train` refuses other settings for run {shown.run}."
        )
    print_table(plan_cells(shown.forecast), left=("iterations", "stage", "what", "why"))
    for line in [*summary(shown), *disk_lines(shown), *notes(shown)]:
        print_line(line)


def notes(shown: ShownPlan) -> list[str]:
    """What is said below the plan, and last, why `train` would refuse it."""
    return [*shown.notes, *([f"`train` refuses this: {shown.refusal}"] if shown.refusal else [])]


def plan_cells(forecast: Forecast) -> list[dict[str, str]]:
    """The rows of the plan's table."""
    return [
        {
            "iterations": iterations_text(row.iterations),
            "stage": row.stage,
            "artifacts": f"{row.artifacts:,}",
            "what": "compute" if row.verdict == "computed" else "reuse",
            "why": _why(row.why) if row.verdict == "computed" else f"made by {row.run}",
            **(_cost_cells(row.cost) if row.verdict == "computed" else _cost_cells(None)),
        }
        for row in forecast.rows()
    ]


def summary(shown: ShownPlan) -> list[str]:
    """The totals of a plan's forecast and where its numbers come from, in sentences."""
    forecast = shown.forecast
    runs = Counter(stage.run for stage in forecast.reused)
    makers = ", ".join(f"{count:,} of {run}" for run, count in runs.items())
    reused = counted(len(forecast.reused), "artifact")
    lines = [f"Reused: {reused}{f' ({makers})' if makers else ''}."]
    if not forecast.computed:
        return [*lines, "Nothing is computed."]
    total = forecast.total
    costs = [
        seconds_text(total.seconds),
        f"{total.tokens:,.0f} generated tokens" if total.tokens is not None else "",
        bytes_text(total.bytes),
    ]
    known = ", ".join(part for part in costs if part)
    lines.append(
        f"Computed: {counted(len(forecast.computed), 'artifact')}"
        + (f", about {known} in all, one stage after the other." if known else ".")
    )
    if forecast.unknown:
        lines.append(
            "Unknown, since no run that trains this model has an artifact of it: "
            f"{', '.join(forecast.unknown)}." + (" The sums leave it out." if known else "")
        )
    if shown.measured:
        lines.append(
            f"Expected values are medians of the newest {MEASURED} artifacts of each stage in "
            f"{_measured_in(shown)}."
        )
    return lines


def _measured_in(shown: ShownPlan) -> str:
    """`run a`; or `run a (same policy and trainer) for bootstrap and run b (same model) for evaluate`."""
    several = len(shown.measured) > 1
    runs = []
    for each in shown.measured:
        text = f"run {each.run}"
        if each.run != shown.run:
            text += f" (same {listed(each.alike or ('model',))})"
        runs.append(text + (f" for {listed(each.stages)}" if several else ""))
    return "; ".join(runs)


def disk_lines(shown: ShownPlan) -> list[str]:
    """Sentences about the disk space that the plan needs, and whether it fits."""
    disk, free = shown.disk, shown.free
    if not shown.forecast.computed:
        return []
    if not disk.peak:
        return ["Disk: unknown, since no run that trains this model has an artifact to estimate from."]
    need = "Disk: "
    if disk.iteration:
        need += f"{bytes_text(disk.iteration)} committed an iteration; "
    need += f"about {bytes_text(disk.end)} at the end"
    if disk.removed:
        need += f", at most {bytes_text(disk.peak)} on the way; retention removes {bytes_text(disk.removed)}"
    if free is not None:
        need += f"; {bytes_text(free)} are free, so it {'fits' if disk.peak <= free else 'does not fit'}"
    lines = [f"{need}."]
    if disk.estimated:
        others = "; the files of other stages are not included" if disk.unknown else ""
        lines.append(f"Estimated from the size of the model: {', '.join(disk.estimated)}{others}.")
    if disk.full_in is not None:
        when = f"in iteration {disk.full_in}" if disk.full_in else "before the first iteration"
        lines.append(
            f"Warning: the disk would be full {when}. Free some space, or set retention.checkpoints and "
            "retention.optimizer, such as 2."
        )
    return lines


def plan_json(shown: ShownPlan) -> dict[str, Any]:
    """The plan as JSON values: rows as in the table, and every artifact."""
    forecast = shown.forecast
    return {
        "run": shown.run,
        "store": shown.store,
        "iterations": shown.iterations,
        "what": shown.what,
        "notes": notes(shown),
        "needs_new_name": bool(shown.refusal),
        "reused": len(forecast.reused),
        "computed": len(forecast.computed),
        "expected": asdict(forecast.total),
        "unknown": forecast.unknown,
        "measured": [asdict(each) for each in shown.measured],
        "disk": {**asdict(shown.disk), "free": shown.free},
        "rows": [asdict(row) for row in forecast.rows()],
        "artifacts": [
            {
                "iteration": stage.node.iteration,
                "stage": stage.node.stage.name,
                "key": stage.node.key,
                "artifact_id": stage.node.artifact_id,
                "verdict": stage.verdict,
                "run": stage.run or None,
                "why": stage.why,
                "compared_with": stage.compared or None,
            }
            for stage in forecast.stages
        ],
    }


def _cost_cells(cost: Cost | None) -> dict[str, str]:
    if cost is None:
        return {"time": "", "tokens": "", "size": ""}
    return {
        "time": seconds_text(cost.seconds) or "unknown",
        "tokens": "" if cost.tokens is None else f"{cost.tokens:,.0f}",
        "size": bytes_text(cost.bytes) or "unknown",
    }


def _why(reasons: Sequence[str]) -> str:
    more = len(reasons) - _REASONS
    return "; ".join(reasons[:_REASONS]) + (f"; {more} more (--json has all)" if more > 0 else "")
