"""`erl-pipeline promote`: which checkpoint an alias of a served policy means."""

from __future__ import annotations

import getpass
from datetime import UTC
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, SELECTOR, ExistingStore, Json, RunName, ServingConfig
from command_line.output import command, print_json, print_line, print_table
from storage.errors import InputError, StoreError

Alias = Annotated[str, typer.Option(metavar="NAME", help="The alias that is changed.")]
Checkpoint = Annotated[str | None, typer.Option(metavar=SELECTOR, help="What the alias is to mean.")]
To = Annotated[
    str | None,
    typer.Option(metavar="previous", help="previous: what it meant before; twice: forward again."),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="A reason, which is kept with the change.")]
WithoutGate = Annotated[
    bool, typer.Option("--without-gate", help="Even if no gate has passed it; needs --why.")
]


def promote(
    run: RunName,
    alias: Alias = "production",
    checkpoint: Checkpoint = None,
    to: To = None,
    why: Why = "",
    without_gate: WithoutGate = False,
    config: ServingConfig = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Let an alias mean another checkpoint, or what it meant before. Without either: print the aliases."""
    from command_line.selectors import find_checkpoint, find_id, is_place
    from erl_pipeline.serving.learning import promotion
    from erl_pipeline.serving.learning.forgotten import learned_from_forgotten
    from erl_pipeline.serving.settings import load_serving_settings
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    if to not in (None, "previous"):
        raise InputError(f"--to {to}: allowed is previous; name any other with --checkpoint")
    if to is not None and checkpoint is not None:
        raise InputError("give one of --checkpoint and --to previous")
    artifacts, opened = ArtifactStore(store), RunStore(store).open(run)
    if to is None and checkpoint is None:
        _show_aliases(run, store, json)
        return
    if to is not None:
        change = promotion.roll_back(store, run, alias, getpass.getuser(), why)
    else:
        assert checkpoint is not None
        place = is_place(checkpoint)
        found = (
            find_checkpoint(artifacts, opened, checkpoint).artifact_id
            if place
            else find_id(artifacts, checkpoint)
        )
        gate = load_serving_settings(config).gate
        change = promotion.promote(
            store, run, alias, found, gate, getpass.getuser(), why=why, without_gate=without_gate
        )
    learned: list[str] | None = None
    unread = ""
    try:
        learned = list(learned_from_forgotten(store, change.checkpoint_id))
    except StoreError as error:  # The change is made, so the command has not failed.
        unread = f"Whether it learned from a user who was forgotten since cannot be found out: {error}"
    if json:
        print_json({**change.model_dump(mode="json"), "learned_from_forgotten": learned})
        return
    print_line(f"{alias} of run {run} is now checkpoint {change.checkpoint_id[:12]} (run {change.run}).")
    if change.previous is not None:
        back = command(["promote", run, "--alias", alias, "--to", "previous"], store)
        print_line(f"Before it was {change.previous[:12]}. Back to that: {back}")
    if unread:
        print_line(unread)
    for told in learned or ():
        print_line(f"Conversations of a user who was forgotten since cannot be unlearned: {told}.")


def _show_aliases(run: str, store: str, json: bool) -> None:
    from storage.serving.aliases import alias_changes, current_aliases, verdicts

    changes, judged = alias_changes(store, run), verdicts(store, run)
    if json:
        current = current_aliases(store, run)
        print_json(
            {
                "aliases": {alias: change.checkpoint_id for alias, change in current.items()},
                "changes": [change.model_dump(mode="json") for change in changes],
                "verdicts": [verdict.model_dump(mode="json") for verdict in judged],
            }
        )
        return
    if not changes:
        print_line(f"Run {run} has no aliases yet.")
    print_table(
        [
            {
                "alias": change.alias,
                "checkpoint": change.checkpoint_id[:12],
                "of run": change.run,
                "before": (change.previous or "")[:12],
                "when": f"{change.changed.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
                "who": change.who,
                "why": change.reason,
            }
            for change in changes
        ],
        left=("alias", "checkpoint", "of run", "before", "when", "who", "why"),
    )
    for verdict in judged:
        outcome = "passed" if verdict.passed else "did not pass"
        print_line(f"Gate of {verdict.checkpoint_id[:12]} ({verdict.run}): {outcome}; {verdict.reason}.")
