"""`erl-pipeline evaluate|export`: a checkpoint on chosen tasks, or as a folder for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, SELECTOR, ExistingStore, Json, RunName
from command_line.output import counted, print_json, print_line
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.plan.stage import StageOutcome
    from erl_pipeline.runs.driver import OpenRun

Tasks = Annotated[
    str, typer.Option(metavar="FILE|generated", help="A task file, or generated held-out tasks.")
]
Checkpoint = Annotated[
    str, typer.Option(metavar=SELECTOR, help="An artifact id, the latest, or an iteration's.")
]
Count = Annotated[int | None, typer.Option(min=1, help="Generated tasks; default: evaluation.tasks.")]
Samples = Annotated[
    int, typer.Option(min=0, max=64, help="Sampled attempts at each task besides the greedy one.")
]


def evaluate(
    run: RunName,
    tasks: Tasks,
    checkpoint: Checkpoint = "latest",
    count: Count = None,
    samples: Samples = 4,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Evaluate first attempts, greedy and sampled, without memory or reflection in the prompt."""
    from command_line.foreground import work_on_run
    from command_line.selectors import find_checkpoint
    from erl_pipeline.plan.plan import POLICY
    from erl_pipeline.plan.runner import InProcessConfig
    from erl_pipeline.plan.sources import unread_sources
    from erl_pipeline.runs.config import run_config
    from erl_pipeline.runs.on_request import evaluate_on_request
    from erl_pipeline.runs.planning import plan_as_made
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    file = None if tasks == "generated" else Path(tasks)
    if file is not None and count is not None:
        raise InputError("--count is for --tasks generated; all tasks of a file are used")
    opened_run = RunStore(store).open(run)
    config = run_config(opened_run)
    found = find_checkpoint(ArtifactStore(store), opened_run, checkpoint)
    iteration, checkpoint_id = found.iteration or 0, found.artifact_id
    beginning = plan_as_made(store, opened_run, 0, sources=unread_sources(config)).states[0]

    def work(opened: OpenRun, _note: Callable[[str], None]) -> StageOutcome:
        opened.config = config.model_copy(update={"runner": InProcessConfig()})
        base = beginning.bases.get(POLICY)
        return evaluate_on_request(opened, iteration, checkpoint_id, base, samples, count=count, file=file)

    kept = "Stopped; nothing is kept of this evaluation."
    outcome = work_on_run(config, store, config.iterations, work, lambda: kept)
    evaluated = int(outcome.counters["episodes"]) // (1 + samples)
    if json:
        print_json(
            {
                "run": run,
                "checkpoint": checkpoint_id,
                "iteration": iteration,
                "tasks": evaluated,
                "samples_per_task": samples,
                "artifact_id": outcome.artifact_id,
                "metrics": dict(outcome.metrics),
            }
        )
        return
    print_line(f"Checkpoint {checkpoint_id[:12]} (iteration {iteration}) on {counted(evaluated, 'task')}:")
    for name, words in (("greedy_success", "greedy"), ("sampled_success", f"sampled, {samples} a task")):
        if name in outcome.metrics:
            value, low, high = (outcome.metrics[f"{name}{end}"] for end in ("", "_low", "_high"))
            print_line(f"  {words + ':':<20}{value:.3f}  (95 % interval {low:.3f} to {high:.3f})")
        if left_out := outcome.metrics.get(f"{name}_left_out"):
            print_line(f"  {'':<20}without {counted(int(left_out), 'attempt')} that were not scored")


Output = Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write; a new or an empty folder.")]
AdapterOnly = Annotated[
    bool, typer.Option("--adapter-only", help="Write a LoRA adapter alone, not merged into its base.")
]

_SAID = {
    "weights": "the model",
    "merged": "base and adapter, merged into one model",
    "adapter": "the adapter alone",
}


def export(
    run: RunName,
    output: Output,
    checkpoint: Checkpoint = "latest",
    adapter_only: AdapterOnly = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write a checkpoint as a plain folder with safetensors, configuration and tokenizer."""
    from command_line.selectors import find_checkpoint
    from erl_pipeline.policies.checkpoints import export_checkpoint
    from erl_pipeline.runs.config import run_policy
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    artifacts, opened = ArtifactStore(store), RunStore(store).open(run)
    found = find_checkpoint(artifacts, opened, checkpoint)
    exported = export_checkpoint(artifacts, run_policy(opened), found.artifact_id, output, adapter_only)
    if json:
        print_json(
            {
                "run": run,
                "iteration": found.iteration or 0,
                "checkpoint": found.artifact_id,
                "output": str(output),
                "exported": exported,
            }
        )
        return
    print_line(
        f"Wrote {_SAID[exported]} of checkpoint {found.artifact_id[:12]} (iteration {found.iteration or 0}) "
        f"to {output}"
    )
