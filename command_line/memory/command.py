"""`erl-pipeline memory`: searches and lists a run's reflection memory, and makes it forget."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from command_line.options import DEFAULT_STORE, LARGEST_NUMBER, ExistingStore, Json, RunName
from storage.errors import InputError

TopK = Annotated[int, typer.Option(min=1, max=LARGEST_NUMBER, help="Entries to show.")]
TaskType = Annotated[str | None, typer.Option(help="Only entries of this task type.")]
Environment = Annotated[str | None, typer.Option(help="Only entries of this environment.")]
MinimumCredit = Annotated[
    float | None, typer.Option(min=-1e6, max=1e6, help="Only entries with at least this credit.")
]
Iteration = Annotated[
    int | None, typer.Option(min=0, max=LARGEST_NUMBER, help="The memory as it was after this iteration.")
]
Since = Annotated[
    int | None, typer.Option(min=0, max=LARGEST_NUMBER, help="Only entries of this iteration and later.")
]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Id of a memory entry, or its beginning.")]

app = typer.Typer(help="Search or list the reflection memory, or make it forget.", no_args_is_help=True)


@app.command()
def search(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.")],
    mode: Annotated[
        Literal["vector", "text", "hybrid"],
        typer.Option(help="By similarity of meaning, by words (BM25), or both, fused by rank."),
    ] = "vector",
    top_k: TopK = 5,
    task_type: TaskType = None,
    environment: Environment = None,
    min_credit: MinimumCredit = None,
    since: Since = None,
    iteration: Iteration = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare every vector, also where a large memory has an index.")
    ] = False,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="Also entries that say almost the same as a better one.")
    ] = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Find the reflections whose situation is most similar to TEXT, or that best match its words."""
    from command_line.memory.entries import search_entries
    from command_line.memory.run import open_memory
    from storage.memory.search import MemoryFilter

    if not text.strip():
        raise InputError("TEXT is empty: say what to look for; `memory list` shows all entries.")
    memory = open_memory(store, run, iteration)
    wanted = MemoryFilter(task_type, environment, min_credit, since)
    search_entries(memory, text, mode, top_k, wanted, exact=exact, duplicates=duplicates, json=json)


@app.command()
def stats(
    run: RunName, iteration: Iteration = None, store: ExistingStore = DEFAULT_STORE, json: Json = False
) -> None:
    """Show how the memory grew, how much of it is used, and whether it helps."""
    from command_line.memory.entry import show_stats

    show_stats(run, iteration, store, json)


@app.command()
def show(
    run: RunName,
    entry: Entry,
    policies: Annotated[
        bool, typer.Option("--policies", help="Also the policies that it has reached, in all runs.")
    ] = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show an entry: where it is from, when it was retrieved, and what attempts with it gained."""
    from command_line.memory.entry import show_entry

    show_entry(run, entry, policies, store, json)


@app.command()
def forget(
    run: RunName,
    entry: Entry,
    reason: Annotated[str, typer.Option(help="Why; it is recorded for later readers.")],
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Remove an entry from the memory; its record and the reason stay.

    A policy that has learned the text may write it again; then it is a new entry.
    """
    from command_line.memory.entry import forget_entry

    forget_entry(run, entry, reason, store, json)


@app.command("list")
def list_memory(
    run: RunName,
    task_type: TaskType = None,
    environment: Environment = None,
    min_credit: MinimumCredit = None,
    since: Since = None,
    iteration: Iteration = None,
    sort: Annotated[
        Literal["newest", "retrieved", "credit", "support"],
        typer.Option(help="Which come first; newest: those whose text was written last, maybe again."),
    ] = "newest",
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_NUMBER, help="Entries to show.")] = 20,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List the entries of the memory: their credit, and how often they were written and retrieved."""
    from command_line.memory.entries import list_entries
    from command_line.memory.run import open_memory
    from storage.memory.search import MemoryFilter

    wanted = MemoryFilter(task_type, environment, min_credit, since)
    list_entries(open_memory(store, run, iteration), wanted, sort, limit, json)


@app.command()
def export(
    run: RunName,
    output: Annotated[Path, typer.Option(metavar="FILE", help="A .parquet file, or .jsonl without vectors.")],
    task_type: TaskType = None,
    environment: Environment = None,
    min_credit: MinimumCredit = None,
    since: Since = None,
    iteration: Iteration = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing file.")] = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write the entries of the memory to a file."""
    from command_line.memory.entries import export_entries
    from command_line.memory.run import open_memory
    from storage.memory.search import MemoryFilter

    if output.suffix not in (".parquet", ".jsonl"):
        raise InputError(f"--output {output}: name a file that ends in .parquet or .jsonl.")
    if output.exists() and not replace:
        raise InputError(f"--output {output} exists already; --replace overwrites it.")
    wanted = MemoryFilter(task_type, environment, min_credit, since)
    export_entries(open_memory(store, run, iteration), wanted, output, json)
