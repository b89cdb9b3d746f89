from __future__ import annotations

from erl_pipeline.environments.frozen_lake.game import FrozenLakeBoard
from erl_pipeline.environments.grid_games.boards import named, shape_of, without_twins
from erl_pipeline.environments.grid_games.tasks import BoardTask

ROWS = ("SFH", "FFG")
TWINS = [
    ("SFH", "FFG"),  # itself
    ("FS", "FF", "GH"),  # turned clockwise
    ("GFF", "HFS"),
    ("HG", "FF", "SF"),
    ("HFS", "GFF"),  # mirrored
    ("SF", "FF", "HG"),
    ("FFG", "SFH"),
    ("GH", "FF", "FS"),
]


def test_a_board_has_one_shape_with_its_seven_rotations_and_mirror_images_and_with_no_other() -> None:
    assert len(set(TWINS)) == 8
    assert {shape_of(rows) for rows in TWINS} == {("FFG", "SFH")}  # the first in alphabetical order
    for other in (("SFF", "FHG"), ("SFG", "FFH"), ("SFH", "FGF")):
        assert shape_of(other) != ("FFG", "SFH")


def test_tasks_whose_board_is_another_one_turned_are_taken_out_and_equal_ones_stay() -> None:
    tasks = [
        BoardTask(f"t{number}", FrozenLakeBoard(rows), 6) for number, rows in enumerate([*TWINS, ("SG",)])
    ]
    kept, twins = without_twins(tasks, [FrozenLakeBoard(ROWS)])
    assert [task.task_id for task in kept] == ["t0", "t8"]
    assert [task.task_id for task in twins] == [f"t{number}" for number in range(1, 8)]
    assert without_twins(tasks, []) == (tasks, [])


def test_many_names_are_cut_short() -> None:
    assert named(["a", "b"]) == "a, b"
    assert named([str(number) for number in range(1_205)]) == "0, 1, 2, 3, 4 and 1,200 more"
