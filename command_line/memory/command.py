"""`erl-pipeline memory`: searches and lists a run's reflection memory, and makes it forget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
import typer

from command_line.memory.entry import (
    Environment,
    Iteration,
    MinimumCredit,
    Since,
    TaskType,
    TopK,
    forget_entry,
    headline,
    print_texts,
    show,
    stats,
)
from command_line.memory.run import open_memory
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import counted, one_line, print_json, print_line, print_table
from storage.errors import InputError
from storage.memory.view import FoldedHit, MemoryHit, folded_search

Mode = Literal["vector", "text", "hybrid"]

_SCORES: dict[Mode, str] = {
    "vector": "cosine similarity of an entry's situation to TEXT, from -1 to 1",
    "text": "BM25 of the words of TEXT in an entry; it compares entries of one search only",
    "hybrid": "sum of reciprocal ranks in the two searches; it compares entries of one search only",
}


def search(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.")],
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="By similarity of meaning, by words (BM25), or both, fused by rank."),
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
    if not text.strip():
        raise InputError("TEXT is empty: say what to look for; `memory list` shows all entries.")
    memory = open_memory(store, run, iteration)
    view = memory.table()

    def best(count: int) -> list[MemoryHit]:
        return view.search(
            [text],
            count,
            task_type=task_type,
            minimum_credit=min_credit,
            environment=environment,
            first_iteration=since,
            mode=mode,
            exact=exact,
        )[0]

    hits = [FoldedHit(hit) for hit in best(top_k)] if duplicates else folded_search(best, top_k)
    index = None if exact or mode == "text" else view.vector_index
    if json:
        print_json(
            {
                "run": run,
                "memory_version": memory.version,
                "entries": view.count(),
                "mode": mode,
                "score_is": _SCORES[mode],
                "vector_search": index or "exact",
                "found": [
                    {
                        "score": each.hit.score,
                        **asdict(each.hit.entry),
                        "alike": [other.entry.entry_id for other in each.alike],
                    }
                    for each in hits
                ],
            }
        )
        return
    how = f" (by the index {index}, which may miss some; --exact does not)" if index else ""
    held = counted(view.count(), "entry", "entries")
    print_line(f"{held} after iteration {memory.iteration}; the best {len(hits)}{how}:")
    print_line(f"score: {_SCORES[mode]}")
    for each in hits:
        print_line()
        print_line(f"{each.hit.score:.3f}  {headline(each.hit.entry)}")
        print_texts(each.hit.entry)
        if each.alike:
            ids = ", ".join(other.entry.entry_id for other in each.alike[:3])
            more = ", ..." if len(each.alike) > 3 else ""
            print_line(f"  and {counted(len(each.alike), 'entry', 'entries')} almost the same: {ids}{more}")


app = typer.Typer(help="Search or list the reflection memory, or make it forget.", no_args_is_help=True)
app.command()(search)
app.command()(stats)
app.command()(show)
app.command("forget")(forget_entry)


@app.command("list")
def list_entries(
    run: RunName,
    task_type: TaskType = None,
    environment: Environment = None,
    min_credit: MinimumCredit = None,
    since: Since = None,
    iteration: Iteration = None,
    sort: Annotated[
        Literal["newest", "retrieved", "credit", "support"], typer.Option("--sort", help="Which come first.")
    ] = "newest",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Entries to show.")] = 20,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List the entries of the memory: their credit, and how often they were written and retrieved."""
    memory = open_memory(store, run, iteration)
    entries = _narrowed(memory.held(), task_type, environment, min_credit, since)
    first = {
        "newest": ["last_iteration", "entry_id"],
        "retrieved": ["retrievals", "last_iteration", "entry_id"],
        "credit": ["credit", "credit_count", "entry_id"],
        "support": ["support", "last_iteration", "entry_id"],
    }[sort]
    shown = entries.select(_LISTED).sort(first, descending=True).head(limit).collect().to_dicts()
    count = entries.select(pl.len()).collect().item()
    if json:
        print_json({"run": run, "memory_version": memory.version, "entries": count, "shown": shown})
        return
    held = counted(count, "entry", "entries")
    print_line(f"{held} after iteration {memory.iteration}; {len(shown)} shown, {sort} first")
    print_table(
        [
            {
                "entry": row["entry_id"],
                "iteration": str(row["iteration"]),
                "task type": row["task_type"],
                "credit": f"{row['credit']:+.3f}",
                "of": str(row["credit_count"]),
                "support": str(row["support"]),
                "retrieved": str(row["retrievals"]),
                "text": one_line(row["text"]),
            }
            for row in shown
        ],
        left=("entry", "task type", "text"),
    )


@app.command()
def export(
    run: RunName,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="A .parquet file, or .jsonl without vectors.")
    ],
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
    import polars as pl

    from command_line.memory.run import open_memory
    from storage.errors import InputError, store_errors

    if output.suffix not in (".parquet", ".jsonl"):
        raise InputError(f"--output {output}: name a file that ends in .parquet or .jsonl.")
    if output.exists() and not replace:
        raise InputError(f"--output {output} exists already; --replace overwrites it.")
    memory = open_memory(store, run, iteration)
    entries = _narrowed(memory.held(), task_type, environment, min_credit, since)
    count = entries.select(pl.len()).collect().item()
    with store_errors("write", output):
        if output.suffix == ".parquet":
            entries.sink_parquet(output)
        else:
            entries.drop("vector").sink_ndjson(output)
    if json:
        print_json({"run": run, "memory_version": memory.version, "entries": count, "output": str(output)})
    else:
        held = f"{counted(count, 'entry', 'entries')}, as the memory was after iteration {memory.iteration},"
        print_line(f"Wrote {held} to {output}")


_LISTED = [
    "entry_id",
    "iteration",
    "last_iteration",
    "task_type",
    "environment",
    "credit",
    "credit_count",
    "support",
    "retrievals",
    "text",
]


def _narrowed(
    entries: pl.LazyFrame,
    task_type: str | None,
    environment: str | None,
    min_credit: float | None,
    since: int | None,
) -> pl.LazyFrame:
    """The entries that meet the filters."""
    if task_type is not None:
        entries = entries.filter(pl.col("task_type") == task_type)
    if environment is not None:
        entries = entries.filter(pl.col("environment") == environment)
    if min_credit is not None:
        entries = entries.filter(pl.col("credit") >= min_credit)
    if since is not None:
        entries = entries.filter(pl.col("iteration") >= since)
    return entries
