from __future__ import annotations

from erl_pipeline.evaluation.iterations import history_rows, iteration_row
from erl_pipeline.plan.column import Column
from tests.stage_records import stage_record

SUCCESS = Column("generate_rollouts", "success_try", "try", "success of tries")
RATE = Column("generate_rollouts", "tokens_per_second", "tokens/s", "", ",.0f")
ENTRIES = Column("index_memory", "entries", "memory", "", ",d")
HELD_OUT = Column("evaluate", "greedy_success", "held-out", "")
DRAWN = Column("update_policy", "entropy", "entropy", "", in_tables=False)
COLUMNS = (SUCCESS, RATE, ENTRIES, HELD_OUT, DRAWN)


def test_a_row_takes_each_number_from_its_stage_and_rates_rollouts_by_the_time_of_their_shards() -> None:
    stages = [
        stage_record(3, "rollout_shard", {"generated_tokens": 100, "success_try": 1.0}, key="0", seconds=2.0),
        stage_record(3, "rollout_shard", {"generated_tokens": 400}, key="1", seconds=3.0),
        stage_record(3, "generate_rollouts", {"generated_tokens": 500, "success_try": 0.25}, seconds=0.5),
        stage_record(3, "index_memory", {"entries": 9}, seconds=0.25),
        stage_record(3, "update_policy", {"tokens_per_second": 9.0, "entropy": 1.5}, seconds=1.0),
        stage_record(3, "evaluate", {"greedy_success": 0.75}, seconds=2.0),
    ]
    row = iteration_row(3, stages, COLUMNS)
    assert row.values == {
        "generate_rollouts/success_try": 0.25,
        "generate_rollouts/tokens_per_second": 100.0,
        "index_memory/entries": 9,
        "update_policy/entropy": 1.5,
        "evaluate/greedy_success": 0.75,
    }
    assert row.seconds == 8.75


def test_programs_get_every_column_of_the_tables() -> None:
    row = iteration_row(0, [stage_record(0, "evaluate", {"greedy_success": 0.5})], COLUMNS)
    assert row.plain(COLUMNS) == {
        "iteration": 0,
        "generate_rollouts/success_try": None,
        "generate_rollouts/tokens_per_second": None,
        "index_memory/entries": None,
        "evaluate/greedy_success": 0.5,
        "seconds": 1.0,
    }


def test_a_history_has_a_row_for_each_iteration_without_evaluations_on_request() -> None:
    history = [
        stage_record(0, "evaluate", {"greedy_success": 0.25}),
        stage_record(2, "evaluate", {"greedy_success": 0.5}),
        stage_record(1, "evaluate_on_request", {"greedy_success": 1.0}),
    ]
    rows = history_rows(history, COLUMNS)
    assert [(row.iteration, row.values) for row in rows] == [
        (0, {"evaluate/greedy_success": 0.25}),
        (2, {"evaluate/greedy_success": 0.5}),
    ]
