"""`erl-pipeline evaluate|export`: a checkpoint on chosen tasks, or as a folder for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, SELECTOR, ExistingStore, Json, RunName
from command_line.output import print_json, print_line
from storage.errors import InputError

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
    from command_line.checkpoints.evaluation import evaluate_checkpoint

    file = None if tasks == "generated" else Path(tasks)
    if file is not None and count is not None:
        raise InputError("--count is for --tasks generated; all tasks of a file are used")
    evaluate_checkpoint(run, checkpoint, file, count, samples, store, json)


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
