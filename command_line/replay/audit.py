"""`erl-pipeline replay`: computes stored artifacts again, and compares the bytes."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import typer

from command_line.foreground import in_foreground
from command_line.interruption import StopRequest
from command_line.output import counted, print_json, print_line, print_table
from command_line.progress import ProgressDisplay
from command_line.stored_run import StoredRun
from erl_pipeline.runs.audit import REFUTED, AuditResult, AuditVerdict, audit
from storage.filesystem import users_scratch


def replay_audit(
    run: str, iteration: int, stage: str, last: int | None, scratch: Path | None, store: str, json: bool
) -> None:
    """Compute stored artifacts again and compare the bytes.

    Raises InputError when the run does not have these iterations, typer.Exit with status 1 when bytes differ.
    """
    stored = StoredRun.open(run, store)
    last = stored.last_of_span(iteration, last)
    folder = scratch or users_scratch() / "audits"

    def work(display: ProgressDisplay, stop: StopRequest) -> list[AuditResult]:
        return audit(store, run, iteration, stage, last, folder, display, stop.event)

    heading = f"Audit of {run} in {store}: {stage} of iteration {iteration} through iteration {last}"
    kept = "Stopped; nothing is kept of this audit."
    results = in_foreground(heading, last, stored.config, work, lambda: kept)
    verdicts = Counter(result.verdict for result in results)
    if json:
        print_json(
            {
                "run": run,
                "store": store,
                "equal": not any(result.verdict in REFUTED for result in results),
                "verdicts": dict(verdicts),
                "artifacts": [asdict(result) for result in results],
            }
        )
    else:
        print_table([_audit_cells(result) for result in results], left=["stage", "artifact", "verdict"])
        for result in results:
            for line in result.differences:
                print_line(f"iteration {result.iteration}, {_named(result)}: {line}")
        files = sum(result.files for result in results if result.verdict == "equal")
        pruned, other, damaged = (verdicts.pop(each, 0) for each in _NOT_COMPUTED)
        summary = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print_line(
            f"{counted(verdicts.total(), 'artifact')} computed again: {summary or 'none'}; "
            f"{counted(files, 'file')} {'has' if files == 1 else 'have'} the stored bytes."
        )
        if pruned:
            print_line(
                f"{counted(pruned, 'artifact')} not computed: retention has removed what they are made "
                "from. `train` in another store makes all of it again."
            )
        if other:
            print_line(f"{counted(other, 'artifact')} not computed: today's code would make other ones.")
        if damaged:
            print_line(f"{counted(damaged, 'artifact')} not computed: the stored files are damaged.")
    if any(result.verdict in REFUTED for result in results):
        raise typer.Exit(1)


_NOT_COMPUTED: tuple[AuditVerdict, ...] = ("input pruned", "other recipe", "damaged")


def _named(result: AuditResult) -> str:
    return f"{result.stage} {result.key}".strip()


def _audit_cells(result: AuditResult) -> dict[str, str]:
    return {
        "iter": str(result.iteration),
        "stage": _named(result),
        "artifact": result.artifact_id[:12],
        "files": str(result.files),
        "seconds": f"{result.seconds:.1f}",
        "verdict": result.verdict,
    }
