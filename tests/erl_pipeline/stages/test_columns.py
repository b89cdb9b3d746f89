from __future__ import annotations

from erl_pipeline.config.plugins import plugins
from erl_pipeline.evaluation.iterations import IterationRow
from erl_pipeline.stages.columns import with_reward
from erl_pipeline.views.report.tables import iteration_table

ERL = plugins("methods")["erl"].value
COLUMNS = list(with_reward(ERL.columns(ERL.settings())))
SUCCESS = {"generate_rollouts/success_first_attempt": 0.0, "generate_rollouts/success_second_attempt": 0.0}


def test_a_graded_reward_is_shown_beside_the_success_rate_of_first_attempts() -> None:
    row = IterationRow(1, {**SUCCESS, "generate_rollouts/reward_first_attempt": 0.3})
    (cells,) = iteration_table([row], COLUMNS).cells
    assert list(cells)[:4] == ["iter", "1st", "reward", "2nd"]
    assert (cells["1st"], cells["reward"]) == ("0.000", "0.300")


def test_rewards_of_0_and_1_have_no_column() -> None:
    row = IterationRow(1, SUCCESS)
    assert "reward" not in iteration_table([row], COLUMNS).columns
