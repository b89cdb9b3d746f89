"""`erl-pipeline export`: writes a checkpoint as a folder that other programs can load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import print_json, print_line
from command_line.selectors import SELECTOR, find_checkpoint

Output = Annotated[
    Path, typer.Option("--output", metavar="FOLDER", help="Where to write; a new or an empty folder.")
]
Checkpoint = Annotated[
    str, typer.Option("--checkpoint", metavar=SELECTOR, help="An artifact id, the latest, or an iteration's.")
]
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
