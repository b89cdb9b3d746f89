from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig


def test_square_boards_take_their_columns_from_the_rows() -> None:
    assert FrozenLakeConfig(rows=(4, 4)).column_range == (4, 4)
    assert FrozenLakeConfig(rows=(4, 4), columns=(6, 6)).column_range == (6, 6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": (5, 4)}, r"rows: \[5, 4\]: allowed is \[least, most\] with 1 <= least <= most"),
        ({"rows": (1, 1)}, "needs at least two cells"),
        ({"holes": None}, "exactly one of holes and hole_probability"),
        ({"hole_probability": 0.2}, "exactly one of holes and hole_probability"),
        ({"holes": (1, 15)}, r"holes: \[1, 15\]: allowed are at most 14"),
        ({"path_length": (2, 8)}, r"path_length: \[2, 8\]: allowed is at most 6"),
        ({"action_words": ("a", "a", "b", "c")}, "four different words"),
        ({"action_words": ("a b", "a", "b", "c")}, "four different words without spaces"),
        ({"action_words": ("A", "b", "c", "d")}, "lower case"),
        ({"symbols": ("@@", "#", "$", "&")}, "single characters"),
        ({"actions": "named"}, "actions: named has no compact form"),
        ({"slippery": True}, "Extra inputs are not permitted"),
    ],
)
def test_impossible_settings_are_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FrozenLakeConfig.model_validate(values)
