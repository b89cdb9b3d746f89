from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from erl_pipeline.config.rollouts import ByDifficultySelection, EasyToHardSelection
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.rollouts.selection_rules import (
    DrawnTask,
    difficulty_weight,
    draw_by_difficulty,
    draw_from_window,
    window_of,
)
from erl_pipeline.stages.rollouts.task_results import TaskResult

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
    selection = ByDifficultySelection(target=0.5, width=0.25)
    assert difficulty_weight(0.5, selection) == 1.0
    assert difficulty_weight(0.25, selection) == pytest.approx(math.exp(-0.5))  # one width away
    assert difficulty_weight(1.0, selection) == pytest.approx(math.exp(-2.0))  # two widths


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
