"""`erl-pipeline runs show`: one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import bytes_text, counted, print_json, print_line, print_table

if TYPE_CHECKING:
    from storage.runs.ledger import LedgerEntry

_SHOWN = 10
"""Most checkpoints that are printed; --json gives all."""


def show(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Show a run: state, last score, size, origin, and the ids of its newest checkpoints."""
    from command_line.runs.described import describe_run, progress_text, score_text
    from storage.runs.origin import read_origin
    from storage.runs.run import RunStore
    from storage.upkeep.usage import usage_by_run

    opened = RunStore(store).open(run)
    described = describe_run(store, run, usage_by_run(store)[run])
    checkpoints = [entry for entry in opened.stages() if entry.kind == "checkpoint"]
    origin = read_origin(store, run)
    if json:
        print_json(
            {
                **described.as_json(),
                "origin": origin and origin.model_dump(),
                "checkpoints": [_plain(entry) for entry in checkpoints],
            }
        )
        return
    summary, usage = described.summary, described.usage
    method = "" if summary.method is None else f", {summary.method}"
    print_line(f"Run {run} in {store}: {described.state}{method}")
    if summary.done is not None:
        print_line(f"Iterations: {progress_text(summary)}")
    if summary.score is not None:
        print_line(
            f"Held-out success after iteration {summary.score.iteration}: {score_text(summary.score)}, "
            "95 % interval"
        )
    print_line(
        f"Size: {counted(usage.artifacts, 'artifact')}; {bytes_text(usage.own)} of its own, "
        f"{bytes_text(usage.shared)} shared with other runs"
    )
    print_line(f"Worked on by: {described.holder or 'nobody'}")
    if origin:
        print_line(f"Begun {origin.describe()}")
    if checkpoints:
        newest = checkpoints[: -_SHOWN - 1 : -1]
        print_line(f"Checkpoints, the newest first ({len(newest)} of {len(checkpoints)}):")
        print_table(
            [{name: str(value) for name, value in _plain(entry).items()} for entry in newest],
            left=("stage", "checkpoint"),
        )


def _plain(entry: LedgerEntry) -> dict[str, object]:
    return {"iteration": entry.iteration or 0, "stage": entry.stage, "checkpoint": entry.artifact_id}
