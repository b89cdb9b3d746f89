"""`erl-pipeline compare`: which method learns more from the same tokens and steps?"""

from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store

Comparison = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A comparison file, or a run configuration, in YAML.")
]
Methods = Annotated[
    str,
    typer.Option(
        metavar="ARM,ARM,…",
        help="Arms of the file, and methods such as erl, rlvr+distillation, erl-no-memory; the first is the "
        "baseline unless the file names one. Default: all arms of the file.",
    ),
]
Seeds = Annotated[int, typer.Option(metavar="N", help="Runs of each arm, two or more.")]
Jobs = Annotated[int, typer.Option(min=1, metavar="J", help="Runs at the same time.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run.")]
Iterations = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Iterations of each run; default: the file's.")
]
AllowDirty = Annotated[
    bool,
    typer.Option("--allow-dirty", help="For trials: also with changes of the code that are not committed."),
]
Output = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="For the results; default: comparison/NAME.")
]


def compare(
    config: Comparison,
    methods: Methods = "",
    seeds: Seeds = 10,
    jobs: Jobs = 1,
    threads: Threads = 1,
    iterations: Iterations = None,
    store: Store = DEFAULT_STORE,
    output: Output = None,
    settings: Settings = None,
    allow_dirty: AllowDirty = False,
    json: Json = False,
) -> None:
    """Train arms from one start over several seeds, and compare them on tasks that nothing was tuned on.

    Arms are compared at equal generated tokens and at equal steps of the policy. Runs that were stopped or
    killed continue from what is committed. They are ordinary runs, so all other commands work on them.
    """
    from command_line.compare.arms import compare_arms
    from erl_pipeline.comparison.design import make_design

    arms = [name for name in methods.split(",") if name]
    design = make_design(config, arms, seeds, iterations, settings or [], threads)
    compare_arms(design, store, jobs, threads, output, allow_dirty, json)
