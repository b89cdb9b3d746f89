"""What a flow run's page shows beside its tasks: a table of iterations, and a summary at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.iteration_table import IterationRow, row_cells


def artifact_key(run: str, kind: str) -> str:
    """A Prefect artifact key, which may hold only small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run}-{kind}".lower()).strip("-")


def publish_iterations(run: str, rows: Sequence[IterationRow]) -> None:
    """A new version of the run's table of iterations."""
    create_table_artifact(
        key=artifact_key(run, "iterations"),
        table=[row_cells(row) for row in rows],
        description=f"Run {run}, iteration by iteration",
    )


def publish_summary(run: str, rows: Sequence[IterationRow]) -> None:
    """How the run began, how it stands and what it cost."""
    scored = [row for row in rows if row.held_out is not None]
    lines = [f"# Run {run}", "", f"- iterations: {max((row.iteration for row in rows), default=0)}"]
    if scored:
        first, last = scored[0], scored[-1]
        lines.append(
            f"- greedy success on held-out tasks: {first.held_out:.3f} after iteration {first.iteration}, "
            f"{last.held_out:.3f} after iteration {last.iteration}"
        )
    lines.append(f"- generated tokens: {sum(row.tokens or 0 for row in rows):,}")
    lines.append(f"- seconds: {sum(row.seconds for row in rows):,.1f}")
    create_markdown_artifact(key=artifact_key(run, "summary"), markdown="\n".join(lines))
