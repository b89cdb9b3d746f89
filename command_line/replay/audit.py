"""`erl-pipeline replay` without `--set`: proving that stored artifacts can be computed again."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import typer

from command_line.foreground import in_foreground
from command_line.interruption import Stop
from command_line.output import print_json, print_line, print_table
from command_line.progress import ProgressDisplay
from command_line.replay.new_run import require_stage, stored_run
from erl_pipeline.pipeline.audit import REFUTED, AuditResult, audit, open_audit
from erl_pipeline.pipeline.run_state import run_config
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError


def replay_audit(
    run: str,
    iteration: int,
    stage: str,
    last: int | None,
    name: str | None,
    scratch: Path | None,
    store: str,
    json: bool,
) -> None:

    stored = stored_run(run, store)
    config = run_config(stored.run)
    require_stage(iteration, stage)
    last = stored.last_iteration if last is None else last
    if not iteration <= last <= stored.last_iteration:
        raise InputError(
            f"run {run} has iterations 1 to {stored.last_iteration}; an audit from iteration {iteration} "
            f"cannot end with {last}"
        )
    if name is not None:
        print(f"Without --set this is an audit, which makes no run: {name} is not used.", file=sys.stderr)
    folder = scratch or Path(tempfile.gettempdir()) / f"erl-pipeline-{os.getuid()}" / "audits"

    def work(display: ProgressDisplay, stop: Stop) -> list[AuditResult]:

        artifacts = ArtifactStore(store)
        with open_audit(config, artifacts, stored, folder, display, stop.event) as context:
            return audit(context, stored, iteration, stage, last)

    heading = f"Audit of {run} in {store}: {stage} of iteration {iteration} through iteration {last}"
    results = in_foreground(heading, last, work, lambda: "Stopped; nothing is kept of this audit.")
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
                print_line(f"iteration {result.iteration}, {result.stage} {result.key}: {line}")
        files = sum(result.files for result in results if result.verdict == "equal")
        summary = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print_line(
            f"{len(results)} artifacts computed again: {summary}; {files} files have the stored bytes."
        )
    if any(result.verdict in REFUTED for result in results):
        raise typer.Exit(1)


def _audit_cells(result: AuditResult) -> dict[str, str]:
    return {
        "iter": str(result.iteration),
        "stage": f"{result.stage} {result.key}".strip(),
        "artifact": result.artifact_id[:12],
        "files": str(result.files),
        "seconds": f"{result.seconds:.1f}",
        "verdict": result.verdict,
    }
