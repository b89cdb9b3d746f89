"""`erl-pipeline gc`: removes what no run reaches, and the big files of old iterations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from command_line.options import DEFAULT_STORE, LONGEST_DAYS, ExistingStore, Json, run_names
from command_line.output import bytes_text, command, counted, print_json, print_line, print_table
from storage.errors import ConfigError, InputError

if TYPE_CHECKING:
    from storage.upkeep.collection import CollectionPlan
    from storage.upkeep.retention import PlannedPruning
    from storage.upkeep.rules import Kept, RetentionRule

Delete = Annotated[bool, typer.Option("--delete", help="Do it. Without this, only show what would be done.")]
MinimumAge = Annotated[
    float,
    typer.Option(
        min=0,
        max=LONGEST_DAYS * 24,
        metavar="HOURS",
        help="Keep what no run reaches, and what was left behind, for this long after it was made.",
    ),
]
OnlyRun = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Remove only files of this run's iterations.", autocompletion=run_names),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="RULE", help="Prune the weights of all iterations but the last N, or every:K, or N,every:K."
    ),
]
Optimizer = Annotated[str | None, typer.Option(metavar="RULE", help="The same for optimizer states.")]
Trajectories = Annotated[
    str | None, typer.Option(metavar="RULE", help="The same for rollouts; columns for lineage are kept.")
]

YOUNG_HOURS = 1.0
"""What is younger stays, unless --min-age says otherwise."""


def gc(
    store: ExistingStore = DEFAULT_STORE,
    run: OnlyRun = None,
    retain_checkpoints: Checkpoints = None,
    retain_optimizer: Optimizer = None,
    retain_trajectories: Trajectories = None,
    min_age: MinimumAge = YOUNG_HOURS,
    delete: Delete = False,
    json: Json = False,
) -> None:
    """Remove what no run reaches and what killed processes left behind. Without --delete, only show it."""
    from storage.upkeep.collection import collect, plan_collection
    from storage.upkeep.retention import plan_retention, retain
    from storage.upkeep.rules import parse_rule

    given: Mapping[Kept, str | None] = {
        "checkpoints": retain_checkpoints,
        "optimizer": retain_optimizer,
        "trajectories": retain_trajectories,
    }
    rules = {kind: parse_rule(text) for kind, text in given.items() if text is not None}
    if run is not None and not rules:
        raise InputError("--run is for the rules of retention: give one, such as --retain-checkpoints 3.")
    age = timedelta(hours=min_age)
    if delete and rules:
        plan_collection(store, age)  # raises, before anything is pruned, where collection would refuse
    pruned = (retain if delete else plan_retention)(store, rules, run, _needed_by(store)) if rules else []
    plan = (collect if delete else plan_collection)(store, age)
    if json:
        print_json(_as_json(plan, pruned, delete))
    else:
        _print(plan, pruned, rules, store, min_age, delete)


def _needed_by(store: str) -> Callable[[str], Collection[str]]:
    """Gives what a run still has to read. One that this program could not continue needs nothing: only the
    rules decide then, and a line says so."""

    def needed_by(name: str) -> Collection[str]:
        from erl_pipeline.runs.retention import needed_to_go_on
        from storage.artifacts.store import ArtifactStore
        from storage.runs.run import RunStore

        try:
            return needed_to_go_on(ArtifactStore(store), RunStore(store).open(name))
        except (ConfigError, InputError) as error:
            print(f"Run {name} cannot be continued, so the rules alone decide: {error}", file=sys.stderr)
            return ()

    return needed_by


def _print(
    plan: CollectionPlan,
    pruned: list[PlannedPruning],
    rules: Mapping[Kept, RetentionRule],
    store: str,
    min_age: float,
    delete: bool,
) -> None:
    reach = "reaches" if plan.runs == 1 else "reach"
    print_line(
        f"Store {store}: {counted(plan.runs, 'run')} {reach} {counted(plan.reached, 'artifact')} of "
        f"{bytes_text(plan.reached_bytes)}."
    )
    rows = [
        *_counted("no run reaches", ((m.stage, plan.unreached_bytes[m.artifact_id]) for m in plan.unreached)),
        *_counted("left behind", ((item.kind, item.bytes) for item in plan.leftovers)),
        *_counted("by retention", ((f"{r.manifest.stage}, {r.kind}", r.bytes) for r in pruned)),
    ]
    print_table(rows, left=("why", "what"))
    if plan.young:
        young = counted(plan.young, "artifact")
        print_line(
            f"Kept, since younger than {min_age:g} h: {young} that no run reaches; --min-age 0 removes them "
            "too."
        )
    freed = bytes_text(plan.bytes + sum(pruning.bytes for pruning in pruned))
    if delete:
        print_line(f"Removed: {freed}.")
    elif rows:
        print_line(f"Nothing is removed yet. To free {freed}: {command([*sys.argv[1:], '--delete'])}")
    else:
        print_line("There is nothing to remove.")
    if rules and not pruned:
        print_line("The rules of retention prune nothing.")


def _counted(why: str, items: Iterable[tuple[str, int]]) -> list[dict[str, str]]:
    totals: dict[str, list[int]] = {}
    for what, size in items:
        totals.setdefault(what, []).append(size)
    return [
        {"why": why, "what": what, "count": f"{len(sizes):,}", "bytes": bytes_text(sum(sizes))}
        for what, sizes in sorted(totals.items())
    ]


def _as_json(plan: CollectionPlan, pruned: list[PlannedPruning], delete: bool) -> dict[str, object]:
    return {
        "deleted": delete,
        "runs": plan.runs,
        "reached": {"artifacts": plan.reached, "bytes": plan.reached_bytes},
        "unreached": [
            {
                "artifact_id": manifest.artifact_id,
                "stage": manifest.stage,
                "run": manifest.run,
                "bytes": plan.unreached_bytes[manifest.artifact_id],
            }
            for manifest in plan.unreached
        ],
        "young": plan.young,
        "leftovers": [
            {"kind": item.kind, "path": item.path, "files": item.files, "bytes": item.bytes}
            for item in plan.leftovers
        ],
        "pruned": [
            {
                "artifact_id": pruning.manifest.artifact_id,
                "stage": pruning.manifest.stage,
                "iteration": pruning.manifest.iteration,
                "files": list(pruning.files),
                "bytes": pruning.bytes,
                "reason": pruning.reason,
            }
            for pruning in pruned
        ],
        "bytes": plan.bytes + sum(pruning.bytes for pruning in pruned),
    }
