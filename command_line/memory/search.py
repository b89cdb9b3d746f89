"""`erl-pipeline memory search`: finds the entries that are most similar to a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from command_line.memory.options import (
    Environment,
    Iteration,
    MinimumCredit,
    Since,
    TaskType,
    TopK,
)
from command_line.memory.texts import headline, print_texts
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import counted, print_json, print_line

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
    from command_line.memory.run import open_memory
    from storage.errors import InputError
    from storage.memory.folding import FoldedHit, folded_search
    from storage.memory.view import MemoryHit

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
