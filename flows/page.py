"""What a flow run's page shows beside its tasks: a table of iterations, and a summary at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from erl_pipeline.views.iteration_table import MOST_ROWS, IterationRow, row_cells


def artifact_key(run: str, kind: str) -> str:
    """A Prefect artifact key, which may hold only small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run}-{kind}".lower()).strip("-")


def publish_iterations(run: str, rows: Sequence[IterationRow]) -> None:
    """A new version of the run's table of iterations: the newest `MOST_ROWS`."""
    shown = rows[-MOST_ROWS:]
    earlier = f"; those before {shown[0].iteration}: erl-pipeline status {run}" if shown[0].iteration else ""
    create_table_artifact(
        key=artifact_key(run, "iterations"),
        table=[row_cells(row) for row in shown],
        description=f"Run {run}, iteration by iteration{earlier}",
    )


def publish_summary(run: str, scored: Sequence[IterationRow], done: Sequence[IterationRow]) -> None:
    """How the run began, how it stands, and what the flow run cost.

    Args:
        scored: the first and the last row of the run with an evaluation.
        done: rows of the iterations that the flow run has been through, in order; none where the run was
            through them before.
    """
    lines = [f"# Run {run}", ""]
    rated = [row for row in scored if row.held_out is not None]
    if rated:
        first, last = rated[0], rated[-1]
        lines.append(
            f"- greedy success on held-out tasks: {first.held_out:.3f} after iteration {first.iteration}, "
            f"{last.held_out:.3f} after iteration {last.iteration}"
        )
    if done:
        lines += [
            f"- iterations: {done[-1].iteration}",
            f"- of this flow run: {done[0].iteration} to {done[-1].iteration}",
            f"  - generated tokens: {sum(row.tokens or 0 for row in done):,}",
            f"  - seconds: {sum(row.seconds for row in done):,.1f}",
        ]
    create_markdown_artifact(key=artifact_key(run, "summary"), markdown="\n".join(lines))
