from __future__ import annotations

from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.views.iteration_table import IterationRow, iteration_row, row_cells


def outcome(stage: str, seconds: float, **numbers: float) -> StageOutcome:
    return StageOutcome(stage, 3, "a" * 32, False, seconds, numbers, {})


def test_a_row_takes_each_number_from_its_stage() -> None:
    row = iteration_row(
        3,
        [
            outcome("rollout_shard", 2.0, generated_tokens=100),
            outcome("rollout_shard", 3.0, generated_tokens=400),
            outcome(
                "generate_rollouts",
                0.5,
                generated_tokens=500,
                success_first=0.25,
                success_second=0.5,
                second_attempts=6,
            ),
            outcome("index_memory", 0.25, entries=9, entries_added=3),
            outcome("update_policy", 1.0, policy_loss=-0.125, tokens_per_second=9.0),
            outcome("build_distillation", 0.25, sft_rows=3),
            outcome("fine_tune", 1.0, loss=0.5),
            outcome("evaluate", 2.0, greedy_success=0.75),
        ],
    )
    assert row == IterationRow(
        iteration=3,
        first=0.25,
        second=0.5,
        retried=6,
        memory=9,
        rl_loss=-0.125,
        sft_rows=3,
        held_out=0.75,
        tokens=500,
        tokens_per_second=100.0,
        seconds=10.0,
    )


def test_what_did_not_happen_is_blank() -> None:
    row = iteration_row(0, [outcome("bootstrap", 1.0), outcome("evaluate", 0.5, greedy_success=0.25)])
    assert (row.first, row.retried, row.memory, row.tokens_per_second) == (None, None, None, None)
    assert list(row_cells(row).values()) == ["0", "", "", "", "", "", "", "0.250", "", "", "1.5"]


def test_cells_are_written_for_people() -> None:
    row = IterationRow(iteration=1, rl_loss=0.5, tokens=12345, tokens_per_second=2345.6, seconds=1234.56)
    cells = row_cells(row)
    assert (cells["RL loss"], cells["tokens"], cells["tokens/s"], cells["seconds"]) == (
        "+0.5000",
        "12,345",
        "2,346",
        "1,234.6",
    )
