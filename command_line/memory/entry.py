"""One entry of a memory with what it reached, forgetting it, and whether the memory helps."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import polars as pl

from command_line.memory.run import (
    RunMemory,
    credit_line,
    effect_lines,
    interval,
    open_memory,
    roles_in_words,
)
from command_line.output import command, counted, print_json, print_line, print_table
from erl_pipeline.evaluation.memory_effect import entry_credits, memory_effect
from storage.lineage.questions import ReachedPolicies, policies_reached
from storage.memory.credit import copied, growth, memory_searches, retrieval_counts, rollout_files
from storage.memory.entries import MemoryEntry
from storage.memory.forgetting import forget
from storage.memory.operations import Operation
from storage.runs.run import Run
from storage.tables.trajectories import FREE
from storage.texts import storable


def credit_text(credit: float, count: int) -> str:
    """The credit of an entry that was compared `count` times; a dash if it never was."""
    return f"{credit:+.3f}" if count else "-"


def headline(entry: MemoryEntry) -> str:
    """A line with the entry's id and numbers."""
    of_type = f", {entry.task_type}" if entry.task_type else ""
    credit = credit_text(entry.credit, entry.credit_count)
    return (
        f"{entry.entry_id}  iteration {entry.iteration}{of_type}, "
        f"credit {credit}, support {entry.support}, retrieved {entry.retrievals}"
    )


def print_texts(entry: MemoryEntry) -> None:
    """Print the entry's situation and its text."""
    texts = {"task": entry.task_text, "feedback": entry.feedback, entry.kind: entry.text}
    for name, value in texts.items():
        if value:
            print_line(f"  {name + ':':<12}" + value.strip().replace("\n", "\n" + " " * 14))


def show_entry(run: str, entry: str, policies: bool, store: str, json: bool) -> None:
    """Print an entry; with `policies`, also those that it has reached in all runs."""
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
    print_line(headline(found))
    print_line(_state_line(removal))
    print_texts(found)
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


def forget_entry(run: str, entry: str, reason: str, store: str, json: bool) -> None:
    """Remove an entry from the memory, and print what it has reached. In the run of a training a policy that
    has learned the text may write it again; then it is a new entry."""
    memory = open_memory(store, run)
    found = memory.find(entry)
    done = forget(memory.store, memory.run, found.entry_id, storable(reason))
    reached = policies_reached(memory.store, found)
    has_reached = reached.trained_with_it or reached.trained_on_its_source
    again = _branch_without(memory.run, found, store) if has_reached else None
    if json:
        print_json({**asdict(done), "policies": asdict(reached), "branch": again})
        return
    if done.memory_version is None:
        print_line(
            f"Entry {done.entry_id} leaves the memory when iteration {done.iteration}, which has begun, "
            "is done: its rollouts already search the version that holds the entry."
        )
    else:
        print_line(
            f"Entry {done.entry_id} is forgotten: it is not in memory version {done.memory_version}, "
            f"with which iteration {done.iteration + 1} begins."
        )
    print_line(f"Recorded, with the reason, as {done.request_id}; versions before keep the entry.")
    _print_reach(reached)
    if "method" in memory.run.config:
        print_line("A policy that has learned the text may write it again; then it is a new entry.")
    if again is not None:
        print_line(f"To train again from before the entry (iteration {found.iteration}), as a new run:")
        print_line(f"  {again}")


def _branch_without(run: Run, found: MemoryEntry, store: str) -> str | None:
    """The command for a run that shares what `run` made before an entry, and leaves the entry out where `run`
    added it; None for a memory that belongs to no training. A policy that writes the text later adds it
    again."""
    made = [entry for entry in run.stages() if entry.kind == "memory" and entry.iteration == found.iteration]
    if "method" not in run.config or not made:
        return None
    name = f"{run.name[:46]}-without-{found.entry_id[:8]}"
    words = ["replay", run.name, "--iteration", str(found.iteration), "--from", made[0].stage]
    return command([*words, "--name", name], store)


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
    """Print the policies that an entry has reached."""
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


def _policy(policy: Mapping[str, Any]) -> str:
    at = policy["iteration"]
    when = "before the first iteration" if at is None else f"iteration {at}"
    return f"{policy['artifact_id']}  {policy['run']}, {when}, {policy['stage']}"


_CHANGES = ("added", "copies", "returned", "updated", "evicted", "forgotten", "replaced")
_SHOWN_ENTRIES = 5


def show_stats(run: str, iteration: int | None, store: str, json: bool) -> None:
    """Print how the memory grew, how much of it is used, and whether it helps."""
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
                "searching_roles": seen["role"].unique().sort().to_list(),
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
    searching = roles_in_words(seen)
    columns = ["iteration", *(name for name in _CHANGES if numbers[name]), "entries", "retrieved"]
    print_table([{name: str(row[name]) for name in columns} for row in versions])
    print_line(
        f"{numbers['saw_memory']:,} of {numbers['reflections']:,} {searching} saw memory, "
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
    for line in effect_lines(effect, searching):
        print_line(line)


def _numbers(memory: RunMemory, seen: pl.DataFrame, held: pl.DataFrame) -> dict[str, int]:
    """Counts over all iterations."""
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
