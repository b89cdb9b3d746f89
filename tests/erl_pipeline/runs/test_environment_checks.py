"""Too few tasks are found before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.runs.environment_checks import require_tasks
from storage.errors import InputError
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import SMALL, go, small

TOO_MANY = {"rollouts": {**SMALL["rollouts"], "tasks_per_iteration": 17}}
SAID = "tasks_per_iteration: 17 tasks are asked for, but there are 16 training tasks"


def test_train_refuses_before_its_first_stage(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=SAID):
        go(small(**TOO_MANY), tmp_path)
    assert RunStore(str(tmp_path)).list() == []


def test_a_run_on_stored_rollouts_draws_no_tasks() -> None:
    require_tasks(small(**TOO_MANY), drawn=False)


def test_many_boards_of_sokoban_are_not_made_only_to_be_counted() -> None:
    sokoban = {"type": "sokoban", "training_boards": 4096, "format": "compact"}
    many = {**SMALL["rollouts"], "tasks_per_iteration": 5000}
    require_tasks(small(environment=sokoban, rollouts=many))
    few = {**sokoban, "training_boards": 3}
    with pytest.raises(InputError, match="5000 tasks are asked for, but there are 3"):
        require_tasks(small(environment=few, rollouts=many))
