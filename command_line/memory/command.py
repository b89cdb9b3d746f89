"""`erl-pipeline memory`: asking a run's reflection memory, and making it forget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from command_line.options import DEFAULT_STORE, Json, RunName, Store
from command_line.output import counted, print_json, print_line, print_table

if TYPE_CHECKING:
    import polars as pl

    from storage.lineage.memory_policies import ReachedPolicies, ReachedPolicy
    from storage.memory.entries import MemoryEntry
    from storage.memory.removals import Removal

app = typer.Typer(help="Ask the reflection memory, or make it forget.", no_args_is_help=True)

TopK = Annotated[int, typer.Option("--top-k", min=1, help="Entries to show.")]
TaskType = Annotated[str | None, typer.Option("--task-type", help="Only entries of this task type.")]
Environment = Annotated[str | None, typer.Option("--environment", help="Only entries of this environment.")]
MinimumGain = Annotated[
    float | None,
    typer.Option("--min-gain", help="Only entries whose second attempt gained at least this reward."),
]
Iteration = Annotated[
    int | None, typer.Option("--iteration", min=0, help="The memory as it was after this iteration.")
]
Since = Annotated[
    int | None, typer.Option("--since", min=0, help="Only entries of this iteration and later.")
]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Id of a memory entry, or its beginning.")]


@app.command()
def search(
    run: RunName,
    text: Annotated[str, typer.Argument(help="What to look for.")],
    mode: Annotated[
        Literal["vector", "text", "hybrid"],
        typer.Option("--mode", help="By similarity of meaning, by words (BM25), or both, fused by rank."),
    ] = "vector",
    top_k: TopK = 5,
    task_type: TaskType = None,
    environment: Environment = None,
    min_gain: MinimumGain = None,
    since: Since = None,
    iteration: Iteration = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare every vector, also where a large memory has an index.")
    ] = False,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Find reflections: those whose situation is most like TEXT, or that have most of its words."""
    from command_line.memory.run import open_memory

    memory = open_memory(store, run, iteration)
    view = memory.table()
    hits = view.search(
        [text],
        top_k,
        task_type=task_type,
        minimum_gain=min_gain,
        environment=environment,
        first_iteration=since,
        mode=mode,
        exact=exact,
    )[0]
    index = None if exact or mode == "text" else view.vector_index
    if json:
        found = [{"score": hit.score, **asdict(hit.entry)} for hit in hits]
        print_json(
            {
                "run": run,
                "memory_version": memory.version,
                "entries": view.count(),
                "mode": mode,
                "vector_search": index or "exact",
                "found": found,
            }
        )
        return
    how = f" (by the index {index}, which may miss some; --exact does not)" if index else ""
    print_line(f"{view.count():,} entries after iteration {memory.iteration}; the best {len(hits)}{how}:")
    for hit in hits:
        print_line()
        print_line(f"{hit.score:.3f}  {_headline(hit.entry)}")
        _print_texts(hit.entry)


@app.command("list")
def list_entries(
    run: RunName,
    task_type: TaskType = None,
    environment: Environment = None,
    min_gain: MinimumGain = None,
    since: Since = None,
    iteration: Iteration = None,
    sort: Annotated[
        Literal["newest", "retrieved", "gain"], typer.Option("--sort", help="Which come first.")
    ] = "newest",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Entries to show.")] = 20,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List the entries that the memory holds, with how often each was retrieved."""
    import polars as pl

    from command_line.memory.run import open_memory
    from storage.memory.use import memory_searches, retrieval_counts, rollout_files, stands_for

    memory = open_memory(store, run, iteration)
    entries = _narrowed(memory.held(), task_type, environment, min_gain, since)
    counts = retrieval_counts(memory_searches(rollout_files(memory.store, memory.run)))
    if iteration is not None:
        counts = counts.filter(pl.col("iteration") <= iteration)
    used = counts.group_by("entry_id").agg(pl.col("retrievals").sum())
    first = {
        "newest": ["iteration", "entry_id"],
        "retrieved": ["retrievals", "iteration", "entry_id"],
        "gain": ["gain", "iteration", "entry_id"],
    }[sort]
    shown = (
        entries.select("entry_id", "iteration", "task_type", "environment", "gain", "text")
        .join(used.lazy(), on="entry_id", how="left")
        .with_columns(pl.col("retrievals").fill_null(0))
        .sort(first, descending=True)
        .head(limit)
        .collect()
        .to_dicts()
    )
    count = entries.select(pl.len()).collect().item()
    merged = stands_for(memory.deltas)
    for row in shown:
        row["stands_for"] = merged.get(row["entry_id"], 1)
    if json:
        print_json({"run": run, "memory_version": memory.version, "entries": count, "shown": shown})
        return
    print_line(f"{count:,} entries after iteration {memory.iteration}; {len(shown)} shown, {sort} first")
    print_table(
        [
            {
                "entry": row["entry_id"],
                "iteration": str(row["iteration"]),
                "task type": row["task_type"],
                "gain": f"{row['gain']:g}",
                "retrieved": str(row["retrievals"]),
                "stands for": str(row["stands_for"]),
                "reflection": _short(row["text"]),
            }
            for row in shown
        ],
        left=("entry", "task type", "reflection"),
    )


@app.command()
def show(
    run: RunName,
    entry: Entry,
    policies: Annotated[
        bool, typer.Option("--policies", help="Also the policies that it has reached, in all runs.")
    ] = False,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show an entry: where it is from, when it was retrieved, and how the attempts after that went."""
    import polars as pl

    from command_line.memory.outcomes import effect_lines
    from command_line.memory.run import open_memory
    from erl_pipeline.evaluation.memory_effect import memory_effect
    from storage.lineage.memory_policies import policies_reached
    from storage.memory.chain import scan_removed
    from storage.memory.use import compare, memory_searches, retrieval_counts, rollout_files

    memory = open_memory(store, run)
    found = memory.find(entry)
    removal = memory.removal(found.entry_id)
    into_it = scan_removed(memory.deltas).filter(pl.col("merged_into") == found.entry_id)
    merged = into_it.select("entry_id", "similarity", "memory_version").collect().to_dicts()
    seen = memory_searches(rollout_files(memory.store, memory.run))
    uses = retrieval_counts(seen).filter(pl.col("entry_id") == found.entry_id).drop("entry_id")
    effect = memory_effect(compare(seen, found.entry_id))
    reached = policies_reached(memory.store, found) if policies else None
    if json:
        print_json(
            {
                **asdict(found),
                "removed": None if removal is None else asdict(removal),
                "merged_into_it": merged,
                "retrievals": uses.to_dicts(),
                "outcomes": asdict(effect),
                **({} if reached is None else {"policies": asdict(reached)}),
            }
        )
        return
    print_line(_headline(found))
    print_line(_state_line(removal))
    _print_texts(found)
    print_line()
    print_line(f"source trajectory: {found.source_trajectory_id or 'none'}")
    print_line(f"written by policy: {found.policy_version or 'none'}")
    if found.parent_entry_ids:
        print_line(f"written with these in the prompt: {', '.join(found.parent_entry_ids)}")
    if merged:
        print_line(f"stands for {len(merged) + 1} entries: {', '.join(row['entry_id'] for row in merged)}")
    total = int(uses["retrievals"].sum())
    print_line(f"retrieved {counted(total, 'time')} in {counted(uses['iteration'].n_unique(), 'iteration')}")
    print_table(
        [
            {
                "iteration": str(row["iteration"]),
                "retrieved": str(row["retrievals"]),
                "from memory version": row["memory_version"],
            }
            for row in uses.to_dicts()
        ],
        left=("from memory version",),
    )
    for line in effect_lines(effect, "this entry", "others at the same tasks"):
        print_line(line)
    if reached is not None:
        _print_reach(reached)


@app.command()
def stats(
    run: RunName, iteration: Iteration = None, store: Store = DEFAULT_STORE, json: Json = False
) -> None:
    """Show how the memory grew, how much of it is used, and whether it helped."""
    import polars as pl

    from command_line.memory.outcomes import effect_lines
    from command_line.memory.run import open_memory
    from erl_pipeline.evaluation.memory_effect import memory_effect
    from storage.memory.use import compare, growth, memory_searches, retrieval_counts, rollout_files

    memory = open_memory(store, run, iteration)
    seen = memory_searches(rollout_files(memory.store, memory.run))
    if iteration is not None:
        seen = seen.filter(pl.col("iteration") <= iteration)
    counts = retrieval_counts(seen)
    by_iteration = dict(counts.group_by("iteration").agg(pl.col("retrievals").sum()).rows())
    versions = [{**row, "retrieved": by_iteration.pop(row["iteration"], 0)} for row in growth(memory.deltas)]
    per_entry = counts.group_by("entry_id").agg(pl.col("retrievals").sum())
    per_entry = per_entry.sort(["retrievals", "entry_id"], descending=[True, False])
    held = memory.held()
    types = dict(held.group_by("task_type").len().sort("task_type").collect().rows())
    ever = per_entry.lazy().join(held.select("entry_id"), on="entry_id", how="semi")
    numbers = {
        "entries": int(versions[-1]["entries"]) if versions else 0,
        **{
            name: sum(int(row[name]) for row in versions)
            for name in ("added", "merged", "evicted", "forgotten")
        },
        "retrievals": int(per_entry["retrievals"].sum()),
        "entries_retrieved": per_entry.height,
        "held_and_never_retrieved": (int(versions[-1]["entries"]) if versions else 0)
        - ever.select(pl.len()).collect().item(),
        "reflections": seen.height,
        "reflections_that_saw_memory": seen.filter(pl.col("memory_entry_ids").list.len() > 0).height,
    }
    effect = memory_effect(compare(seen, None))
    most = per_entry.head(5).to_dicts()
    if json:
        print_json(
            {
                "run": run,
                "memory_version": memory.version,
                **numbers,
                "task_types": types,
                "versions": versions,
                "most_retrieved": most,
                "outcomes": asdict(effect),
            }
        )
        return
    print_line(
        f"{numbers['entries']:,} entries after iteration {memory.iteration}: {numbers['added']:,} added, "
        f"{numbers['merged']:,} merged, {numbers['evicted']:,} evicted, {numbers['forgotten']:,} forgotten"
    )
    if types:
        print_line("by task type: " + ", ".join(f"{name} {count:,}" for name, count in types.items()))
    columns = ("iteration", "added", "merged", "evicted", "forgotten", "entries", "retrieved")
    print_table([{name: str(row[name]) for name in columns} for row in versions])
    print_line(
        f"{numbers['reflections_that_saw_memory']:,} of {numbers['reflections']:,} reflections saw memory; "
        f"{numbers['entries_retrieved']:,} entries were retrieved, {numbers['retrievals']:,} times; "
        f"{numbers['held_and_never_retrieved']:,} of those held never were"
    )
    for row in most:
        print_line(f"  {row['retrievals']:>5} times  {row['entry_id']}")
    for line in effect_lines(effect, "memory", "others, which saw none"):
        print_line(line)


@app.command("forget")
def forget_entry(
    run: RunName,
    entry: Entry,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept for those who ask later.")],
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Remove an entry from all future versions of the memory; the record of it and of why stays."""
    from command_line.memory.run import open_memory
    from storage.lineage.memory_policies import policies_reached
    from storage.memory.forgetting import forget

    memory = open_memory(store, run)
    found = memory.find(entry)
    done = forget(memory.store, memory.run, found.entry_id, reason)
    reached = policies_reached(memory.store, found)
    if json:
        print_json({**asdict(done), "policies": asdict(reached)})
        return
    if done.memory_version is None:
        print_line(
            f"Entry {done.entry_id} leaves the memory when iteration {done.iteration}, which has begun, "
            "is done: its rollouts already search the version that holds the entry."
        )
    else:
        print_line(
            f"Entry {done.entry_id} is forgotten: it is not in memory version {done.memory_version}, "
            f"from which iteration {done.iteration + 1} goes on."
        )
    print_line(f"Recorded, with the reason, as {done.request_id}; versions before keep the entry.")
    _print_reach(reached)


@app.command()
def export(
    run: RunName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .parquet, or .jsonl without vectors.")
    ],
    task_type: TaskType = None,
    environment: Environment = None,
    min_gain: MinimumGain = None,
    since: Since = None,
    iteration: Iteration = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write the entries of the memory to a file."""
    import polars as pl

    from command_line.memory.run import open_memory
    from storage.errors import InputError
    from storage.filesystem import store_errors

    if output.suffix not in (".parquet", ".jsonl"):
        raise InputError(f"{output} ends in neither .parquet nor .jsonl, which says what to write.")
    memory = open_memory(store, run, iteration)
    entries = _narrowed(memory.held(), task_type, environment, min_gain, since)
    count = entries.select(pl.len()).collect().item()
    with store_errors("write", output):
        if output.suffix == ".parquet":
            entries.sink_parquet(output)
        else:
            entries.drop("vector").sink_ndjson(output)
    if json:
        print_json({"run": run, "memory_version": memory.version, "entries": count, "output": str(output)})
    else:
        print_line(f"Wrote {count:,} entries, as they were after iteration {memory.iteration}, to {output}")


def _narrowed(
    entries: pl.LazyFrame,
    task_type: str | None,
    environment: str | None,
    min_gain: float | None,
    since: int | None,
) -> pl.LazyFrame:
    """The entries that meet the filters, with their `gain`."""
    import polars as pl

    entries = entries.with_columns(gain=pl.col("reward_after") - pl.col("reward_before"))
    if task_type is not None:
        entries = entries.filter(pl.col("task_type") == task_type)
    if environment is not None:
        entries = entries.filter(pl.col("environment") == environment)
    if min_gain is not None:
        entries = entries.filter(pl.col("gain") >= pl.lit(min_gain, pl.Float32))
    if since is not None:
        entries = entries.filter(pl.col("iteration") >= since)
    return entries


def _headline(entry: MemoryEntry) -> str:
    return (
        f"{entry.entry_id}  iteration {entry.iteration}, {entry.task_type}, "
        f"reward {entry.reward_before:g} -> {entry.reward_after:g}"
    )


def _print_texts(entry: MemoryEntry) -> None:
    texts = {"task": entry.task_text, "feedback": entry.feedback, "reflection": entry.text}
    for name, value in texts.items():
        print_line(f"  {name + ':':<12}" + value.strip().replace("\n", "\n" + " " * 14))


def _state_line(removal: Removal | None) -> str:
    if removal is None:
        return "held by the newest memory version"
    why = {
        "merged": f"merged with {removal.merged_into}, similarity {removal.similarity or 0:.3f}",
        "evicted": f"evicted from the full memory ({removal.detail.replace('_', ' ')})",
        "forgotten": f"forgotten: {removal.detail}",
    }[removal.reason]
    return f"not held since memory version {removal.memory_version}: {why}"


def _print_reach(reached: ReachedPolicies) -> None:
    """The policies that an entry has come to."""
    groups: list[tuple[str, Any]] = [
        ("trained on rollouts in which a prompt held it", reached.trained_with_it),
        ("trained on the reflection itself", reached.trained_on_its_source),
        ("trained later from these", reached.descendants),
    ]
    if not any(policies for _, policies in groups):
        print_line("It has reached no policy.")
    for what, policies in groups:
        if policies:
            print_line(f"Policies {what}: {len(policies)}")
            for policy in policies:
                print_line(f"  {_policy(policy)}")
    if reached.derived_entries:
        print_line("Entries written with it in the prompt, which stay: " + ", ".join(reached.derived_entries))


def _policy(policy: ReachedPolicy) -> str:
    when = "before the first iteration" if policy.iteration is None else f"iteration {policy.iteration}"
    return f"{policy.artifact_id}  {policy.run}, {when}, {policy.stage}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
