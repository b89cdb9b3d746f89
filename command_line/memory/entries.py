"""The entries of a memory: those most similar to a text, a list of them, and a file of them."""

from dataclasses import asdict
from pathlib import Path

import polars as pl

from command_line.memory.entry import credit_text, headline, print_texts
from command_line.memory.run import RunMemory
from command_line.output import counted, one_line, print_json, print_line, print_table
from storage.errors import store_errors
from storage.memory.search import MemoryFilter, SearchMode
from storage.memory.view import FoldedHit, MemoryHit, folded_search

_SCORES: dict[SearchMode, str] = {
    "vector": "cosine similarity of an entry's situation to TEXT, from -1 to 1",
    "text": "BM25 of the words of TEXT in an entry; it compares entries of one search only",
    "hybrid": "sum of reciprocal ranks in the two searches; it compares entries of one search only",
}


def search_entries(
    memory: RunMemory,
    text: str,
    mode: SearchMode,
    top_k: int,
    wanted: MemoryFilter,
    *,
    exact: bool,
    duplicates: bool,
    json: bool,
) -> None:
    """Print the best `top_k` entries for a text."""
    view = memory.table()

    def best(count: int) -> list[MemoryHit]:
        return view.search([text], count, wanted, mode=mode, exact=exact)[0]

    hits = [FoldedHit(hit) for hit in best(top_k)] if duplicates else folded_search(best, top_k)
    index = None if exact or mode == "text" else view.vector_index
    if json:
        print_json(
            {
                "run": memory.run.name,
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


def list_entries(memory: RunMemory, wanted: MemoryFilter, sort: str, limit: int, json: bool) -> None:
    """Print the first `limit` entries, sorted by `newest`, `retrieved`, `credit` or `support`."""
    entries = memory.held(wanted)
    first = {
        "newest": ["last_iteration", "entry_id"],
        "retrieved": ["retrievals", "last_iteration", "entry_id"],
        "credit": ["credit", "credit_count", "entry_id"],
        "support": ["support", "last_iteration", "entry_id"],
    }[sort]
    shown = entries.select(_LISTED).sort(first, descending=True).head(limit).collect().to_dicts()
    count = entries.select(pl.len()).collect().item()
    if json:
        print_json(
            {"run": memory.run.name, "memory_version": memory.version, "entries": count, "shown": shown}
        )
        return
    held = counted(count, "entry", "entries")
    print_line(f"{held} after iteration {memory.iteration}; {len(shown)} shown, {sort} first")
    print_table(
        [
            {
                "entry": row["entry_id"],
                "iteration": str(row["iteration"]),
                "task type": row["task_type"],
                "credit": credit_text(row["credit"], row["credit_count"]),
                "of": str(row["credit_count"]),
                "support": str(row["support"]),
                "retrieved": str(row["retrievals"]),
                "text": one_line(row["text"]),
            }
            for row in shown
        ],
        left=("entry", "task type", "text"),
    )


def export_entries(memory: RunMemory, wanted: MemoryFilter, output: Path, json: bool) -> None:
    """Write the entries to a file, as Parquet or lines of JSON, as its name ends."""
    entries = memory.held(wanted)
    count = entries.select(pl.len()).collect().item()
    with store_errors("write", output):
        if output.suffix == ".parquet":
            entries.sink_parquet(output)
        else:
            entries.drop("vector").sink_ndjson(output)
    if json:
        print_json(
            {
                "run": memory.run.name,
                "memory_version": memory.version,
                "entries": count,
                "output": str(output),
            }
        )
    else:
        held = f"{counted(count, 'entry', 'entries')}, as the memory was after iteration {memory.iteration},"
        print_line(f"Wrote {held} to {output}")
