"""`erl-pipeline diff`: two runs of a store side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import counted, print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.evaluation.run_difference import Measurement, ResultDifference, StageDifference
    from erl_pipeline.plan.column import Column

RunA = Annotated[str, typer.Argument(metavar="RUN_A", help="Name of a run in the store.")]
RunB = Annotated[str, typer.Argument(metavar="RUN_B", help="Name of another run in the store.")]

_SIGNS = {"shared": "=", "differs": "differs", "only A": "only A", "only B": "only B"}


def diff(
    run_a: RunA,
    run_b: RunB,
    first: Annotated[
        bool,
        typer.Option(
            "--first-divergence", help="Only the first difference: artifact, row and token or tensor."
        ),
    ] = False,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show which settings of two runs differ, which artifacts they share, and their results side by side."""
    if first:
        from command_line.divergence import show_first_divergence

        show_first_divergence(run_a, run_b, store, json=json)
        return
    from erl_pipeline.config.shown.differences import settings_differences
    from erl_pipeline.evaluation.history import read_history
    from erl_pipeline.evaluation.run_difference import (
        common_columns,
        result_differences,
        stage_differences,
    )
    from erl_pipeline.runs.columns import run_columns
    from erl_pipeline.views.iteration_table import legend
    from storage.artifacts.store import ArtifactStore
    from storage.runs.origin import OfflineOrigin, read_origin
    from storage.runs.run import RunStore

    artifacts, runs = ArtifactStore(store), RunStore(store)
    opened = [runs.open(name) for name in (run_a, run_b)]
    settings = settings_differences(*({**run.config, "name": ""} for run in opened))
    origins = [read_origin(store, run.name) for run in opened]
    history_a, history_b = (read_history(artifacts, run) for run in opened)
    stages = stage_differences(history_a, history_b)
    columns = common_columns(*(run_columns(run) for run in opened))
    results = result_differences(artifacts, history_a, history_b, columns)
    if json:
        print_json(
            {
                "a": run_a,
                "b": run_b,
                "store": store,
                "origin_a": origins[0] and origins[0].model_dump(),
                "origin_b": origins[1] and origins[1].model_dump(),
                "settings": settings,
                "stages": [asdict(each) for each in stages],
                "results": [asdict(each) for each in results],
            }
        )
        return
    for letter, run, origin in zip("AB", opened, origins, strict=True):
        print_line(f"{letter}: {run.name}" + (f", begun {origin.describe()}" if origin else ""))
    print_line()
    print_line("Settings, A -> B:" if settings else "Settings are the same.")
    for line in settings:
        print_line(f"  {line}")
    print_line()
    repeated = dict.fromkeys(each.stage for each in stages if each.iteration)
    names = [*dict.fromkeys(each.stage for each in stages if each.stage not in repeated), *repeated]
    print_table(_stage_table(stages, names), left=["iterations", *names])
    shared = sum(len(set(each.a) & set(each.b)) for each in stages)
    alone = [sum(map(len, ids)) - shared for ids in ([e.a for e in stages], [e.b for e in stages])]
    print_line(
        f"=: the same artifacts. {counted(shared, 'artifact')} shared, {alone[0]:,} only in A, "
        f"{alone[1]:,} only in B"
    )
    print_line()
    print_table([_result_cells(each, columns) for each in results])
    if any(isinstance(origin, OfflineOrigin) for origin in origins):
        print_line("numbers of rollouts of an offline run are those of the stored ones: it generated none")
    print_line(legend(columns))
    print_line("[]: 95 % interval; tokens and other sums: so far; B - A: held-out tasks, one by one, with")
    print_line("95 % interval and the p value of McNemar's exact test")


def _stage_table(stages: Sequence[StageDifference], names: Sequence[str]) -> list[dict[str, str]]:
    """One row for each range of iterations in which every stage has the same sharing."""
    cells: dict[int, dict[str, str]] = {}
    for each in stages:
        cells.setdefault(each.iteration, dict.fromkeys(names, ""))[each.stage] = _SIGNS[each.sharing]
    stretches: list[tuple[int, int, dict[str, str]]] = []
    for iteration, row in cells.items():
        if stretches and stretches[-1][2] == row and stretches[-1][1] == iteration - 1:
            stretches[-1] = (stretches[-1][0], iteration, row)
        else:
            stretches.append((iteration, iteration, row))
    return [
        {"iterations": str(first) if first == last else f"{first}-{last}", **row}
        for first, last, row in stretches
    ]


def _result_cells(result: ResultDifference, columns: Sequence[Column]) -> dict[str, str]:
    cells = {"iter": str(result.iteration)}
    for column in columns:
        for letter, measured in (("A", result.a), ("B", result.b)):
            cells[f"{column.label} {letter}"] = _cell(column, (measured or {}).get(column.name))
    paired = result.paired
    cells["B - A"] = (
        ""
        if paired is None
        else f"{paired.difference:+.3f} [{paired.low:+.3f}, {paired.high:+.3f}] p={paired.p_value:.2g}"
    )
    return cells


def _cell(column: Column, measured: Measurement | None) -> str:
    if measured is None:
        return ""
    value = column.text(measured.value)
    if measured.low is None or measured.high is None:
        return value
    return f"{value} [{column.text(measured.low)}, {column.text(measured.high)}]"
