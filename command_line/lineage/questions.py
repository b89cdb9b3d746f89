"""Questions over a run or a whole store: samples, rows that used an entry, policies, what code made."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import polars as pl
import typer

from command_line.lineage.reach import SHORT, print_first
from command_line.options import iteration_span
from command_line.output import counted, print_json, print_line
from command_line.selectors import beyond_end, manifests_of_run
from erl_pipeline.evaluation.samples import SampleCount, count_samples
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage import questions as asked
from storage.lineage.graph import ArtifactGraph
from storage.lineage.rows import LineageRows
from storage.runs.run import RunStore


def show_rows_using_memory(entry: str, run: str | None, limit: int, store: str, json: bool) -> None:
    """Print the rows that used a memory entry, in at most `limit` lines."""
    rows, _ = _open(store, run)
    found = asked.rows_using_memory(rows, entry)
    if json:
        print_json({"rows": found.to_dicts()})
        return
    holders = found["artifact_id"].n_unique()
    print_line(f"{counted(found.height, 'row')} in {counted(holders, 'artifact')} used memory entry {entry}.")
    _print(found, limit, id_columns=("artifact_id",), left=("kind", "id", "how", "role", "task_id"))


def show_policies_trained_on(task: str, run: str | None, limit: int, store: str, json: bool) -> None:
    """Print the policies that trained on a task, in at most `limit` lines."""
    rows, graph = _open(store, run)
    found = asked.policies_trained_on(rows, graph, task)
    if json:
        print_json({"task": task, "policies": found.to_dicts()})
        return
    direct = sum(how == asked.DIRECTLY for how in found["how"])
    print_line(
        f"Task {task}: {counted(direct, 'policy', 'policies')} trained on it directly, "
        f"{counted(found.height - direct, 'as a descendant', 'as descendants')}."
    )
    _print(found, limit, id_columns=("policy",), left=("policy", "how", "stage", "run"))


def show_made_by(code_version: str, run: str | None, limit: int, store: str, json: bool) -> None:
    """Print what a version of the code made, in at most `limit` lines."""
    _, graph = _open(store, run)
    found = asked.made_by(graph.manifests.values(), code_version)
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
    store = ArtifactStore(store_uri)
    manifests = manifests_of_run(store, run_name)
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


def show_samples(run: str, iteration: str | None, limit: int, store: str, json: bool) -> None:
    """Print the counts of samples, in at most `limit` lines.

    Raises InputError for iterations without samples, typer.Exit when the counts do not add up.
    """
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
        cells = _sample_cells([*sums, *report.counts], len(sums))
        print_first(cells[: len(sums) + limit], len(cells), left=("iteration", "role"))
    if report.problems:
        raise typer.Exit(1)


def _totals(counts: Iterable[SampleCount]) -> list[SampleCount]:
    """The sums over all iterations, by role."""
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


def _sample_cells(counts: Sequence[SampleCount], totals: int) -> list[dict[str, str]]:
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
