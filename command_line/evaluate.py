"""`erl-pipeline evaluate`: success of a checkpoint on tasks of one's choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, RunName, Store
from command_line.output import print_json, print_line

if TYPE_CHECKING:
    from erl_pipeline.pipeline.context import RunContext
    from erl_pipeline.pipeline.outcome import StageOutcome
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import Run

Tasks = Annotated[
    str,
    typer.Option("--tasks", metavar="FILE|generated", help="A task file, or generated held-out tasks."),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="ID|latest|iteration:N", help="An artifact id, the latest, or an iteration's."
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", min=1, help="Generated tasks; default: as many as in training.")
]
Samples = Annotated[
    int, typer.Option("--samples", min=0, max=64, help="Sampled attempts of each task beside the greedy one.")
]


def evaluate(
    run: RunName,
    tasks: Tasks,
    checkpoint: Checkpoint = "latest",
    count: Count = None,
    samples: Samples = 4,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Evaluate first attempts, greedy and sampled, without memory or reflection in the prompt."""
    from command_line.foreground import work_on_run
    from erl_pipeline.environments.frozen_lake import ENVIRONMENT
    from erl_pipeline.pipeline.run_state import run_config
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    opened = RunStore(store).open(run)
    config = run_config(opened)
    iteration, checkpoint_id = find_checkpoint(ArtifactStore(store), opened, checkpoint)
    if tasks == "generated":
        wanted = count or config.evaluation.tasks
        chosen = list(ENVIRONMENT.held_out_tasks(config.environment, config.seed, wanted))
    else:
        assert ENVIRONMENT.tasks_from_file is not None
        chosen = list(ENVIRONMENT.tasks_from_file(config.environment, config.seed, Path(tasks)))

    def work(context: RunContext) -> StageOutcome:
        from erl_pipeline.stages.evaluate import EVALUATE_ON_REQUEST, evaluate_tasks

        evaluation = config.evaluation.model_copy(update={"samples_per_task": samples})
        context.config = config.model_copy(update={"evaluation": evaluation})
        inputs = {"checkpoint": checkpoint_id}
        return evaluate_tasks(context, iteration, checkpoint_id, chosen, inputs, EVALUATE_ON_REQUEST)

    kept = "Stopped; nothing is kept of this evaluation."
    outcome = work_on_run(config, store, config.iterations, work, lambda: kept)
    if json:
        print_json(
            {
                "run": run,
                "checkpoint": checkpoint_id,
                "iteration": iteration,
                "tasks": len(chosen),
                "samples_per_task": samples,
                "artifact_id": outcome.artifact_id,
                "metrics": dict(outcome.metrics),
            }
        )
        return
    print_line(f"Checkpoint {checkpoint_id[:12]} (iteration {iteration}) on {len(chosen)} tasks:")
    for name, words in (("greedy_success", "greedy"), ("sampled_success", f"sampled, {samples} a task")):
        if name in outcome.metrics:
            value, low, high = (outcome.metrics[f"{name}{end}"] for end in ("", "_low", "_high"))
            print_line(f"  {words + ':':<20}{value:.3f}  (95 % interval {low:.3f} to {high:.3f})")


def find_checkpoint(store: ArtifactStore, run: Run, wanted: str) -> tuple[int, str]:
    """The iteration and artifact id of a checkpoint of a run. Raises InputError when there is no such one."""
    from erl_pipeline.pipeline.run_state import CHECKPOINT_STAGES, latest_checkpoint
    from storage.errors import InputError

    entries = run.stages()
    name, colon, number = wanted.partition(":")
    if wanted == "latest":
        found = latest_checkpoint(entries)
    elif name == "iteration" and colon and number.isdecimal():
        found = latest_checkpoint(entries, int(number))
    else:
        artifact_id = store.resolve(wanted)
        of_run = [entry for entry in entries if entry.stage in CHECKPOINT_STAGES]
        found = next((entry for entry in of_run if entry.artifact_id == artifact_id), None)
    if found is None:
        raise InputError(
            f"--checkpoint {wanted}: run {run.name} has no such checkpoint; allowed are latest, iteration:N "
            "with an iteration that is done, and the id of a checkpoint of the run"
        )
    return found.iteration or 0, found.artifact_id
