"""`erl-pipeline plan`: what would be reused, what computed and why, and the expected cost; nothing is
run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, Json, LastIteration, Settings, Store
from command_line.output import bytes_text, counted, print_json, print_line, print_table, seconds_text
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.cluster import ClusterConfig
    from erl_pipeline.plan.simulation import Ran
    from erl_pipeline.runs.cluster_forecast import ClusterForecast

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

_SHOWN_SECONDS = 0.05
"""A part of an iteration that takes less is not printed."""


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
        _plan_on_cluster(planned, cluster, store, iterations, settings or [], json)
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


def _plan_on_cluster(
    planned: str, cluster_file: Path, store: str, iterations: int | None, settings: Sequence[str], json: bool
) -> None:
    """Simulate a run of a configuration, or of that of a stored run, on a cluster, and print the result."""
    from erl_pipeline.plan.cluster import read_cluster
    from erl_pipeline.runs.cluster_forecast import forecast_on_cluster

    config = _config(planned, store, settings)
    cluster = read_cluster(cluster_file)
    found = forecast_on_cluster(config, cluster, store, iterations)
    if json:
        print_json(_simulated_json(config, cluster_file, found))
    else:
        _print_simulated(config, cluster, cluster_file, found)


def _config(planned: str, store: str, settings: Sequence[str]) -> RunConfig:
    from command_line.plan.making import is_config, read_config
    from erl_pipeline.config.loading import change_config
    from erl_pipeline.runs.config import run_config
    from storage.runs.run import RunStore

    if is_config(planned):
        return read_config(planned, settings)
    return change_config(run_config(RunStore(store).open(planned)), settings)


def _print_simulated(config: RunConfig, cluster: ClusterConfig, file: Path, found: ClusterForecast) -> None:
    simulation = found.simulation
    print_line(
        f"Run {config.name} simulated on {file}: {counted(found.iterations, 'iteration')}, "
        f"{counted(len(simulation.ran), 'artifact')}, none of them there before"
    )
    print_line(f"Makespan: {seconds_text(simulation.makespan)}")
    print_table(
        [
            {
                "nodes": name,
                "count": str(cluster.nodes[name].count),
                "devices": str(use.devices),
                "computing": f"{use.computing:.1%}",
                "waiting": f"{use.waiting:.1%}",
                "idle": f"{use.idle:.1%}",
            }
            for name, use in simulation.use.items()
        ],
        left=("nodes",),
    )
    traffic = simulation.traffic
    print_line(
        f"Moved: {bytes_text(traffic.total)}; {bytes_text(traffic.uploaded)} to the store, "
        f"{bytes_text(traffic.downloaded)} from it, {bytes_text(traffic.between)} between nodes"
    )
    print_line("Critical path, by stage:")
    print_table(
        [
            {
                "stage": stage,
                "artifacts": f"{count:,}",
                "time": seconds_text(seconds),
                "of it": f"{seconds / simulation.makespan:.1%}" if simulation.makespan else "",
            }
            for stage, (count, seconds) in _by_stage(simulation.critical).items()
        ],
        left=("stage",),
    )
    print_line("Of an iteration, by what the critical path spends it on:")
    print_table(
        [
            {"stage": stage, "part": part, "seconds": f"{seconds / found.iterations:,.1f}"}
            for (stage, part), seconds in _by_part(simulation.critical).items()
            if seconds / found.iterations >= _SHOWN_SECONDS
        ],
        left=("stage", "part"),
    )
    print_line("With one thing changed:")
    print_table(
        [
            {
                "change": variant.change,
                "makespan": seconds_text(variant.makespan),
                "by": f"{variant.makespan / simulation.makespan - 1:+.1%}" if simulation.makespan else "",
            }
            for variant in found.variants
        ],
        left=("change",),
    )
    for line in _sources(found):
        print_line(line)
    print_line("computing, idle, and waiting (a stage holds the device while it starts or moves files):")
    print_line("shares of the devices' time")


def _by_stage(critical: Sequence[Ran]) -> dict[str, tuple[int, float]]:
    """Stage -> how often it is on the critical path, and for how long; the longest first."""
    found: defaultdict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for each in critical:
        count, seconds = found[each.job.stage]
        found[each.job.stage] = count + 1, seconds + each.seconds.whole
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _by_part(critical: Sequence[Ran]) -> dict[tuple[str, str], float]:
    """Seconds of the critical path after what a run has before its first iteration, by stage and part."""
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for each in critical:
        if each.job.planned.iteration:
            for part, seconds in asdict(each.seconds).items():
                found[each.job.stage, part.replace("_", " ")] += seconds
    return dict(found)


def _sources(found: ClusterForecast) -> list[str]:
    """Sentences about where the times come from."""
    measured = found.measurements
    places = [f"{count:,} at the same place of run {run}" for run, count in measured.runs.items()]
    medians = [f"{measured.medians:,} medians of their stage"] if measured.medians else []
    known = ", ".join([*places, *medians])
    total = len(found.simulation.ran)
    if not known:
        return ["No stage was measured: all times come from the file."]
    return [f"Measured times of {total:,} artifacts: {known}; times and rates in the file take precedence."]


def _simulated_json(config: RunConfig, file: Path, found: ClusterForecast) -> dict[str, Any]:
    simulation = found.simulation
    return {
        "run": config.name,
        "cluster": str(file),
        "iterations": found.iterations,
        "makespan": simulation.makespan,
        "nodes": {name: asdict(use) for name, use in simulation.use.items()},
        "moved": asdict(simulation.traffic),
        "parts": [
            {"stage": stage, "part": part, "seconds": seconds / found.iterations}
            for (stage, part), seconds in _by_part(simulation.critical).items()
        ],
        "critical": [
            {"stage": each.job.planned.title, "start": each.start, "end": each.end, "nodes": each.nodes}
            for each in simulation.critical
        ],
        "variants": [asdict(variant) for variant in found.variants],
        "measured": {
            "runs": dict(found.measurements.runs),
            "medians": found.measurements.medians,
            "overhead_seconds": found.measurements.overhead_seconds,
        },
    }
