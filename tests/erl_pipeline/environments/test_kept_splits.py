"""Which tasks are kept from training is told by their content, for more tasks than any run asks for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.environments.interface import EnvironmentPlugin

GENERATED: dict[str, dict[str, Any]] = {
    "frozen_lake": {"rows": [4, 4], "training_boards": 40, "test_boards": 20},
    "sokoban": {"rows": [5, 5], "training_boards": 20, "test_boards": 10},
}


def plugin(name: str) -> EnvironmentPlugin[Any]:
    found: EnvironmentPlugin[Any] = plugins("environments")[name].value
    return found


@pytest.mark.parametrize("name", GENERATED)
def test_boards_are_told_apart(name: str) -> None:
    own = plugin(name)
    settings = own.settings.model_validate({"type": name, **GENERATED[name]})
    assert own.kept_split is not None
    find = own.kept_split(settings, 0)
    splits = {
        None: own.training_tasks(settings, 0),
        "held-out": own.held_out_tasks(settings, 0, 20),
        "test": own.test_tasks(settings, 0),
    }
    for split, tasks in splits.items():
        assert {find(task.payload) for task in tasks} == {split}
    assert [find(other) for other in ({}, {"board": 1}, {"board": []}, {"board": ["SF", 3]})] == [None] * 4


def test_questions_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [json.dumps({"question": f"Is {n} odd?", "answer": "yes"}) for n in range(20)]
    file.write_text("\n".join(lines))
    own = plugin("questions")
    given = {"type": "questions", "training_file": str(file), "held_out_share": 0.2, "test_share": 0.3}
    assert own.kept_split is not None
    find = own.kept_split(own.settings.model_validate(given), 0)
    asked = [{"question": f"is {n}  ODD?", "answer": "no"} for n in range(20)]
    assert Counter(map(find, asked)) == {"held-out": 4, "test": 6, None: 10}
    assert find({}) is None
