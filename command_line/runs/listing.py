"""`erl-pipeline runs list`: every run of a store."""

from __future__ import annotations

from command_line.options import DEFAULT_STORE, ExistingStore, Json
from command_line.output import bytes_text, counted, print_json, print_line, print_table


def list_runs(store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """List the runs of a store: how far each is, its last score, its size, and who works on it."""
    from command_line.runs.described import describe_run, progress_text, score_text
    from storage.errors import StoreError
    from storage.runs.run import RunStore
    from storage.upkeep.usage import RunUsage, usage_by_run

    usages = usage_by_run(store)
    described, damaged = [], {}
    for name in RunStore(store).list():
        try:
            described.append(describe_run(store, name, usages.get(name, RunUsage(0, 0, 0))))
        except StoreError as error:
            damaged[name] = str(error)
    if json:
        unreadable = [{"run": name, "state": "damaged", "problem": told} for name, told in damaged.items()]
        print_json([*(each.as_json() for each in described), *unreadable])
        return
    print_line(f"Store {store}: {counted(len(described) + len(damaged), 'run')}")
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
            }
            for each in described
        ],
        left=("run", "state", "method", "worked on by"),
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
