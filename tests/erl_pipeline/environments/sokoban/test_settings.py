from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.sokoban.settings import SokobanConfig


def test_square_boards_take_their_columns_from_the_rows() -> None:
    assert SokobanConfig(rows=(5, 6)).column_range == (5, 6)
    assert SokobanConfig(rows=(5, 6), columns=(7, 7)).column_range == (7, 7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": (8, 6)}, r"rows: \[8, 6\]: allowed is \[least, most\] with 3 <= least <= most"),
        ({"columns": (2, 6)}, r"columns: \[2, 6\]: allowed is \[least, most\] with 3 <= least"),
        ({"boxes": (0, 1)}, r"boxes: \[0, 1\]: allowed is \[least, most\] with 1 <= least"),
        # A 5x5 board has nine cells within its border; two boxes, two goals and the player leave four.
        (
            {"rows": (5, 5), "boxes": (2, 2), "inner_walls": (0, 5)},
            r"with goals and player they need 10 cells, but the smallest board has 9 within its border",
        ),
        ({"solution_length": (1, 9)}, r"solution_length: \[1, 9\]: allowed is at most 8"),
        ({"action_words": ("p", "p", "q", "r")}, "action_words: .* allowed are four different words"),
        ({"action_words": ("P", "q", "r", "s")}, "lower case"),
        ({"symbols": ("A", "a", "B", "b", "C", "D", "D")}, "symbols: .* allowed are seven different words"),
        ({"symbols": ("A", "a", "B", "b", "C", "D", "EE")}, "seven single characters"),
        ({"instructions": "{{ board }}"}, "instructions: the template uses the unknown variable 'board'"),
        ({"actions": "named"}, "actions: named has no compact form"),
        ({"boxes": (1, 2)}, r"boxes: \[1, 2\]: format: compact needs one number of boxes"),
        ({"boxes": (3, 3)}, "which is at most 2"),
        ({"slippery": True}, "Extra inputs are not permitted"),
    ],
)
def test_impossible_settings_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SokobanConfig.model_validate(values)
