from __future__ import annotations

import io
import re
import time

from rich.console import Console

from command_line.progress import ProgressDisplay, shown_numbers
from erl_pipeline.pipeline.outcome import StageOutcome


def outcome(
    stage: str, iteration: int | None, *, reused: bool = False, seconds: float = 1.0, **numbers: float
) -> StageOutcome:
    return StageOutcome(stage, iteration, "a" * 32, reused, seconds, numbers, {})


def run(display: ProgressDisplay, *outcomes: StageOutcome) -> None:
    with display:
        for each in outcomes:
            display.stage_started(each.stage, each.iteration, 4, "episodes")
            display.advance(each.stage, 4, success_first=0.25)
            display.stage_finished(each)


def plain_lines(*outcomes: StageOutcome) -> list[str]:
    file = io.StringIO()
    run(ProgressDisplay(2, Console(file=file, width=200)), *outcomes)
    return file.getvalue().splitlines()


def test_numbers_are_shown_in_a_fixed_order_and_others_left_out() -> None:
    numbers = {"tokens_per_second": 1234.5, "success_second": 0.5, "strange": 1.0, "success_first": 0.25}
    assert shown_numbers(numbers) == "1st attempt 0.25  2nd 0.50  1,234 tokens/s"


def test_without_a_terminal_each_stage_is_a_line_and_shards_are_none() -> None:
    assert plain_lines(
        outcome("bootstrap", None, loss=0.5),
        outcome("rollout_shard", 1, seconds=2.0),
        outcome("rollout_shard", 1, seconds=3.0),
        outcome("generate_rollouts", 1, seconds=0.5, success_first=0.25, generated_tokens=500),
        outcome("evaluate", 1, greedy_success=0.75),
    ) == [
        "before the first  bootstrap              1.0 s  loss 0.5000",
        "iteration 1/2     generate_rollouts      5.5 s  1st attempt 0.25  100 tokens/s",
        "iteration 1/2     evaluate               1.0 s  held-out 0.750",
    ]


def test_what_was_found_committed_is_counted_once_before_the_first_new_work() -> None:
    assert plain_lines(
        outcome("bootstrap", None, reused=True),
        outcome("update_policy", 1, reused=True),
        outcome("evaluate", 1, greedy_success=0.75),
    ) == [
        "2 artifacts of earlier work found committed; going on from there",
        "iteration 1/2     evaluate               1.0 s  held-out 0.750",
    ]


def test_a_warning_is_shown_as_it_is() -> None:
    file = io.StringIO()
    ProgressDisplay(2, Console(file=file, width=20)).warn("rows: [4, 4] and [bold] are no markup")
    assert file.getvalue() == "warning: rows: [4, 4] and [bold] are no markup\n"


def test_on_a_terminal_a_finished_iteration_is_one_line() -> None:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system=None)
    run(
        ProgressDisplay(2, console),
        outcome("rollout_shard", 1, seconds=2.0),
        outcome("generate_rollouts", 1, success_first=0.25, success_second=0.5, generated_tokens=500),
        outcome("index_memory", 1, entries=7),
        outcome("evaluate", 1, greedy_success=0.75),
    )
    shown = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", file.getvalue())
    line = "iteration 1/2        5.0 s  1st attempt 0.25  2nd 0.50  held-out 0.750  7 entries  250 tokens/s"
    assert shown.count(line) == 1


def test_shards_of_one_iteration_share_a_bar() -> None:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system=None)
    with ProgressDisplay(2, console) as display:
        for _ in range(2):
            display.stage_started("rollout_shard", 1, 4, "episodes")
            display.advance("rollout_shard", 3)
            display.stage_finished(outcome("rollout_shard", 1))
        deadline = time.monotonic() + 10.0
        while "6/8 episodes" not in file.getvalue():  # bars are drawn ten times a second
            assert time.monotonic() < deadline, file.getvalue()
