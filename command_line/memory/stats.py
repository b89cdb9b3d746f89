"""`erl-pipeline memory stats`: how a memory grew, how it is used, and whether it helps."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from command_line.memory.entry import Iteration
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import counted, print_json, print_line, print_table

if TYPE_CHECKING:
    import polars as pl

    from command_line.memory.run import RunMemory


_CHANGES = ("added", "copies", "returned", "updated", "evicted", "forgotten", "replaced")
_SHOWN_ENTRIES = 5


def stats(
    run: RunName, iteration: Iteration = None, store: ExistingStore = DEFAULT_STORE, json: Json = False
) -> None:
    """Show how the memory grew, how much of it is used, and whether it helps."""
    import polars as pl

    from command_line.memory.run import effect_lines, interval, open_memory
    from erl_pipeline.evaluation.memory_effect import entry_credits, memory_effect
    from storage.memory.credit import growth, memory_searches, retrieval_counts, rollout_files

    memory = open_memory(store, run, iteration)
    seen = memory_searches(rollout_files(memory.store, memory.run))
    if iteration is not None:
        seen = seen.filter(pl.col("iteration") <= iteration)
    by_iteration = dict(retrieval_counts(seen).group_by("iteration").agg(pl.col("retrievals").sum()).rows())
    versions = [{**row, "retrieved": by_iteration.pop(row["iteration"], 0)} for row in growth(memory.deltas)]
    held = memory.held().drop("vector").collect()
    numbers = _numbers(memory, seen, held) | {
        name: sum(int(row[name]) for row in versions) for name in _CHANGES
    }
    types = dict(held.group_by("task_type").len().sort("task_type").rows())
    credits = entry_credits(seen)
    most = (
        held.sort(["retrievals", "support", "entry_id"], descending=[True, True, False])
        .head(_SHOWN_ENTRIES)
        .select("entry_id", "retrievals", "support", "credit", "credit_count")
        .to_dicts()
    )
    effect = memory_effect(seen)
    if json:
        print_json(
            {
                "run": run,
                "memory_version": memory.version,
                **numbers,
                "task_types": types,
                "versions": versions,
                "most_retrieved": most,
                "credits": {entry_id: asdict(credit) for entry_id, credit in sorted(credits.items())},
                "outcomes": asdict(effect),
            }
        )
        return
    changes = ", ".join(f"{numbers[name]:,} {name}" for name in _CHANGES if numbers[name])
    entries = counted(numbers["entries"], "entry", "entries")
    print_line(f"{entries} after iteration {memory.iteration}: {changes or 'no change'}")
    if types:
        print_line("by task type: " + ", ".join(f"{name} {count:,}" for name, count in types.items()))
    columns = ["iteration", *(name for name in _CHANGES if numbers[name]), "entries", "retrieved"]
    print_table([{name: str(row[name]) for name in columns} for row in versions])
    print_line(
        f"{numbers['saw_memory']:,} of {numbers['reflections']:,} reflections saw memory, "
        f"{numbers['withheld']:,} were kept from it by chance, to measure its effect; "
        f"{numbers['copied']:,} repeat an entry that they saw, word for word"
    )
    print_line(
        f"entries retrieved: {numbers['entries_retrieved']:,}, "
        f"{counted(numbers['retrievals'], 'time')} in all; "
        f"{numbers['held_and_never_retrieved']:,} of those held never were"
    )
    print_table(
        [
            {
                "entry": row["entry_id"],
                "retrieved": str(row["retrievals"]),
                "support": str(row["support"]),
                "credit (95 %)": interval(credits.get(row["entry_id"])),
                "compared": str(row["credit_count"]),
            }
            for row in most
        ],
        left=("entry",),
    )
    for line in effect_lines(effect):
        print_line(line)


def _numbers(memory: RunMemory, seen: pl.DataFrame, held: pl.DataFrame) -> dict[str, int]:
    """Counts over all iterations."""
    import polars as pl

    from storage.memory.credit import copied
    from storage.tables.trajectories import FREE

    shown = seen["memory_entry_ids"].explode().drop_nulls()
    return {
        "entries": held.height,
        "support": int(held["support"].sum()),
        "retrievals": len(shown),
        "entries_retrieved": shown.n_unique(),
        "held_and_never_retrieved": held.filter(~pl.col("entry_id").is_in(shown.unique().implode())).height,
        "reflections": seen.height,
        "saw_memory": seen.filter(pl.col("memory_entry_ids").list.len() > 0).height,
        "withheld": seen.filter(pl.col("subgroup") == FREE).height,
        "copied": copied(seen, memory.deltas),
    }
