"""`erl-pipeline memory`: looking into a run's reflection memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, RunName, Store
from command_line.output import print_json, print_line

app = typer.Typer(help="Look into the reflection memory.", no_args_is_help=True)

TopK = Annotated[int, typer.Option("--top-k", min=1, help="Entries to show.")]
TaskType = Annotated[str | None, typer.Option("--task-type", help="Only entries of this task type.")]
Iteration = Annotated[
    int | None, typer.Option("--iteration", min=0, help="The memory as it was after this iteration.")
]


@app.command()
def search(
    run: RunName,
    text: Annotated[str, typer.Argument(help="What to look for; found by similarity of meaning.")],
    top_k: TopK = 5,
    task_type: TaskType = None,
    iteration: Iteration = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Find the reflections whose situation is most like TEXT, the nearest first."""
    from command_line.run_state import run_config
    from storage.artifacts import ArtifactStore
    from storage.embedding import Embedder
    from storage.errors import InputError
    from storage.memory import EMPTY_MEMORY, ReflectionMemory
    from storage.runs import RunStore

    opened = RunStore(store).open(run)
    settings = run_config(opened).memory
    if settings is None:
        raise InputError(f"run {run} has no memory: its configuration says memory: off")
    versions = {
        entry.iteration or 0: entry.artifact_id for entry in opened.stages() if entry.stage == "index_memory"
    }
    last = max((number for number in versions if iteration is None or number <= iteration), default=None)
    version = EMPTY_MEMORY if last is None else versions[last]
    embedder = Embedder(settings.embedding_model)
    memory = ReflectionMemory(store, run, ArtifactStore(store), embedder).at(version)
    hits = memory.search([text], top_k, task_type=task_type)[0]
    if json:
        found = [{"score": hit.score, **asdict(hit.entry)} for hit in hits]
        print_json({"run": run, "memory_version": version, "entries": memory.count(), "found": found})
        return
    print_line(f"{memory.count()} entries after iteration {last or 0}; the nearest {len(hits)}:")
    for hit in hits:
        entry = hit.entry
        print_line()
        print_line(
            f"{hit.score:.3f}  {entry.entry_id}  iteration {entry.iteration}, {entry.task_type}, "
            f"reward {entry.reward_before:g} -> {entry.reward_after:g}"
        )
        texts = {"task": entry.task_text, "feedback": entry.feedback, "reflection": entry.text}
        for name, value in texts.items():
            print_line(f"  {name + ':':<12}" + value.strip().replace("\n", "\n" + " " * 14))
