"""How far a run is: its results by iteration, and what of it is damaged."""

from command_line.output import counted, print_json, print_line, print_table
from command_line.runs.described import all_iterations
from erl_pipeline.evaluation.history import stored_records, training_cost
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.runs.config import method_columns, readable_config
from erl_pipeline.runs.state import begun_iterations, completed_iterations
from erl_pipeline.views.report.tables import iteration_table
from storage.artifacts.store import ArtifactStore
from storage.runs.documents import read_origin
from storage.runs.ledger import latest_entries
from storage.runs.run import RunStore
from storage.upkeep.runs import find_unrecorded

_SHOWN = 5
"""Most damaged artifacts that are printed; --json gives all."""


def show_status(run: str, store: str, json: bool) -> None:
    """Print how far a run is. Raises ConfigError if its configuration cannot be read."""
    opened = RunStore(store).open(run)
    config = readable_config(opened)
    artifact_store, recorded = ArtifactStore(store), opened.recorded()
    entries = latest_entries(recorded)
    unrecorded = find_unrecorded(artifact_store, opened, recorded)
    history = sorted(stored_records(artifact_store, entries), key=lambda record: record.iteration)
    shown_ids = {record.manifest.artifact_id for record in history}
    lost = [entry for entry in entries if entry.artifact_id not in shown_ids]
    columns = method_columns(config)
    rows = history_rows(history, columns)
    done, begun = completed_iterations(config, entries), begun_iterations(entries)
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
                "iterations_begun": begun,
                "iterations_configured": config.iterations,
                "rows": [row.plain(columns) for row in rows],
                "artifacts": artifacts,
                "damaged": [entry.artifact_id for entry in lost],
                "unrecorded": [each.artifact_id for each in unrecorded.artifacts] if unrecorded else [],
            }
        )
        return
    of_all = all_iterations(done, begun, config.iterations)
    print_line(
        f"Run {opened.name}: {config.method.type}, {done} of {of_all} "
        f"{'iteration' if of_all == '1' else 'iterations'} done"
    )
    if origin:
        print_line(f"Begun {origin.describe()}")
    if unrecorded:
        print_line(f"Warning: {unrecorded.sentence}")
    for entry in lost[:_SHOWN]:
        where = f"iteration {entry.iteration or 0}, {entry.stage}"
        print_line(f"damaged or missing, and not in this table: artifact {entry.artifact_id} ({where})")
    if lost:
        print_line(
            f"{counted(len(lost), 'artifact')} made again by: "
            f"erl-pipeline train CONFIG --name {opened.name} --check"
        )
    tokens = int(
        training_cost(history, "generated_tokens", up_to=max((row.iteration for row in rows), default=0))
    )
    print_line(f"{counted(len(entries), 'artifact')}; {counted(tokens, 'token')} generated in rollouts")
    table = iteration_table(rows, columns)
    print_table(table.cells)
    print_line(table.legend)
