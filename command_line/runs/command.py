"""`erl-pipeline runs|status|report|diff`: the runs of a store, one of them, and two side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.gc import YOUNG_HOURS
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import bytes_text, command, counted, print_json, print_line, print_table
from storage.errors import StoreError

if TYPE_CHECKING:
    from storage.runs.ledger import LedgerEntry
    from storage.runs.notes import RunNotes
    from storage.runs.run import Run


def list_runs(
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only runs that have this tag.")] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List the runs of a store: how far each is, its last score, its size, and who works on it."""
    from command_line.runs.described import describe_run, progress_text, score_text
    from storage.runs.notes import read_notes
    from storage.runs.run import RunStore
    from storage.upkeep.runs import RunUsage, usage_by_run

    usages = usage_by_run(store)
    described, damaged = [], {}
    for name in RunStore(store).list():
        try:
            if tag is None or tag in read_notes(store, name).tags:
                described.append(describe_run(store, name, usages.get(name, RunUsage(0, 0, 0))))
        except StoreError as error:
            damaged[name] = str(error)
    if json:
        unreadable = [{"run": name, "state": "damaged", "problem": told} for name, told in damaged.items()]
        print_json([*(each.as_json() for each in described), *unreadable])
        return
    print_line(f"Store {store}: {counted(len(described) + len(damaged), 'run')}")
    any_tags = any(each.notes.tags for each in described)
    print_table(
        [
            {
                "run": each.summary.name,
                "state": each.state,
                "method": each.summary.method or "",
                "iterations": progress_text(each.summary),
                "held-out (95 %)": score_text(each.summary.score),
                "own files": bytes_text(each.usage.own),
                "shared files": bytes_text(each.usage.shared),
                "worked on by": each.holder or "",
                **({"tags": " ".join(each.notes.tags)} if any_tags else {}),
            }
            for each in described
        ],
        left=("run", "state", "method", "worked on by", "tags"),
    )
    for name, told in damaged.items():
        print_line(f"Run {name} is damaged: {told}")
    if damaged:
        print_line(
            "Garbage collection removes nothing while a run is damaged; `own` may count what it shares."
        )
    if described:
        print_line(
            "own files: what garbage collection frees when the run is removed; "
            "shared files: other runs need them too"
        )
        print_line("Look at one: erl-pipeline runs show RUN")


def remove(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Remove a run: its settings, ledger, report and metrics. Artifacts stay until `gc --delete`.

    A run is not removed while a process works on it, if another run began from it, or if it was served.
    """
    from storage.upkeep.runs import remove_run, usage_by_run

    _require_whole(store, run)
    usage = usage_by_run(store)[run]
    remove_run(store, run)
    if json:
        print_json({"run": run, "removed": True, "freed_by_gc": usage.own, "kept_for_others": usage.shared})
        return
    print_line(f"Run {run} is removed. Its artifacts are still there:")
    print_line(f"  {bytes_text(usage.own)} that no other run reaches, which garbage collection frees")
    print_line(f"  {bytes_text(usage.shared)} that other runs have too, which stay")
    print_line(f"Free the first: {command(['gc', '--delete', '--min-age', '0'], store)}")
    print_line(f"  (without --min-age 0, what is younger than {YOUNG_HOURS:g} h stays)")


def _require_whole(store: str, run: str) -> Run:
    """The run. Raises what reading its ledger and its origin raises where they are damaged: such a run has no
    usage."""
    from storage.runs.documents import read_origin
    from storage.runs.run import RunStore

    opened = RunStore(store).open(run)
    opened.recorded()
    read_origin(store, run)
    return opened


_SHOWN = 10
"""Most checkpoints that are printed; --json gives all."""


def show(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Show a run: state, last score, size, origin, and the ids of its newest checkpoints."""
    from command_line.runs.described import describe_run, progress_text, score_text
    from storage.runs.documents import read_origin
    from storage.upkeep.runs import usage_by_run

    opened = _require_whole(store, run)
    described = describe_run(store, run, usage_by_run(store)[run])
    checkpoints = [entry for entry in opened.stages() if entry.kind == "checkpoint"]
    origin = read_origin(store, run)
    if json:
        print_json(
            {
                **described.as_json(),
                "origin": origin and origin.model_dump(),
                "checkpoints": [_plain(entry) for entry in checkpoints],
            }
        )
        return
    summary, usage = described.summary, described.usage
    method = "" if summary.method is None else f", {summary.method}"
    print_line(f"Run {run} in {store}: {described.state}{method}")
    if summary.done is not None:
        print_line(f"Iterations: {progress_text(summary)}")
    if summary.score is not None:
        print_line(
            f"Held-out success after iteration {summary.score.iteration}: {score_text(summary.score)}, "
            "95 % interval"
        )
    print_line(
        f"Size: {counted(usage.artifacts, 'artifact')}; {bytes_text(usage.own)} of its own, "
        f"{bytes_text(usage.shared)} shared with other runs"
    )
    print_line(f"Worked on by: {described.holder or 'nobody'}")
    if origin:
        print_line(f"Begun {origin.describe()}")
    _print_notes(described.notes)
    if checkpoints:
        newest = checkpoints[: -_SHOWN - 1 : -1]
        print_line(f"Checkpoints, the newest first ({len(newest)} of {len(checkpoints)}):")
        print_table(
            [{name: str(value) for name, value in _plain(entry).items()} for entry in newest],
            left=("stage", "checkpoint"),
        )


def _print_notes(notes: RunNotes) -> None:
    if notes.tags:
        print_line(f"Tags: {' '.join(notes.tags)}")
    if notes.note:
        print_line(f"Note: {notes.note}")


def tag(
    run: RunName,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags to add.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="TAG", help="A tag to take away; repeatable.")
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Tag a run, which may be at work; `runs list --tag TAG` and the page list the runs with a tag."""
    from storage.runs.notes import tag_run
    from storage.runs.run import RunStore

    RunStore(store).open(run)
    _say_notes(run, tag_run(store, run, tuple(tags or ()), tuple(remove or ())), json)


def note(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note; an empty text removes it.")],
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write a note on a run, which replaces the one before; the page and `runs show` show it."""
    from storage.runs.notes import note_run
    from storage.runs.run import RunStore

    RunStore(store).open(run)
    _say_notes(run, note_run(store, run, text), json)


def _say_notes(run: str, notes: RunNotes, json: bool) -> None:
    if json:
        print_json({"run": run, **notes.model_dump(mode="json")})
        return
    print_line(f"Run {run}")
    _print_notes(notes)


def _plain(entry: LedgerEntry) -> dict[str, object]:
    return {"iteration": entry.iteration or 0, "stage": entry.stage, "checkpoint": entry.artifact_id}


def status(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Show how far a run is, iteration by iteration."""
    from command_line.runs.described import show_status

    show_status(run, store, json)


def report(
    run: RunName,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; else beside the run.")
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write the report of a run: curves, whole episodes, settings and lineage on one page."""
    from command_line.stored_run import run_folder
    from erl_pipeline.runs.state import write_run_report
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.runs import find_unrecorded

    opened, artifacts = RunStore(store).open(run), ArtifactStore(store)
    page = write_run_report(artifacts, opened, output or run_folder(store, run) / "report.html")
    if unrecorded := find_unrecorded(artifacts, opened, opened.recorded()):
        print(f"Warning: {unrecorded.sentence}", file=sys.stderr)
    if json:
        print_json({"run": run, "report": str(page)})
    else:
        print_line(f"Report: {page}")


RunA = Annotated[str, typer.Argument(metavar="RUN_A", help="Name of a run in the store.")]
RunB = Annotated[str, typer.Argument(metavar="RUN_B", help="Name of another run in the store.")]


def diff(
    run_a: RunA,
    run_b: RunB,
    first: Annotated[
        bool,
        typer.Option(
            "--first-divergence", help="Only the first difference: artifact, row and token or tensor."
        ),
    ] = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show which settings of two runs differ, which artifacts they share, and their results side by side."""
    from command_line.runs.differences import show_differences, show_first_divergence

    show = show_first_divergence if first else show_differences
    show(run_a, run_b, store, json=json)


app = typer.Typer(
    help="The runs of a store: list them, look at one, tag it, remove it.", no_args_is_help=True
)
app.command("list")(list_runs)
app.command("show")(show)
app.command("tag")(tag)
app.command("note")(note)
app.command("remove")(remove)
