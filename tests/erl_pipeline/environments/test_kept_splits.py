"""Which tasks are kept from training is told by their content, for more tasks than any run asks for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.grid_games.boards import is_generated_size
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.runs.environment_checks import refuse_held_out_conversations
from storage.errors import InputError

GENERATED: dict[str, dict[str, Any]] = {
    "frozen_lake": {"rows": [4, 4], "training_boards": 40, "test_boards": 20},
    "sokoban": {"rows": [6, 6], "training_boards": 20, "test_boards": 10},
}


def plugin(name: str) -> EnvironmentPlugin[Any]:
    found: EnvironmentPlugin[Any] = plugins("environments")[name].value
    return found


@pytest.mark.parametrize("name", GENERATED)
def test_boards_are_told_apart(name: str) -> None:
    own = plugin(name)
    settings = own.settings.model_validate({"type": name, **GENERATED[name]})
    assert own.splits.kept_split is not None
    find = own.splits.kept_split(settings, 0)
    splits = {
        None: own.training_tasks(settings, 0),
        "held-out": own.held_out_tasks(settings, 0, 20),
        "test": own.splits.test_tasks(settings, 0),
    }
    for split, tasks in splits.items():
        assert {find(task.payload) for task in tasks} == {split}
    others: list[dict[str, Any]] = [{}, {"board": 1}, {"board": []}, {"board": ["SF", 3]}]
    assert [find(other) for other in others] == [None] * 4


def test_a_board_with_another_sign_for_floor_is_the_same() -> None:
    own = plugin("sokoban")
    settings = own.settings.model_validate({"type": "sokoban", **GENERATED["sokoban"]})
    assert own.splits.kept_split is not None
    find = own.splits.kept_split(settings, 0)
    for task in own.held_out_tasks(settings, 0, 5):
        other = {"board": [row.replace(" ", "-") for row in task.payload["board"]]}
        assert find(other) == "held-out"
        assert own.splits.task_key(other) == own.splits.task_key(task.payload)


def test_questions_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [json.dumps({"question": f"Is {n} odd?", "answer": "yes"}) for n in range(20)]
    file.write_text("\n".join(lines))
    own = plugin("questions")
    given = {"type": "questions", "training_file": str(file), "held_out_share": 0.2, "test_share": 0.3}
    assert own.splits.kept_split is not None
    find = own.splits.kept_split(own.settings.model_validate(given), 0)
    asked = [{"question": f"is {n}  ODD?", "answer": "no"} for n in range(20)]
    assert Counter(map(find, asked)) == {"held-out": 4, "test": 6, None: 10}
    assert find({}) is None


def test_a_conversation_that_asks_a_held_out_question_starts_no_run(tmp_path: Path) -> None:
    asked = [f"Is {n} odd?" for n in range(10)]
    questions, chats = tmp_path / "questions.jsonl", tmp_path / "chats.jsonl"
    questions.write_text("\n".join(json.dumps({"question": each, "answer": "yes"}) for each in asked))
    config = RunConfig.model_validate(
        {
            "name": "warm",
            "iterations": 1,
            "environment": {"type": "questions", "training_file": str(questions), "held_out_share": 0.5},
            "policy": {
                "type": "pretrained",
                "model": str(tmp_path),
                "warm_start": {"type": "messages", "file": str(chats)},
            },
        }
    )
    (held_out,) = plugin("questions").held_out_tasks(config.environment, 0, 1)
    trained = plugin("questions").training_tasks(config.environment, 0)[0]

    def chat(question: str) -> str:
        said = [
            {"role": "user", "content": f"Think first.\n{question}"},
            {"role": "assistant", "content": "yes"},
        ]
        return json.dumps({"messages": said}) + "\n"

    chats.write_text(chat(trained.payload["question"]))
    refuse_held_out_conversations(config)
    chats.write_text(chat(trained.payload["question"]) + chat(held_out.payload["question"].upper()))
    with pytest.raises(InputError, match="row 2 asks a task of the held-out split"):
        refuse_held_out_conversations(config)


@pytest.mark.parametrize("name", GENERATED)
def test_a_board_of_a_size_that_is_not_generated_is_in_no_split(name: str) -> None:
    """The parts of a mixture have different sizes: boards of one are no held-out boards of another."""
    own = plugin(name)
    assert own.splits.kept_split is not None
    larger = own.settings.model_validate({"type": name, **GENERATED[name], "rows": [7, 7]})
    find = own.splits.kept_split(own.settings.model_validate({"type": name, **GENERATED[name]}), 0)
    boards = [*own.held_out_tasks(larger, 0, 20), *own.training_tasks(larger, 0)]
    assert {find(task.payload) for task in boards} == {None}


def test_the_boards_of_one_game_are_no_boards_of_another() -> None:
    sizes = {"rows": [6, 6], "training_boards": 32}
    lake, sokoban = plugin("frozen_lake"), plugin("sokoban")
    for one, other in ((lake, sokoban), (sokoban, lake)):
        assert one.splits.kept_split is not None
        find = one.splits.kept_split(one.settings.model_validate(sizes), 0)
        boards = other.training_tasks(other.settings.model_validate(sizes), 0)
        assert {find(task.payload) for task in boards} == {None}


def test_a_turned_board_has_a_generated_size_where_twins_share_a_split() -> None:
    turned = ["SF", "FF", "FG"]
    assert is_generated_size(turned, (2, 2), (3, 3), "one_split")
    assert not is_generated_size(turned, (2, 2), (3, 3), "any_split")
    assert is_generated_size(["SFF", "FFG"], (2, 2), (3, 3), "any_split")
    assert not is_generated_size(["SFF", "FFG"], (2, 3), None, "one_split")  # squares alone are made
