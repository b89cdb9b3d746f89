"""`erl-pipeline lineage samples`: what became of every sample of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from command_line.lineage.listing import DEFAULT_LIMIT, Limit, print_first
from command_line.options import DEFAULT_STORE, ExistingStore, Iterations, Json, RunName, iteration_span
from command_line.output import counted, print_json, print_line

if TYPE_CHECKING:
    from erl_pipeline.evaluation.samples import SampleCount


def samples(
    run: RunName,
    iteration: Iterations = None,
    limit: Limit = DEFAULT_LIMIT,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Count the samples that were issued, generated, trained, and dropped (by reason). Exit status 1 when the
    counts do not add up."""
    from command_line.run_state import beyond_end
    from erl_pipeline.evaluation.samples import count_samples
    from storage.artifacts.store import ArtifactStore
    from storage.errors import InputError
    from storage.runs.run import RunStore

    span = iteration_span(iteration)
    opened = RunStore(store).open(run)
    report = count_samples(ArtifactStore(store), opened, span)
    if iteration is not None and not report.counts:
        ends = beyond_end(opened, span)
        raise InputError(f"run {run} has no samples of iteration {iteration}{f': {ends}' if ends else ''}.")
    totals = _totals(report.counts)
    if json:
        print_json(
            {
                "run": run,
                "adds_up": not report.problems,
                "problems": report.problems,
                "totals": [{**asdict(each), "iteration": None} for each in totals],
                "samples": [asdict(each) for each in report.counts],
            }
        )
    else:
        for problem in report.problems:
            print_line(f"wrong: {problem}")
        issued = sum(each.issued for each in totals)
        trained = sum(each.trained for each in totals)
        verdict = "all counts add up"
        if report.problems:
            verdict = counted(len(report.problems), "count does not add up", "counts do not add up")
        print_line(f"Run {run}: {counted(issued, 'sample')} issued, {trained:,} trained; {verdict}.")
        sums = totals if len({each.iteration for each in report.counts}) > 1 else []
        cells = _cells([*sums, *report.counts], len(sums))
        print_first(cells[: len(sums) + limit], len(cells), left=("iteration", "role"))
    if report.problems:
        raise typer.Exit(1)


def _totals(counts: Iterable[SampleCount]) -> list[SampleCount]:
    """The sums over all iterations, by role."""
    from erl_pipeline.evaluation.samples import SampleCount

    by_role: dict[str, list[SampleCount]] = {}
    for each in counts:
        by_role.setdefault(each.role, []).append(each)
    return [
        SampleCount(
            iteration=0,
            role=role,
            issued=sum(each.issued for each in found),
            generated=sum(each.generated for each in found),
            trained=sum(each.trained for each in found),
            dropped=dict(sum((Counter(each.dropped) for each in found), Counter())),
        )
        for role, found in by_role.items()
    ]


def _cells(counts: Sequence[SampleCount], totals: int) -> list[dict[str, str]]:
    reasons = sorted({reason for each in counts for reason in each.dropped})
    return [
        {
            "iteration": "all" if number < totals else str(each.iteration),
            "role": each.role,
            "issued": f"{each.issued:,}",
            "generated": f"{each.generated:,}",
            "trained": f"{each.trained:,}",
            **{reason: f"{each.dropped.get(reason, 0):,}" for reason in reasons},
        }
        for number, each in enumerate(counts)
    ]
