"""`erl-pipeline forget-user`: what a store holds of a user of a served policy, and its deletion."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import command, counted, print_json, print_line, print_table, seconds_text
from storage.errors import InputError
from storage.texts import storable

if TYPE_CHECKING:
    from storage.artifacts.manifest import Manifest
    from storage.lineage.learned_from import BranchPoint
    from storage.serving.user_traces import UserTraces

User = Annotated[
    str, typer.Argument(metavar="USER", help="The user's name, as requests to the served policy give it.")
]
Tenant = Annotated[
    str | None,
    typer.Option(help="Whose user it is: the tenant of the key. Needed where the server has a file of keys."),
]
Delete = Annotated[bool, typer.Option("--delete", help="Do it. Without this, only show what would be done.")]


def forget_user(
    run: RunName,
    user: User,
    tenant: Tenant = None,
    store: ExistingStore = DEFAULT_STORE,
    delete: Delete = False,
    json: Json = False,
) -> None:
    """Delete what a user said to a served policy, and name the checkpoints that learned from it.

    Without --delete, only show what there is.
    """
    from storage.runs.run import RunStore
    from storage.serving import forgetting
    from storage.serving.traffic import serving_folder
    from storage.serving.user_traces import find_user, tenants
    from storage.serving.users import LOCAL_TENANT, named_user

    user = storable(user)  # as requests give it; a shell can give what is no UTF-8
    RunStore(store).open(run)
    if not serving_folder(store, run).is_dir():
        raise InputError(f"run {run} was never served, so it has no users.")
    found = sorted(tenants(store, run))
    if tenant is None and {*found} - {LOCAL_TENANT}:
        raise InputError(
            f"each tenant may have a user {user}. Add --tenant; run {run} has records of: {', '.join(found)}."
        )
    named = named_user(store, run, tenant or LOCAL_TENANT, user)
    traces = (forgetting.forget_user if delete else find_user)(store, run, named)
    if json:
        print_json(_as_json(traces, delete))
        return
    print_line(f"User {user} of run {run} is {named.digests[0]} in records.")
    print_table(list(_counted(traces)), left=("what", "where"))
    if not traces.found:
        nothing = "nothing else" if traces.left_behind else "nothing"
        print_line(f"The store holds {nothing} that this user said.")
        if tenant is not None and tenant not in found:
            print_line(f"It has no record of tenant {tenant}, but of: {', '.join(found) or 'nobody'}.")
    elif delete:
        print_line("Deleted. Ids and numbers of the rows stay, and a sealed record of what was taken out.")
    else:
        print_line(f"Nothing is deleted yet: {command([*sys.argv[1:], '--delete'])}")
    if traces.left_behind:
        folders = counted(traces.left_behind, "folder")
        what = f"{folders} that killed processes left in the store may hold what this user said"
        print_line(f"{what}: {'deleted' if delete else '--delete removes them'}.")
    for line in (*_remaining(traces), *_learned(traces)):
        print_line(line)


def _counted(traces: UserTraces) -> Iterator[Mapping[str, str]]:
    for segment in traces.segments:
        where = f"segment {segment.path.name}" + (", which a server writes" if segment.being_written else "")
        for what, count in (("turns", segment.turns), ("feedback", segment.feedback)):
            if count:
                yield {"what": what, "where": where, "rows": f"{count:,}"}
    rows: Counter[tuple[str, str]] = Counter()
    for each in traces.files:
        rows[_ROWS[each.table], _named(each.manifest)] += each.speaking
    for (what, where), count in rows.items():
        if count:
            yield {"what": what, "where": where, "rows": f"{count:,}"}


_ROWS = {
    "trajectories": "trajectories",
    "served trajectories": "marks as trainable",
    "served corrections": "corrections",
    "sft": "distillation rows",
    "teacher scores": "scores of a teacher",
    "memory": "memory entries",
}


def _remaining(traces: UserTraces) -> Iterator[str]:
    """What deleting does not reach."""
    if traces.shown_to_others:
        yield (
            f"{counted(traces.shown_to_others, 'row')} of others had a note of this user in the prompt, and "
            "keep it: it was shown beyond this user."
        )
    if traces.derived_entries:
        yield (
            "Memory entries of others, written with such a note in the prompt, stay; read them and use "
            f"`memory forget`: {', '.join(traces.derived_entries)}"
        )
    if traces.set_aside:
        verb = "was" if traces.set_aside == 1 else "were"
        yield (
            f"{counted(traces.set_aside, 'artifact')} {verb} set aside as damaged and may hold what this "
            "user said; `gc --delete` removes them."
        )


def _learned(traces: UserTraces) -> Iterator[str]:
    learned = traces.learners
    if not learned:
        yield "No checkpoint learned from this user."
        return
    verb = "learned from this user, and cannot unlearn"
    yield f"{counted(len(learned), 'checkpoint')} {verb}:"
    for each in learned:
        rows = "" if not each.rows else f", {counted(each.rows, 'row')}"
        yield f"  {_named(each.manifest)}: {each.how}{rows}"
    for point in traces.branch_points:
        yield _branch(point)
    for run, change in traces.aliases:
        yield (
            f"Served now: alias {change.alias} of run {run} means {_short(change.checkpoint_id)}, which "
            "learned from this user."
        )


def _branch(point: BranchPoint) -> str:
    cost = (
        f"{counted(point.updates, 'update')}, {point.generated_tokens:,} generated and "
        f"{point.trained_tokens:,} trained tokens, {seconds_text(point.seconds)}"
    )
    if point.before is None:
        first = ", ".join(map(_named, point.first))
        return f"Nothing is before {first}; to make all that came of it again: {cost}."
    return f"The last one from before: {_named(point.before)}. To make again what came after it: {cost}."


def _named(manifest: Manifest) -> str:
    where = "" if manifest.iteration is None else f", iteration {manifest.iteration}"
    return f"{_short(manifest.artifact_id)} ({manifest.stage}{where}, run {manifest.run})"


def _short(artifact_id: str) -> str:
    from command_line.lineage.reach import SHORT

    return artifact_id[:SHORT]


def _as_json(traces: UserTraces, deleted: bool) -> dict[str, Any]:
    def place(manifest: Manifest) -> dict[str, Any]:
        return manifest.model_dump(include={"artifact_id", "stage", "run", "iteration"})

    return {
        "deleted": deleted,
        "user": traces.user,
        "segments": [
            {
                "segment": each.path.name,
                "turns": each.turns,
                "feedback": each.feedback,
                "being_written": each.being_written,
            }
            for each in traces.segments
        ],
        "files": [
            {
                **place(each.manifest),
                "file": each.file,
                "table": each.table,
                "rows": len(each.ids),
                "speaking": each.speaking,
            }
            for each in traces.files
        ],
        "memory": {run: list(entries) for run, entries in traces.held.items()},
        "remaining": {
            "rows_of_others_with_a_note": traces.shown_to_others,
            "derived_entries": list(traces.derived_entries),
            "artifacts_set_aside": traces.set_aside,
        },
        "left_behind": traces.left_behind,
        "checkpoints": [
            {**place(each.manifest), "how": each.how, "rows": each.rows} for each in traces.learners
        ],
        "branches": [
            {
                "before": None if each.before is None else place(each.before),
                "first": [place(first) for first in each.first],
                "updates": each.updates,
                "generated_tokens": each.generated_tokens,
                "trained_tokens": each.trained_tokens,
                "seconds": each.seconds,
            }
            for each in traces.branch_points
        ],
        "aliases": [
            {"run": run, "alias": change.alias, "checkpoint_id": change.checkpoint_id}
            for run, change in traces.aliases
        ],
    }
