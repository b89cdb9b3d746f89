"""The lines that `train` prints first: what it reuses from other runs, and why it computes things again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from command_line.output import counted

if TYPE_CHECKING:
    from erl_pipeline.plan.forecast import Forecast
    from erl_pipeline.plan.plan import Plan
    from erl_pipeline.runs.driver import OpenRun

_STAGES = 4


def reuse_lines(opened: OpenRun, plan: Plan) -> list[str]:
    """Lines about what is reused from other runs, and about artifacts of the run that are computed again.

    If the run only continues there are no lines, and the store is not searched.
    """
    recorded = opened.recorded
    if all(recorded[node.place] == node.artifact_id for node in plan.nodes if node.place in recorded) and any(
        node.place in recorded for node in plan.nodes
    ):
        return []
    from erl_pipeline.plan.forecast import forecast
    from erl_pipeline.runs.store_lookups import StoreLookups

    lookups = StoreLookups(opened.store.uri, opened.config.model_dump(mode="json"), others=False)
    found = forecast(plan, lookups)
    return [*reused_from(found, opened.run.name), *computed_again(found)]


def reused_from(found: Forecast, own: str) -> list[str]:
    """A line for each other run whose artifacts are reused."""
    stages: dict[str, list[str]] = {}
    for stage in found.reused:
        if stage.run != own:
            stages.setdefault(stage.run, []).append(stage.node.stage.shown_as)
    return [
        f"Reused: {counted(len(names), 'artifact')} of run {run} ({_listed(names)})"
        for run, names in stages.items()
    ]


def computed_again(found: Forecast) -> list[str]:
    """A line for each reason why stages that the run has are computed again."""
    iterations: dict[str, list[int]] = {}
    for stage in found.computed:
        if stage.compared:
            for reason in stage.reasons:
                if not reason.maker:
                    iterations.setdefault(reason.words, []).append(stage.node.iteration or 0)
    last = max((stage.node.iteration or 0 for stage in found.computed if stage.compared), default=0)
    return [
        f"{words[:1].upper()}{words[1:]}: {_span(min(numbers), last)} computed again"
        for words, numbers in iterations.items()
    ]


def _span(first: int, last: int) -> str:
    if last == 0:
        return "what comes before the first iteration is"
    if first == 0:
        return f"everything through iteration {last} is"
    return f"iteration {last} is" if first == last else f"iterations {first} to {last} are"


def _listed(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    return ", ".join(different[:_STAGES]) + (", ..." if len(different) > _STAGES else "")
