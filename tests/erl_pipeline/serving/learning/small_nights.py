"""Nights of a small served run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.state import latest_checkpoint
from erl_pipeline.serving.learning.nights import (
    Judged,
    NextNight,
    Night,
    conclude_night,
    next_night,
    train_night,
)
from erl_pipeline.serving.learning.promotion import promote
from erl_pipeline.serving.settings import ServingSettings
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import Notes
from tests.erl_pipeline.serving.learning.served_traffic import RUN, TOMORROW


def settings(
    max_age: int = 1, corrections: bool = False, reflect: str | bool = False, **changes: Any
) -> ServingSettings:
    learn = {"min_episodes": 8, "max_age": max_age, "corrections": corrections, "reflect": reflect}
    return ServingSettings.model_validate({"learn": learn, "gate": {"held_out_drop": 2.0, **changes}})


def begin_production(store: Path) -> str:
    run = RunStore(str(store)).open(RUN)
    found = latest_checkpoint(run_config(run), run.stages())
    assert found is not None
    given = settings().gate
    promote(str(store), RUN, "production", found.artifact_id, given, "me", why="first", without_gate=True)
    return found.artifact_id


def due(store: Path, **changes: Any) -> NextNight:
    return next_night(str(store), RUN, settings(**changes), TOMORROW)


def night_of(found: NextNight) -> Night:
    assert found.night is not None, found.reason
    return found.night


def slept(store: Path, night: Night, stop_after: str | None = None) -> None:
    notes = Notes(stop_after)
    with open_run(night.config, str(store), notes, notes.stop) as opened:
        train_night(opened, night)


def judged(store: Path, night: Night, *, promotes: bool = False, **changes: Any) -> Judged:
    return conclude_night(str(store), night, settings(**changes), "me", promote=promotes)
