from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.config.rollouts import ByDifficultySelection, EasyToHardSelection, ResultSettings
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.rollouts.task_results import (
    DrawnTask,
    TaskResult,
    draw_by_difficulty,
    draw_from_window,
    expected_success,
    first_attempts,
    read_results,
    window_of,
    with_iteration,
    write_results,
)


def task(name: str, type_: str = "lake") -> Task:
    return Task(name, type_, "environment", {})


def test_first_attempts_are_counted_but_those_that_the_environment_ended() -> None:
    rows = [
        ("t1", None, "done", True),
        ("t1", None, "done", False),
        ("t1", "first", "done", True),  # a second attempt
        ("t2", None, "environment_error", False),
        ("t3", None, "context", False),
    ]
    columns = ["task_id", "parent_trajectory_id", "finish_reason", "success"]
    frame = pl.DataFrame(rows, schema=columns, orient="row").lazy()
    assert first_attempts(frame) == {"t1": (2, 1), "t3": (1, 0)}


def test_each_iteration_discounts_those_before_it() -> None:
    first = with_iteration({}, 1, {"t1": (4, 4), "t2": (4, 0)}, 0.5)
    second = with_iteration(first, 2, {"t1": (4, 1)}, 0.5)
    assert second == {"t1": TaskResult(6.0, 3.0, 2), "t2": TaskResult(2.0, 0.0, 1)}


def test_expected_success_by_hand() -> None:
    results = {"t1": TaskResult(4.0, 4.0, 1), "t2": TaskResult(4.0, 0.0, 1)}
    tasks = [task("t1"), task("t2"), task("t3"), task("other", "pond")]
    expected = expected_success(tasks, results, ResultSettings(prior=0.2, prior_tries=2.0))
    # The type: (4 + 0.2 * 2) / (8 + 2) = 0.44; t1: (4 + 0.44 * 2) / 6, t2: 0.88 / 6; t3 is like its type.
    assert expected["t1"] == pytest.approx(4.88 / 6)
    assert expected["t2"] == pytest.approx(0.88 / 6)
    assert expected["t3"] == pytest.approx(0.44)
    # Nothing is known about its type.
    assert expected["other"] == pytest.approx(0.2)


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = {"t2": TaskResult(4.0, 0.9, 3), "t1": TaskResult(1.5, 0.25, 1)}
    assert write_results(tmp_path / "results.parquet", results) == 2
    assert read_results(tmp_path / "results.parquet") == results


NAMES = ("never", "often", "always", "new1", "new2", "new3")
TASKS = [Task(name, "type", "environment", {}) for name in NAMES]
EXPECTED = {"never": 0.0, "often": 0.5, "always": 1.0, "new1": 0.5, "new2": 0.5, "new3": 0.5}
RESULTS = {name: TaskResult(8.0, 8.0 * EXPECTED[name], 1) for name in NAMES[:3]}


def drawn(count: int, seed: int, **settings: float) -> list[DrawnTask]:
    selection = ByDifficultySelection(**settings)
    return draw_by_difficulty(TASKS, count, EXPECTED, RESULTS, selection, random.Random(seed))


def names(found: list[DrawnTask]) -> list[str]:
    return [each.task.task_id for each in found]


def test_weights_by_hand() -> None:
    expected = {"often": 0.5, "never": 0.25, "always": 1.0}  # the target, one width away, two widths
    selection = ByDifficultySelection(target=0.5, width=0.25, new=0.0)
    found = draw_by_difficulty(TASKS[:3], 3, expected, RESULTS, selection, random.Random(0))
    weights = {each.task.task_id: each.weight for each in found}
    assert weights == pytest.approx({"often": 1.0, "never": math.exp(-0.5), "always": math.exp(-2.0)})


def test_probabilities_by_hand_are_those_of_single_draws() -> None:
    # Weights exp(-2), 1, exp(-2): 0.1353, 1, 0.1353, so that `often` has 1 / 1.2707 = 0.787.
    found = [drawn(1, seed, new=0.0, width=0.25)[0] for seed in range(2000)]
    often = next(each for each in found if each.task.task_id == "often")
    assert often.probability == pytest.approx(1 / (1 + 2 * math.exp(-2)))
    shares = Counter(names(found))
    assert shares["often"] / 2000 == pytest.approx(0.787, abs=0.03)
    assert shares["never"] / 2000 == pytest.approx(0.1065, abs=0.03)


def test_a_weight_that_is_too_small_for_a_float_still_says_which_is_nearer() -> None:
    far = {**EXPECTED, "never": 0.0, "often": 0.1, "always": 0.05}
    selection = ByDifficultySelection(target=1.0, width=0.01, new=0.0)
    found = draw_by_difficulty(TASKS[:3], 2, far, RESULTS, selection, random.Random(0))
    assert names(found) == ["often", "always"]
    assert found[0].weight == 0.0
    assert found[0].probability == pytest.approx(1.0)


def test_a_share_of_new_tasks_is_drawn_uniformly() -> None:
    found = drawn(4, 0, new=0.5)
    assert [each.reason for each in found] == ["new"] * 2 + ["expected_success"] * 2
    assert [each.probability for each in found[:2]] == pytest.approx([1 / 3] * 2)
    assert len(set(names(found))) == 4


def test_the_rounding_of_the_share_is_drawn() -> None:
    counts = Counter(sum(each.reason == "new" for each in drawn(3, seed, new=0.5)) for seed in range(400))
    assert set(counts) == {1, 2}
    assert counts[1] / 400 == pytest.approx(0.5, abs=0.08)


def test_where_one_kind_lacks_tasks_the_other_fills_in() -> None:
    assert Counter(each.reason for each in drawn(5, 0, new=0.0)) == {"expected_success": 3, "new": 2}
    assert Counter(each.reason for each in drawn(5, 0, new=1.0)) == {"new": 3, "expected_success": 2}


@pytest.mark.parametrize(("iteration", "window"), [(1, (0, 4)), (2, (2, 6)), (3, (4, 8)), (9, (4, 8))])
def test_the_window_moves_from_the_easiest_to_the_hardest(iteration: int, window: tuple[int, int]) -> None:
    assert window_of(8, 1, EasyToHardSelection(window=0.5, over=3), iteration) == window


def test_the_window_has_room_for_an_iteration() -> None:
    assert window_of(8, 6, EasyToHardSelection(window=0.25, over=2), 2) == (2, 8)


def test_tasks_are_drawn_from_the_window_alone() -> None:
    selection = EasyToHardSelection(window=0.5, over=2)
    difficulty = {name: float(place) for place, name in enumerate(NAMES)}
    easy = draw_from_window(TASKS, 3, difficulty, selection, 1, random.Random(0))
    hard = draw_from_window(TASKS, 2, difficulty, selection, 2, random.Random(0))
    assert set(names(easy)) == {"never", "often", "always"}
    assert set(names(hard)) < {"new1", "new2", "new3"}
    assert [each.probability for each in easy] == pytest.approx([1 / 3] * 3)
    assert {each.reason for each in easy} == {"window"}


def test_the_same_seed_draws_the_same() -> None:
    assert drawn(4, 7) == drawn(4, 7)
    assert drawn(4, 7) != drawn(4, 8)
