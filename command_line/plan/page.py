"""A plan as one self-contained HTML page."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from command_line.output import bytes_text, counted
from command_line.plan.making import ShownPlan
from command_line.plan.printing import disk_lines, name_needed, notes, plan_cells, seconds_text, summary


def plan_page(shown: ShownPlan) -> str:
    """The page of a plan."""
    templates = Environment(
        loader=PackageLoader("command_line.plan", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    forecast = shown.forecast
    tiles = [
        ("reused", counted(len(forecast.reused), "artifact")),
        ("computed", counted(len(forecast.computed), "artifact")),
        ("expected time", seconds_text(forecast.total.seconds) or "unknown"),
        ("expected size", bytes_text(forecast.total.bytes) or "unknown"),
    ]
    return templates.get_template("page.html").render(
        shown=shown,
        tiles=tiles if forecast.computed else tiles[:2],
        rows=plan_cells(forecast),
        lines=[
            *([name_needed(shown)] if shown.refusal else []),
            *summary(shown),
            *disk_lines(shown),
            *notes(shown),
        ],
    )
