"""`erl-pipeline runs remove`: removes a run."""

from __future__ import annotations

from command_line.gc import YOUNG_HOURS
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import bytes_text, command, print_json, print_line


def remove(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Remove a run: its settings, ledger, report and metrics. Artifacts stay until `gc --delete`.

    A run is not removed while a process works on it, or if another run began from it.
    """
    from storage.runs.removal import remove_run
    from storage.runs.run import RunStore
    from storage.upkeep.usage import usage_by_run

    RunStore(store).open(run)
    usage = usage_by_run(store)[run]
    remove_run(store, run)
    if json:
        print_json({"run": run, "removed": True, "freed_by_gc": usage.own, "kept_for_others": usage.shared})
        return
    print_line(f"Run {run} is removed. Its artifacts are still there:")
    print_line(f"  {bytes_text(usage.own)} that no other run reaches, which garbage collection frees")
    print_line(f"  {bytes_text(usage.shared)} that other runs have too, which stay")
    place = [] if store == DEFAULT_STORE else ["--store", store]
    print_line(f"Free the first: {command(['gc', '--delete', '--min-age', '0', *place])}")
    print_line(f"  (without --min-age 0, what is younger than {YOUNG_HOURS:g} h stays)")
