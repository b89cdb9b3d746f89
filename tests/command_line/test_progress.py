from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from command_line.progress import ProgressDisplay
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.stage import StageOutcome
from tests.stage_records import KINDS

COLUMNS = (
    Column("generate_rollouts", "success_try", "1st", "", ".2f"),
    Column("generate_rollouts", "tokens_per_second", "tokens/s", "", ",.0f"),
    Column("index_memory", "entries", "memory", "", ",d"),
    Column("evaluate", "greedy_success", "held-out", ""),
    Column("update_policy", "entropy", "entropy", "", in_tables=False),
)


def outcome(
    stage: str, iteration: int | None, *, reused: bool = False, seconds: float = 1.0, **numbers: float
) -> StageOutcome:
    key = "0000" if KINDS[stage] == "trajectories" else ""
    # The time from order to commit is longer than that for making the artifact, which tables show.
    return StageOutcome(
        stage, KINDS[stage], iteration, key, "a" * 32, reused, seconds + 0.3, seconds, "run", numbers, {}
    )


def title(given: StageOutcome) -> str:
    return given.stage if given.iteration is None else f"{given.stage} of iteration {given.iteration}"


def run(display: ProgressDisplay, *outcomes: StageOutcome) -> None:
    with display:
        for each in outcomes:
            if not each.reused:
                display.stage_started(title(each))
                display.counting(title(each), 4, "episodes")
                display.advanced(title(each), 4, {"success_try": 0.25})
            display.stage_finished(title(each), each)


def plain_lines(*outcomes: StageOutcome) -> list[str]:
    file = io.StringIO()
    run(ProgressDisplay(2, COLUMNS, Console(file=file, width=200)), *outcomes)
    return file.getvalue().splitlines()


def terminal(file: io.StringIO) -> Console:
    return Console(file=file, width=160, force_terminal=True, color_system=None)


def shown(file: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", file.getvalue())


def test_without_a_terminal_each_stage_is_a_line_and_shards_are_none() -> None:
    assert plain_lines(
        outcome("bootstrap", None, loss=0.5),
        outcome("rollout_shard", 1, seconds=2.0),
        outcome("rollout_shard", 1, seconds=3.0),
        outcome("generate_rollouts", 1, seconds=0.5, success_try=0.25, generated_tokens=500),
        outcome("update_policy", 1, entropy=2.0, strange=1.0),
        outcome("evaluate", 1, greedy_success=0.75),
    ) == [
        "start             bootstrap              1.0 s  loss 0.5000",
        "iteration 1/2     generate_rollouts      5.5 s  1st 0.25  tokens/s 100",
        "iteration 1/2     update_policy          1.0 s",
        "iteration 1/2     evaluate               1.0 s  held-out 0.750",
    ]


def test_a_stage_that_had_nothing_to_train_on_says_so() -> None:
    assert plain_lines(outcome("fine_tune", 1, loss=0.0, optimizer_steps=0)) == [
        "iteration 1/2     fine_tune              1.0 s  read all rows, none to train on"
    ]


def test_what_was_found_committed_is_counted_once_before_the_first_new_work() -> None:
    assert plain_lines(
        outcome("bootstrap", None, reused=True),
        outcome("update_policy", 1, reused=True),
        outcome("evaluate", 1, greedy_success=0.75),
    ) == [
        "2 artifacts found committed and looked at; continuing from there",
        "iteration 1/2     evaluate               1.0 s  held-out 0.750",
    ]


def test_a_warning_is_shown_as_it_is() -> None:
    file = io.StringIO()
    ProgressDisplay(2, COLUMNS, Console(file=file, width=20)).warn("rows: [4, 4] and [bold] are no markup")
    assert file.getvalue() == "warning: rows: [4, 4] and [bold] are no markup\n"


def test_what_a_server_says_is_shown_beside_its_bar_as_it_is() -> None:
    file = io.StringIO()
    display = ProgressDisplay(2, COLUMNS, terminal(io.StringIO()))
    display.waiting("rollouts of key:12:", "vLLM", 1.0, "[/tmp/vllm.sock] [rank0] :key:")
    Console(file=file, width=160, color_system=None).print(display.bars())
    assert "rollouts of key:12:" in file.getvalue()
    assert "[/tmp/vllm.sock] [rank0] :key:" in file.getvalue()


def test_waiting_is_told_at_once_and_then_twice_a_minute() -> None:
    file = io.StringIO()
    with ProgressDisplay(2, COLUMNS, Console(file=file, width=200)) as display:
        for seconds in (1.0, 2.0, 30.9, 31.0, 45.0, 61.5):
            display.waiting("evaluate of iteration 1", "vLLM", seconds, "loading")
    assert [line.split(": ")[1] for line in file.getvalue().splitlines()] == [
        "waiting 1 s for vLLM",
        "waiting 31 s for vLLM",
        "waiting 62 s for vLLM",
    ]


def test_a_long_stage_without_a_terminal_tells_its_progress_twice_a_minute() -> None:
    file, clock = io.StringIO(), iter([0.0, 10.0, 29.0, 31.0, 45.0, 60.0, 62.0])
    display = ProgressDisplay(2, COLUMNS, Console(file=file, width=200), lambda: next(clock))
    display.stage_started("bootstrap")
    display.counting("bootstrap", 1400, "steps")
    for _ in range(6):
        display.advanced("bootstrap", 200, {"loss": 0.5})
    assert file.getvalue().splitlines() == [
        "bootstrap: 600/1,400 steps  after 0:00:31  loss 0.5000",
        "bootstrap: 1,200/1,400 steps  after 0:01:02  loss 0.5000",
    ]


def test_episodes_that_end_together_are_no_progress() -> None:
    """They are played side by side: the first of them ends when nearly all have."""
    file, clock = io.StringIO(), iter([0.0, 34.0, 34.1, 34.2, 60.0])
    display = ProgressDisplay(2, COLUMNS, Console(file=file, width=200), lambda: next(clock))
    display.stage_started("rollout_shard 0000 of iteration 1")
    display.counting("rollout_shard 0000 of iteration 1", 16, "episodes")
    for _ in range(3):
        display.advanced("rollout_shard 0000 of iteration 1", 1, {})
    assert file.getvalue() == ""
    display.advanced("rollout_shard 0000 of iteration 1", 1, {})
    assert "4/16 episodes  after 0:01:00" in file.getvalue()


def test_on_a_terminal_an_iteration_is_one_line_when_the_next_has_given_something() -> None:
    file = io.StringIO()
    run(
        ProgressDisplay(2, COLUMNS, terminal(file)),
        outcome("rollout_shard", 1, seconds=2.0),
        outcome("generate_rollouts", 1, success_try=0.25, generated_tokens=500),
        outcome("index_memory", 1, entries=7),
        outcome("evaluate", 1, greedy_success=0.75),
        outcome("rollout_shard", 2),
    )
    line = "iteration 1/2        5.0 s  1st 0.25  tokens/s 250  memory 7  held-out 0.750"
    assert shown(file).count(line) == 1


def test_an_iteration_with_a_stage_at_work_waits_for_its_line() -> None:
    file = io.StringIO()
    with ProgressDisplay(2, COLUMNS, terminal(file)) as display:
        display.stage_finished("update_policy of iteration 1", outcome("update_policy", 1))
        display.stage_started("evaluate of iteration 1")
        display.stage_finished("rollout_shard of iteration 2", outcome("rollout_shard", 2))
        assert "iteration 1/2" not in shown(file)
        display.stage_finished("evaluate of iteration 1", outcome("evaluate", 1, greedy_success=0.5))
        display.stage_finished("rollout_shard of iteration 2", outcome("rollout_shard", 2))
        assert "iteration 1/2        2.0 s  held-out 0.500" in shown(file)


@pytest.mark.timeout(60)
def test_stages_at_the_same_time_have_a_bar_each_and_may_tell_from_any_thread() -> None:
    file = io.StringIO()
    display = ProgressDisplay(2, COLUMNS, terminal(file))

    def work(name: str) -> None:
        display.stage_started(name)
        display.counting(name, 400, "episodes")
        for _ in range(300):
            display.advanced(name, 1, {"loss": 0.5})

    with display:
        names = ("evaluate of iteration 1", "rollout_shard 0003 of iteration 2")
        workers = [threading.Thread(target=work, args=(name,)) for name in names]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        table = io.StringIO()
        Console(file=table, width=160, color_system=None).print(display.bars())
    lines = table.getvalue().splitlines()
    assert [line.split("━")[0].strip() for line in sorted(lines)] == list(names)
    assert all("300/400 episodes" in line and line.rstrip().endswith("loss 0.5000") for line in lines)
