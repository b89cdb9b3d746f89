"""`erl-pipeline status`: how far a run is and how it does."""

from __future__ import annotations

from dataclasses import asdict

from command_line.options import DEFAULT_STORE, Json, RunName, Store
from command_line.output import print_json, print_line, print_table


def status(run: RunName, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Show how far a run is, iteration by iteration."""
    from erl_pipeline.evaluation.history import read_history
    from erl_pipeline.runs.config import run_config
    from erl_pipeline.runs.state import completed_iterations
    from erl_pipeline.views.iteration_table import LEGEND, history_rows, row_cells
    from storage.artifacts.store import ArtifactStore
    from storage.runs.origin import read_origin
    from storage.runs.run import RunStore

    opened = RunStore(store).open(run)
    config = run_config(opened)
    entries = opened.stages()
    history = read_history(ArtifactStore(store), opened)
    rows = history_rows(history)
    done = completed_iterations(config, entries)
    origin = read_origin(store, run)
    if json:
        artifacts = [
            {
                "iteration": record.iteration,
                "stage": record.stage,
                "key": record.key,
                "artifact_id": record.manifest.artifact_id,
                "reused": record.reused,
            }
            for record in history
        ]
        print_json(
            {
                "run": opened.name,
                "store": store,
                "origin": origin and origin.model_dump(),
                "method": config.method.type,
                "iterations_done": done,
                "iterations_configured": config.iterations,
                "rows": [asdict(row) for row in rows],
                "artifacts": artifacts,
            }
        )
        return
    print_line(
        f"Run {opened.name}: {config.method.type}, {done} of {max(done, config.iterations)} iterations done"
    )
    if origin:
        print_line(f"Begun {origin.describe()}")
    print_line(f"{len(entries)} artifacts; {sum(row.tokens or 0 for row in rows):,} tokens generated")
    print_table([row_cells(row) for row in rows])
    print_line(LEGEND)
