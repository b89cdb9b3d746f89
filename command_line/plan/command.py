"""`erl-pipeline plan`: what would be reused, what computed and why, and the expected cost; nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store

if TYPE_CHECKING:
    from command_line.plan.making import ShownPlan

Planned = Annotated[
    str, typer.Argument(metavar="CONFIG|RUN", help="A configuration file, or the name of a run in the store.")
]
Iterations = Annotated[
    int | None,
    typer.Option("--iterations", min=1, metavar="N", help="Last iteration; default: the configuration's."),
]
FromStage = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STAGE",
        help="What `replay` of the run would compute from this stage on; with --iteration.",
    ),
]
Iteration = Annotated[
    int | None, typer.Option("--iteration", min=0, metavar="N", help="The iteration of --from.")
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Also write the plan as a page, .html.")
]

Cluster = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="Simulate a whole run on the nodes of this file instead, such as those in configs/clusters/.",
    ),
]


def plan(
    planned: Planned,
    iterations: Iterations = None,
    settings: Settings = None,
    stage: FromStage = None,
    iteration: Iteration = None,
    output: Output = None,
    cluster: Cluster = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show what would be reused and what computed, why, and how long it should take. Nothing is run.

    With --cluster, show how long a run would take on other nodes, how much they would wait, and which changes
    would help.
    """
    from command_line.plan.making import (
        is_config,
        plan_from_stage,
        plan_of_config,
        plan_of_run,
        read_config,
    )
    from storage.errors import InputError

    if (stage is None) != (iteration is None):
        raise InputError("--from STAGE and --iteration N say together where to begin; give both")
    if cluster is not None:
        if stage is not None or output is not None:
            raise InputError("--from, --iteration and --output have no meaning with --cluster")
        from command_line.plan.cluster import plan_on_cluster

        plan_on_cluster(planned, cluster, store, iterations, settings or [], json)
        return
    if is_config(planned):
        if stage is not None:
            raise InputError(
                "--from is for a run that is in the store; name the run instead of a configuration"
            )
        shown = plan_of_config(read_config(planned, settings or []), store, iterations)
    elif stage is not None and iteration is not None:
        shown = plan_from_stage(planned, store, iterations, settings or [], iteration, stage)
    else:
        shown = plan_of_run(planned, store, iterations, settings or [])
    show_plan(shown, output, json)


def show_plan(shown: ShownPlan, output: Path | None, json: bool) -> None:
    """Print a plan, and write its page if `output` names one.

    Raises InputError for a name that does not end in .html, StoreError if the page cannot be written.
    """
    from command_line.output import print_json, print_line
    from command_line.plan.printing import plan_json, print_plan
    from storage.errors import InputError, store_errors

    if output is not None:
        if output.suffix != ".html":
            raise InputError(f"--output {output}: name a file that ends in .html")
        from command_line.plan.printing import plan_page

        with store_errors("write", output):
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(plan_page(shown), encoding="utf-8")
    if json:
        print_json(plan_json(shown))
        return
    print_plan(shown)
    if output is not None:
        print_line(f"Page: {output}")
