"""What rollouts and evaluations have in common."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from erl_pipeline.plan import runner
from erl_pipeline.plan.stage import StageProgress
from storage.errors import Interrupted
from tests.erl_pipeline.runs.small_runs import go, small


class OutOfTime(StageProgress):
    """The time of each stage is over when it begins its episodes; nobody asks the run to stop."""

    def begin(self, total: int, unit: str) -> None:
        if unit == "episodes":
            self.stop = Event()
            self.stop.set()


def test_episodes_end_when_the_time_of_their_stage_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "StageProgress", OutOfTime)
    with pytest.raises(Interrupted):
        go(small(iterations=1), tmp_path)
