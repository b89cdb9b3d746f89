"""`erl-pipeline evaluate --stream`: success in held-out realms, encounter by encounter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from command_line.output import counted, print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from erl_pipeline.plan.job import StageOutcome
    from erl_pipeline.runs.driver import OpenRun
    from storage.runs.run import Run
    from storage.tables.stream_scores import StreamScore

_WIDTH = 7


def evaluate_streams(
    run: Run, store_uri: str, iteration: int, checkpoint_id: str, base_id: str | None, json: bool
) -> None:
    """Play the streams with a checkpoint and print success by encounter and condition."""
    from command_line.foreground import work_on_run
    from erl_pipeline.plan.runner import InProcessConfig
    from erl_pipeline.runs.config import run_config
    from erl_pipeline.runs.on_request import evaluate_stream_on_request, with_streams
    from erl_pipeline.stages.evaluation.evaluate_stream import SCORES
    from storage.artifacts.store import ArtifactStore
    from storage.tables.stream_scores import read_stream_scores

    config = with_streams(run_config(run))

    def work(opened: OpenRun, _note: Callable[[str], None]) -> StageOutcome:
        opened.config = config.model_copy(update={"runner": InProcessConfig()})
        return evaluate_stream_on_request(opened, iteration, checkpoint_id, base_id)

    kept = "Stopped; nothing is kept of this evaluation."
    outcome = work_on_run(config, store_uri, config.iterations, work, lambda: kept)
    scores = read_stream_scores([ArtifactStore(store_uri).open(outcome.artifact_id).path(SCORES)])
    table = _by_encounter(scores)
    if json:
        print_json(
            {
                "run": run.name,
                "checkpoint": checkpoint_id,
                "iteration": iteration,
                "artifact_id": outcome.artifact_id,
                "metrics": dict(outcome.metrics),
                "encounters": table,
            }
        )
        return
    streams = len({(score.realm, score.stream) for score in scores})
    realms = len({score.realm for score in scores})
    print_line(
        f"Checkpoint {checkpoint_id[:12]} (iteration {iteration}) on {counted(streams, 'stream')} in "
        f"{counted(realms, 'held-out realm')}:"
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
