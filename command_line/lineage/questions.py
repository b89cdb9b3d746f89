"""Questions over a whole store: `erl-pipeline lineage rows-using-memory|policies-trained-on|made-by`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from command_line.lineage.listing import DEFAULT_LIMIT, SHORT, Limit, print_first
from command_line.options import DEFAULT_STORE, ExistingStore, Json, OnlyRun
from command_line.output import counted, print_json, print_line

if TYPE_CHECKING:
    import polars as pl

    from storage.lineage import ArtifactGraph
    from storage.lineage.rows import LineageRows


def rows_using_memory(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="A memory entry's id, or its beginning.")],
    run: OnlyRun = None,
    limit: Limit = DEFAULT_LIMIT,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List every row that used a memory entry: reflections that saw it, and what came of them."""
    from storage.lineage.questions import rows_using_memory

    rows, _ = _open(store, run)
    found = rows_using_memory(rows, entry)
    if json:
        print_json({"rows": found.to_dicts()})
        return
    holders = found["artifact_id"].n_unique()
    print_line(f"{counted(found.height, 'row')} in {counted(holders, 'artifact')} used memory entry {entry}.")
    _print(found, limit, id_columns=("artifact_id",), left=("kind", "id", "how", "role", "task_id"))


def policies_trained_on(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's id.")],
    run: OnlyRun = None,
    limit: Limit = DEFAULT_LIMIT,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List every policy that trained on a task: directly, or as a descendant of one that did."""
    from storage.lineage.questions import DIRECTLY, policies_trained_on

    rows, graph = _open(store, run)
    found = policies_trained_on(rows, graph, task)
    if json:
        print_json({"task": task, "policies": found.to_dicts()})
        return
    direct = sum(how == DIRECTLY for how in found["how"])
    print_line(
        f"Task {task}: {counted(direct, 'policy', 'policies')} trained on it directly, "
        f"{counted(found.height - direct, 'as a descendant', 'as descendants')}."
    )
    _print(found, limit, id_columns=("policy",), left=("policy", "how", "stage", "run"))


def made_by(
    code_version: Annotated[
        str, typer.Argument(metavar="VERSION", help="A commit or version of the code, or its beginning.")
    ],
    run: OnlyRun = None,
    limit: Limit = DEFAULT_LIMIT,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List everything that a version of the code made, the oldest first."""
    from storage.lineage.questions import made_by

    _, graph = _open(store, run)
    found = made_by(graph.manifests.values(), code_version)
    if json:
        print_json(
            {"artifacts": [{**row, "finished_at": str(row["finished_at"])} for row in found.to_dicts()]}
        )
        return
    versions = ", ".join(found["code_version"].unique().sort())
    print_line(
        f"{counted(found.height, 'artifact')} with {counted(int(found['rows'].sum()), 'row')}, "
        f"{int(found['bytes'].sum()) / 1e6:,.1f} MB, made by {versions}."
    )
    shown = found.drop("code_version").with_columns(found["finished_at"].dt.strftime("%Y-%m-%d %H:%M:%S"))
    _print(shown, limit, id_columns=("artifact_id",), left=("artifact_id", "stage", "run", "finished_at"))


def _open(store_uri: str, run_name: str | None) -> tuple[LineageRows, ArtifactGraph]:
    from storage.artifacts.store import ArtifactStore
    from storage.lineage import ArtifactGraph, reachable
    from storage.lineage.rows import LineageRows
    from storage.runs.run import RunStore

    store = ArtifactStore(store_uri)
    if run_name is None:
        manifests = list(store.list())
    else:
        entries = RunStore(store_uri).open(run_name).stages()
        manifests = reachable(store, [entry.artifact_id for entry in entries])
    return LineageRows(store, manifests), ArtifactGraph(manifests)


def _print(frame: pl.DataFrame, limit: int, id_columns: tuple[str, ...], left: tuple[str, ...]) -> None:
    def cell(name: str, value: object) -> str:
        if value is None:
            return ""
        if name in id_columns:
            return str(value)[:SHORT]
        return f"{value:,g}" if isinstance(value, float) else str(value)

    rows = frame.head(limit).to_dicts()
    cells = [{name: cell(name, value) for name, value in row.items()} for row in rows]
    print_first(cells, frame.height, left)
