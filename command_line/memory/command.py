"""`erl-pipeline memory`: asking a run's reflection memory, and making it forget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from command_line.memory.options import (
    Entry,
    Environment,
    Iteration,
    MinimumCredit,
    Since,
    TaskType,
    TopK,
)
from command_line.memory.stats import stats
from command_line.options import DEFAULT_STORE, Json, RunName, Store
from command_line.output import counted, print_json, print_line, print_table

if TYPE_CHECKING:
    import polars as pl

    from storage.lineage.memory_policies import ReachedPolicies, ReachedPolicy
    from storage.memory.entries import MemoryEntry
    from storage.memory.operations import Operation

app = typer.Typer(help="Ask the reflection memory, or make it forget.", no_args_is_help=True)
app.command()(stats)


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
    min_credit: MinimumCredit = None,
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
        minimum_credit=min_credit,
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
    min_credit: MinimumCredit = None,
    since: Since = None,
    iteration: Iteration = None,
    sort: Annotated[
        Literal["newest", "retrieved", "credit", "support"], typer.Option("--sort", help="Which come first.")
    ] = "newest",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Entries to show.")] = 20,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List the entries that the memory holds: what they were worth, how often they were written and shown."""
    import polars as pl

    from command_line.memory.run import open_memory

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
    print_line(f"{count:,} entries after iteration {memory.iteration}; {len(shown)} shown, {sort} first")
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
                "text": _short(row["text"]),
            }
            for row in shown
        ],
        left=("entry", "task type", "text"),
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
    """Show an entry: where it is from, when it was retrieved, and what those gained who saw it."""
    from command_line.memory.outcomes import credit_line
    from command_line.memory.run import open_memory
    from erl_pipeline.evaluation.memory_effect import entry_credits
    from storage.lineage.memory_policies import policies_reached
    from storage.memory.use import memory_searches, retrieval_counts, rollout_files

    memory = open_memory(store, run)
    found = memory.find(entry)
    removal = memory.removal(found.entry_id)
    operations = memory.operations(found.entry_id)
    seen = memory_searches(rollout_files(memory.store, memory.run))
    uses = retrieval_counts(seen).filter(entry_id=found.entry_id).drop("entry_id")
    credit = entry_credits(seen).get(found.entry_id)
    reached = policies_reached(memory.store, found) if policies else None
    if json:
        print_json(
            {
                **asdict(found),
                "removed": None if removal is None else asdict(removal),
                "operations": operations.to_dicts(),
                "retrievals": uses.to_dicts(),
                "credit_interval": None if credit is None else asdict(credit),
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
    print_line(f"written {counted(found.support, 'time')}, last in iteration {found.last_iteration}")
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
    print_line(credit_line(credit))
    if reached is not None:
        _print_reach(reached)


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
    min_credit: MinimumCredit = None,
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
        print_line(f"Wrote {count:,} entries, as they were after iteration {memory.iteration}, to {output}")


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
    import polars as pl

    if task_type is not None:
        entries = entries.filter(pl.col("task_type") == task_type)
    if environment is not None:
        entries = entries.filter(pl.col("environment") == environment)
    if min_credit is not None:
        entries = entries.filter(pl.col("credit") >= min_credit)
    if since is not None:
        entries = entries.filter(pl.col("iteration") >= since)
    return entries


def _headline(entry: MemoryEntry) -> str:
    return (
        f"{entry.entry_id}  iteration {entry.iteration}, {entry.task_type}, "
        f"credit {entry.credit:+.3f}, support {entry.support}, retrieved {entry.retrievals}"
    )


def _print_texts(entry: MemoryEntry) -> None:
    texts = {"task": entry.task_text, "feedback": entry.feedback, entry.kind: entry.text}
    for name, value in texts.items():
        print_line(f"  {name + ':':<12}" + value.strip().replace("\n", "\n" + " " * 14))


def _state_line(removal: Operation | None) -> str:
    if removal is None:
        return "held by the newest memory version"
    why = {
        "evicted": f"evicted from the full memory ({removal.detail.replace('_', ' ')})",
        "forgotten": f"forgotten: {removal.detail}",
        "replaced": f"replaced {removal.detail}".rstrip(),
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
