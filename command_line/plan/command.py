"""`erl-pipeline plan`: what would be reused, what computed and why, and the expected cost; nothing is
run."""

from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, LastIteration, Settings, Store
from storage.errors import InputError

Planned = Annotated[
    str, typer.Argument(metavar="CONFIG|RUN", help="A configuration file, or the name of a run in the store.")
]
FromStage = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STAGE",
        help="What `replay` of the run would compute from this stage on; with --iteration.",
    ),
]
Iteration = Annotated[int | None, typer.Option(min=0, metavar="N", help="The iteration of --from.")]
Cluster = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Simulate a whole run on the nodes of this file instead, such as those in configs/clusters/.",
    ),
]


def plan(
    planned: Planned,
    iterations: LastIteration = None,
    settings: Settings = None,
    stage: FromStage = None,
    iteration: Iteration = None,
    cluster: Cluster = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show what would be reused and what computed, why, and how long it should take. Nothing is run.

    With --cluster, show how long a run would take on other nodes, how much they would wait, and which changes
    would help.
    """
    if (stage is None) != (iteration is None):
        raise InputError("--from STAGE and --iteration N say together where to begin; give both")
    if cluster is not None:
        if stage is not None:
            raise InputError("--from and --iteration have no meaning with --cluster")
        from command_line.plan.cluster import plan_on_cluster

        plan_on_cluster(planned, cluster, store, iterations, settings or [], json)
        return
    from command_line.plan import making
    from command_line.plan.showing import show_plan

    if making.is_config(planned):
        if stage is not None:
            raise InputError(
                "--from is for a run that is in the store; name the run instead of a configuration"
            )
        shown = making.plan_of_config(making.read_config(planned, settings or []), store, iterations)
    elif stage is not None and iteration is not None:
        shown = making.plan_from_stage(planned, store, iterations, settings or [], iteration, stage)
    else:
        shown = making.plan_of_run(planned, store, iterations, settings or [])
    show_plan(shown, json)
