import random

import pytest

from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.tasks.draw_tasks import draw_tasks, part_counts, task_order
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError


def tasks(count: int) -> list[Task]:
    return [Task(f"t{index}", "type", "environment", {}) for index in range(count)]


def names(drawn: list[Task]) -> list[str]:
    return [task.task_id for task in drawn]


def test_no_task_is_drawn_twice_in_an_iteration_or_in_an_epoch() -> None:
    # Seven tasks fill two iterations of three; the seventh is not drawn in this order.
    drawn = [names(draw_tasks(tasks(7), 3, run_seed=0, iteration=iteration)) for iteration in range(1, 5)]

    for first, second in (drawn[:2], drawn[2:]):
        assert len({*first, *second}) == 6
    assert drawn[:2] != drawn[2:]


def test_the_draw_depends_on_seed_and_iteration_alone() -> None:
    assert names(draw_tasks(tasks(50), 5, 1, 3)) == names(draw_tasks(tasks(50), 5, 1, 3))
    assert names(draw_tasks(tasks(50), 5, 1, 3)) != names(draw_tasks(tasks(50), 5, 2, 3))
    assert names(draw_tasks(tasks(50), 5, 1, 3)) != names(draw_tasks(tasks(50), 5, 1, 4))


def test_more_tasks_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="tasks_per_iteration: 4 tasks are asked for, but there are 2"):
        draw_tasks(tasks(2), 4, 0, 1)


def test_without_weights_the_order_is_the_seeded_shuffle_of_all_tasks() -> None:
    order = tasks(7)
    random.Random(derive_seed(3, "task order", 0)).shuffle(order)
    assert draw_tasks(tasks(7), 2, 3, 2) == order[2:4]


def mixed(**counts: int) -> list[Task]:
    return [
        Task(f"{part}/t{number}", part, "environment", {})
        for part, count in counts.items()
        for number in range(count)
    ]


def parts(drawn: list[Task]) -> list[str]:
    return [task.task_type for task in drawn]


def test_an_iteration_holds_the_parts_in_proportion_to_their_weights() -> None:
    weights = {"a": 3.0, "b": 1.0}
    for iteration in range(1, 9):
        drawn = draw_tasks(mixed(a=12, b=100), 8, 0, iteration, weights)
        # 6 of a at 1/12, 3/12 ..., 2 of b at 1/4 and 3/4: of equals a comes first.
        assert parts(drawn) == ["a", "a", "b", "a", "a", "a", "b", "a"]
        assert len(set(names(drawn))) == 8
    of_a = [
        name
        for iteration in (1, 2)
        for name in names(draw_tasks(mixed(a=12, b=9), 8, 0, iteration, weights))
        if name.startswith("a")
    ]
    assert len(set(of_a)) == 12


def test_a_share_that_is_no_whole_number_is_met_in_the_mean() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    drawn = [part_counts(weights, 10, 0, iteration) for iteration in range(1, 401)]
    assert all(sum(each.values()) == 10 and each["c"] == 5 for each in drawn)
    assert {each["a"] for each in drawn} == {2, 3}
    assert 2.4 < sum(each["a"] for each in drawn) / 400 < 2.6


def test_all_tasks_are_in_the_order_once() -> None:
    order = task_order(mixed(a=5, b=7), 4, 0, 2, {"a": 1.0, "b": 1.0})
    assert sorted(names(order)) == sorted(names(mixed(a=5, b=7)))


def test_a_part_with_too_few_tasks_is_named() -> None:
    with pytest.raises(InputError, match=r"environment.parts.a: its weight asks for 3 tasks .* it has 2"):
        draw_tasks(mixed(a=2, b=9), 4, 0, 1, {"a": 3.0, "b": 1.0})
