"""Shared parts of the replays that make a new run: its training, and what is printed at its end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from command_line.foreground import work_on_run
from command_line.options import DEFAULT_STORE
from command_line.output import counted, print_json, print_line, print_table
from command_line.program import command
from command_line.run_state import run_folder
from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.history import of_stage, read_history
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.plan.runner import InProcessConfig
from erl_pipeline.runs.config import method_columns, run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.report import write_run_report
from erl_pipeline.runs.state import latest_checkpoint
from erl_pipeline.runs.train import train
from erl_pipeline.stages.training.measure_staleness import MEASURE_STALENESS
from erl_pipeline.views.iteration_table import legend, row_cells, shown_columns
from storage.artifacts.store import ArtifactStore
from storage.runs.origin import BranchOrigin, OfflineOrigin, read_origin
from storage.runs.run import RunStore


def work_on_new_run(
    config: RunConfig, store: str, notes: Sequence[str], begin: Callable[[OpenRun], None]
) -> None:
    """Train the new run in this process, with the progress display of `train`.

    Args:
        begin: records the artifacts that the run shares in its ledger.
    """
    for note in notes:
        print(note, file=sys.stderr)

    def work(opened: OpenRun, _note: Callable[[str], None]) -> None:
        begin(opened)
        # Only for this process: the stored configuration keeps its runner, for later continuation.
        opened.config = opened.config.model_copy(update={"runner": InProcessConfig()})
        train(opened, config.iterations)

    kept = f"Stopped. What was committed is kept; continue with: {command(sys.argv[1:])}"
    work_on_run(config, store, config.iterations, work, lambda: kept)


def conclude(name: str, source: str, store: str, last: int, json: bool) -> None:
    """Print the new run iteration by iteration, write its report, and name the command to try next."""
    artifacts = ArtifactStore(store)
    run = RunStore(store).open(name)
    origin = read_origin(store, name)
    assert origin is not None
    history = read_history(artifacts, run)
    config = run_config(run)
    columns = method_columns(config)
    rows = history_rows(history, columns)
    report = write_run_report(artifacts, run, run_folder(store, name) / "report.html")
    checkpoint = latest_checkpoint(config, run.stages())
    assert checkpoint is not None
    reused = Counter("shared" if record.reused else "computed" for record in history)
    staleness = [
        {"iteration": record.iteration, **record.manifest.counters, **record.manifest.metrics}
        for record in of_stage(history, MEASURE_STALENESS.name)
    ]
    if json:
        print_json(
            {
                "run": name,
                "store": store,
                "origin": origin.model_dump(),
                "iterations": last,
                "shared": reused["shared"],
                "computed": reused["computed"],
                "checkpoint": checkpoint.artifact_id,
                "report": str(report),
                "rows": [row.plain(columns) for row in rows],
                "staleness": staleness,
            }
        )
        return
    if isinstance(origin, BranchOrigin):
        rows = [row for row in rows if row.iteration >= origin.iteration]
        if origin.iteration > 1:
            print_line(
                f"Iterations before {origin.iteration} are those of {source}; `status {name}` shows all."
            )
    shown = shown_columns(rows, columns)
    print_table([row_cells(row, shown) for row in rows])
    print_line(legend(shown))
    if isinstance(origin, OfflineOrigin):
        print_line("Numbers of rollouts are those of the stored ones; no rollout was generated again")
        print_line()
        print_table([_staleness_cells(row) for row in staleness])
        print_line(_STALENESS_LEGEND)
    print_line()
    print_line(
        f"Run {name}, begun {origin.describe()}: {counted(reused['shared'], 'artifact')} shared, "
        f"{reused['computed']} computed"
    )
    place = [] if store == DEFAULT_STORE else ["--store", store]
    print_line(f"Report: {report}")
    print_line("Try next:")
    print_line("  " + command(["diff", source, name, *place]))


_STALENESS_LEGEND = (
    "age: policy versions between sampler and policy, by lineage; ESS: effective sample size, as a share\n"
    "of the number of samples, with raw and with capped weights; capped: share above the cap;\n"
    "KL: sampler to policy, nats a token"
)


def _staleness_cells(numbers: dict[str, Any]) -> dict[str, str]:
    age = numbers.get("age_mean")
    return {
        "iter": str(numbers["iteration"]),
        "rows": f"{numbers['trajectories']:,}",
        "tokens": f"{numbers['trained_tokens']:,}",
        "age": "unknown" if age is None else f"{age:.1f}",
        "oldest": str(numbers.get("age_max", "")),
        "ESS": f"{numbers['effective_sample_size']:.3f}",
        "ESS capped": f"{numbers['effective_sample_size_capped']:.3f}",
        "capped": f"{numbers['capped']:.4f}",
        "mean weight": f"{numbers['weight_mean']:.3f}",
        "KL": f"{numbers['behaviour_kl']:.4f}",
    }
