"""`erl-realms`: success in held-out realms, encounter by encounter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, SELECTOR, ExistingStore, Json, RunName
from command_line.output import counted, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from erl_pipeline.plan.stage import StageOutcome
    from erl_pipeline.runs.driver import OpenRun
    from realms.scores import StreamScore

Checkpoint = Annotated[
    str, typer.Option("--checkpoint", metavar=SELECTOR, help="An artifact id, the latest, or an iteration's.")
]

_WIDTH = 7


def evaluate(
    run: RunName,
    checkpoint: Checkpoint = "latest",
    realms: Annotated[int, typer.Option(min=2, help="Held-out realms.")] = 8,
    streams: Annotated[int, typer.Option(min=1, help="Streams in each realm.")] = 16,
    encounters: Annotated[int, typer.Option(min=1, help="Tasks in each stream.")] = 6,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Play streams of tasks in held-out realms with a checkpoint, with notes and without; print success by
    encounter and kind of note."""
    from command_line.foreground import work_on_run
    from command_line.selectors import find_checkpoint
    from erl_pipeline.plan.plan import POLICY
    from erl_pipeline.plan.runner import InProcessConfig
    from erl_pipeline.plan.sources import unread_sources
    from erl_pipeline.runs.config import run_config
    from erl_pipeline.runs.planning import plan_as_made
    from realms.scores import read_stream_scores
    from realms.stage import SCORES, evaluate_streams
    from realms.tasks import StreamConfig
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    opened_run = RunStore(store).open(run)
    config = run_config(opened_run)
    found = find_checkpoint(ArtifactStore(store), opened_run, checkpoint)
    beginning = plan_as_made(store, opened_run, 0, sources=unread_sources(config)).states[0]
    shape = StreamConfig(realms=realms, streams=streams, encounters=encounters)

    def work(opened: OpenRun, _note: Callable[[str], None]) -> StageOutcome:
        opened.config = config.model_copy(update={"runner": InProcessConfig()})
        base = beginning.bases.get(POLICY)
        return evaluate_streams(opened, found.iteration or 0, found.artifact_id, base, shape)

    kept = "Stopped; nothing is kept of this evaluation."
    outcome = work_on_run(config, store, config.iterations, work, lambda: kept)
    scores = read_stream_scores([ArtifactStore(store).open(outcome.artifact_id).path(SCORES)])
    table = _by_encounter(scores)
    if json:
        print_json(
            {
                "run": run,
                "checkpoint": found.artifact_id,
                "iteration": found.iteration or 0,
                "artifact_id": outcome.artifact_id,
                "metrics": dict(outcome.metrics),
                "encounters": table,
            }
        )
        return
    played = len({(score.realm, score.stream) for score in scores})
    print_line(
        f"Checkpoint {found.artifact_id[:12]} (iteration {found.iteration or 0}) on "
        f"{counted(played, 'stream')} in {counted(realms, 'held-out realm')}:"
    )
    for title, name in (
        ("First attempts that are given the note", "first_attempt_success"),
        ("Retries after a reflection that is given the note", "retry_success"),
    ):
        print_line(f"{title}, success by encounter:")
        for line in _lines([row for row in table if row["what"] == name]):
            print_line(f"  {line}")


def _by_encounter(scores: Sequence[StreamScore]) -> list[dict[str, Any]]:
    """Rows of what, condition, encounter, success rate (None if nothing was tried) and number of attempts."""
    rows: list[dict[str, Any]] = []
    places = sorted({score.encounter for score in scores})
    for name in ("first_attempt_success", "retry_success"):
        for condition in dict.fromkeys(score.condition for score in scores):
            for encounter in places:
                tried = [
                    getattr(score, name)
                    for score in scores
                    if (score.condition, score.encounter) == (condition, encounter)
                    and getattr(score, name) is not None
                ]
                rate = sum(tried) / len(tried) if tried else None
                rows.append(
                    {
                        "what": name,
                        "condition": condition,
                        "encounter": encounter,
                        "success": rate,
                        "attempts": len(tried),
                    }
                )
    return rows


def _lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    encounters = list(dict.fromkeys(row["encounter"] for row in rows))
    lines = [f"{'note':<8}" + "".join(f"{encounter:>{_WIDTH}}" for encounter in encounters)]
    for condition in dict.fromkeys(row["condition"] for row in rows):
        rates = [row["success"] for row in rows if row["condition"] == condition]
        shown = ["-" if rate is None else f"{rate:.2f}" for rate in rates]
        lines.append(f"{condition:<8}" + "".join(f"{rate:>{_WIDTH}}" for rate in shown))
    return lines


def main() -> None:
    """The entry point of `erl-realms`. What a user can act on is printed as one line, with status 2."""
    from storage.errors import PipelineError

    app = typer.Typer(add_completion=False)
    app.command()(evaluate)
    try:
        app()
    except PipelineError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
