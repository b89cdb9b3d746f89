"""`erl-pipeline diff`: two runs of a store side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.evaluation.run_difference import (
        IterationResult,
        ResultDifference,
        StageDifference,
    )

RunA = Annotated[str, typer.Argument(metavar="RUN_A", help="Name of a run in the store.")]
RunB = Annotated[str, typer.Argument(metavar="RUN_B", help="Name of another run in the store.")]

_SIGNS = {"shared": "=", "differs": "differs", "only A": "only A", "only B": "only B"}


def diff(run_a: RunA, run_b: RunB, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Show which settings of two runs differ, which artifacts they share, and their results side by side."""
    from erl_pipeline.config.differences import settings_differences
    from erl_pipeline.evaluation.history import read_history
    from erl_pipeline.evaluation.run_difference import result_differences, stage_differences
    from storage.artifacts.store import ArtifactStore
    from storage.runs.origin import OfflineOrigin, read_origin
    from storage.runs.run import RunStore

    artifacts, runs = ArtifactStore(store), RunStore(store)
    opened = [runs.open(name) for name in (run_a, run_b)]
    settings = settings_differences(*({**run.config, "name": ""} for run in opened))
    origins = [read_origin(store, run.name) for run in opened]
    histories = [read_history(artifacts, run) for run in opened]
    stages = stage_differences(*histories)
    results = result_differences(artifacts, *histories)
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
    print_table(_stage_table(stages), left=["iterations", *_stage_names(stages)])
    shared = sum(len(set(each.a) & set(each.b)) for each in stages)
    alone = [sum(map(len, ids)) - shared for ids in ([e.a for e in stages], [e.b for e in stages])]
    print_line(
        f"=: the same artifacts. {shared} artifacts are shared, {alone[0]} are only A's and "
        f"{alone[1]} only B's."
    )
    print_line()
    print_table([_result_cells(each) for each in results])
    if any(isinstance(origin, OfflineOrigin) for origin in origins):
        print_line(
            "1st, 2nd and tokens of an offline run are those of the stored attempts: it generated none"
        )
    print_line("1st, 2nd: success in training; held-out: greedy first attempts with 95 % interval;")
    print_line("B - A: the same, task by task, with 95 % interval and the p value of McNemar's exact test")


_ORDER = (
    "prepare_tasks",
    "bootstrap",
    "import_trajectories",
    "rollout_shard",
    "generate_rollouts",
    "index_memory",
    "measure_staleness",
    "update_policy",
    "build_distillation",
    "fine_tune",
    "evaluate",
)


def _stage_names(stages: Sequence[StageDifference]) -> list[str]:
    """Columns in the order of an iteration; stages of another version of the program come last."""
    names = {each.stage for each in stages}
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def _stage_table(stages: Sequence[StageDifference]) -> list[dict[str, str]]:
    """One line for each stretch of iterations in which all stages are alike."""
    names = _stage_names(stages)
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


def _result_cells(result: ResultDifference) -> dict[str, str]:
    paired = result.paired
    compared = ""
    if paired is not None:
        compared = f"{paired.difference:+.3f} [{paired.low:+.3f}, {paired.high:+.3f}] p={paired.p_value:.2g}"
    return {
        "iter": str(result.iteration),
        "1st A": _rate(result.a.first if result.a else None),
        "1st B": _rate(result.b.first if result.b else None),
        "2nd A": _rate(result.a.second if result.a else None),
        "2nd B": _rate(result.b.second if result.b else None),
        "held-out A": _held_out(result.a),
        "held-out B": _held_out(result.b),
        "B - A": compared,
        "tokens A": "" if result.a is None else f"{result.a.generated_tokens:,}",
        "tokens B": "" if result.b is None else f"{result.b.generated_tokens:,}",
    }


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _held_out(result: IterationResult | None) -> str:
    point = result and result.held_out
    return "" if not point else f"{point.success:.3f} [{point.low:.3f}, {point.high:.3f}]"
