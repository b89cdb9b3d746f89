import pytest

from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.tasks.draw_tasks import draw_tasks
from storage.errors import InputError


def tasks(count: int) -> list[Task]:
    return [Task(f"t{index}", "type", "environment", {}) for index in range(count)]


def names(drawn: list[Task]) -> list[str]:
    return [task.task_id for task in drawn]


def test_no_task_is_drawn_twice_in_an_iteration_or_in_an_epoch() -> None:
    # Seven tasks make two iterations of three; the seventh waits for another order.
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
