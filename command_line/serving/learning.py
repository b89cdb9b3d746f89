"""`erl-pipeline collect` and `learn`: what a served policy learns from its traffic."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName, ServingConfig
from command_line.output import command, counted, print_json, print_line
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.serving.learning.collect import Collected, SealedBatch
    from erl_pipeline.serving.learning.nights import Judged, Night

Now = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Count as if it were this time, such as 2026-11-26T03:00+00:00."),
]
Promote = Annotated[
    bool, typer.Option("--promote", help="If the gate passes, production at once, without a candidate.")
]


def collect(
    run: RunName,
    config: ServingConfig = None,
    now: Now = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Seal the settled traffic of a served run into an artifact that can be trained on."""
    from erl_pipeline.serving.learning.collect import collect as seal
    from erl_pipeline.serving.settings import load_serving_settings

    given = load_serving_settings(config)
    found = seal(store, run, given.episode, _moment(now), at_least=0, corrections=given.learn.corrections)
    if json:
        print_json(_collected(found))
        return
    _print_collected(found)
    if found.batch is not None:
        _print_batch(run, found.batch)


def learn(
    run: RunName,
    config: ServingConfig = None,
    promote: Promote = False,
    now: Now = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Collect, train on what people rated, evaluate, and let the alias `candidate` mean the new checkpoint if
    the gate passes."""
    from command_line.replay.branches import work_on_new_run
    from erl_pipeline.runs.origins import begin_offline
    from erl_pipeline.serving.learning.nights import conclude_night, next_night
    from erl_pipeline.serving.settings import load_serving_settings

    settings = load_serving_settings(config)
    due = next_night(store, run, settings, _moment(now))
    if due.collected is not None and not json:
        _print_collected(due.collected)
    if due.night is None:
        if json:
            assert due.collected is not None
            print_json({"run": run, "night": None, "reason": due.reason, **_collected(due.collected)})
        else:
            print_line(f"Nothing is trained: {due.reason}.")
        return
    night = due.night
    if night.too_old and not json:
        told = counted(night.too_old, "rated episode is", "rated episodes are")
        print_line(f"{told} in older batches than learn.max_age allows, and nothing learns from them.")
    heading = f"Night of {run}: {counted(night.rated, 'rated episode')}, {night.origin.describe()}"
    work_on_new_run(night.config, store, [heading], partial(begin_offline, origin=night.origin))
    judged = conclude_night(store, night, settings, getpass.getuser(), promote=promote)
    if json:
        print_json(_judged(night, judged))
    else:
        _print_judged(run, judged, store)


def _moment(text: str | None) -> datetime:
    if text is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"--now {text}: give a time such as 2026-11-26T03:00+00:00") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _print_collected(found: Collected) -> None:
    print_line(
        f"Settled and in no batch yet: {counted(found.settled, 'episode')}, {found.rated:,} of them rated."
    )
    if found.unsettled:
        print_line(
            f"Not settled yet: {counted(found.unsettled, 'episode')}; see episode.idle_minutes and "
            "episode.settle_hours."
        )
    if found.late:
        print_line(
            f"Came after their episode was sealed, and are in no batch: {counted(found.late, 'record')}."
        )
    if found.torn:
        print_line(f"Cut short by a kill, and lost: {counted(found.torn, 'record')}.")


def _print_batch(run: str, batch: SealedBatch) -> None:
    from storage.serving.collected import traffic_run

    alone = int(batch.counters["not_grouped"])
    print_line(
        f"Sealed as iteration {batch.iteration} of run {traffic_run(run)}, artifact "
        f"{batch.trajectories_id[:12]}: {counted(batch.rated, 'episode')} can be trained on"
        + (f", {alone:,} of them with too few others to compare with." if alone else ".")
    )


def _collected(found: Collected) -> dict[str, Any]:
    batch = found.batch
    return {
        "settled": found.settled,
        "rated": found.rated,
        "unsettled": found.unsettled,
        "late": found.late,
        "torn": found.torn,
        "batch": None
        if batch is None
        else {
            "iteration": batch.iteration,
            "trajectories": batch.trajectories_id,
            "rollouts": batch.rollouts_id,
            "counters": dict(batch.counters),
        },
    }


def _judged(night: Night, judged: Judged) -> Mapping[str, Any]:
    return {
        "night": night.name,
        "rated": night.rated,
        "verdict": judged.verdict.model_dump(mode="json"),
        "change": None if judged.change is None else judged.change.model_dump(mode="json"),
        "kept": judged.kept,
    }


def _print_judged(run: str, judged: Judged, store: str) -> None:
    verdict, change = judged.verdict, judged.change
    print_line(f"Gate of checkpoint {verdict.checkpoint_id[:12]}: {verdict.reason}.")
    if change is None:
        why = f"{judged.kept}: no" if judged.kept else "No" if verdict.passed else "It did not pass: no"
        print_line(f"{why} alias was changed.")
        return
    print_line(f"{change.alias} of run {run} is now this checkpoint.")
    print_line("Try next:")
    print_line("  " + command(["lineage", "trained-on", verdict.checkpoint_id[:12]], store))
    if change.alias != "production":
        print_line("  " + command(["promote", run, "--checkpoint", verdict.checkpoint_id[:12]], store))
