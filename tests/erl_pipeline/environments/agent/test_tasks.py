"""The tasks of agents: files of lines, and their splits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.environments.agent import ENVIRONMENT
from erl_pipeline.environments.agent.settings import AgentConfig
from storage.errors import ConfigError, InputError


def lines(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_tasks_come_from_lines_and_no_prompt_is_in_two_splits(tmp_path: Path) -> None:
    training = lines(tmp_path / "train.jsonl", *({"prompt": f"task {n}", "level": n} for n in range(10)))
    config = AgentConfig(training_file=training, held_out_share=0.2, command=("x",))
    trained = ENVIRONMENT.training_tasks(config, 0)
    held_out = ENVIRONMENT.held_out_tasks(config, 0, 2)
    assert len(trained) == 8
    assert {task.payload["prompt"] for task in (*trained, *held_out)} == {f"task {n}" for n in range(10)}
    assert trained[0].payload["level"] in range(10)
    assert ENVIRONMENT.splits.kept_split is not None
    find = ENVIRONMENT.splits.kept_split(config, 0)
    assert [find(task.payload) for task in held_out] == ["held-out", "held-out"]
    assert find(trained[0].payload) is None
    with pytest.raises(InputError, match="3 held-out tasks are asked for, but there are 2"):
        ENVIRONMENT.held_out_tasks(config, 0, 3)


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "two files"])
def test_a_share_of_the_tasks_is_set_aside_for_comparisons(tmp_path: Path, apart: bool) -> None:
    """Of ten tasks, or of ten that are in a file for evaluation: three, whatever the order of the lines."""
    ten = [{"prompt": f"task {n}"} for n in range(10)]
    given: dict[str, Any] = {"training_file": lines(tmp_path / "train.jsonl", *ten), "held_out_share": 0.2}
    if apart:
        given["training_file"] = lines(tmp_path / "other.jsonl", {"prompt": "another"})
        given["held_out_file"] = lines(tmp_path / "held.jsonl", *ten)
    config = AgentConfig(**given, test_share=0.3, command=("x",))
    test = ENVIRONMENT.splits.test_tasks(config, 0)
    held_out = ENVIRONMENT.held_out_tasks(config, 0, 7 if apart else 2)
    split = {
        "test": test,
        "held-out": held_out,
        None: ENVIRONMENT.training_tasks(config, 0),
    }
    assert [len(tasks) for tasks in split.values()] == ([3, 7, 1] if apart else [3, 2, 5])
    assert ENVIRONMENT.splits.kept_split is not None
    find = ENVIRONMENT.splits.kept_split(config, 0)
    for name, tasks in split.items():
        assert {find(task.payload) for task in tasks} == {name}
    lines(tmp_path / ("held.jsonl" if apart else "train.jsonl"), *reversed(ten))
    assert ENVIRONMENT.splits.test_tasks(config, 0) == test
    assert not ENVIRONMENT.splits.test_tasks(config.model_copy(update={"test_share": 0.0}), 0)


def test_a_held_out_prompt_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    training = lines(tmp_path / "train.jsonl", {"prompt": "Go  up"}, {"prompt": "down"})
    held_out = lines(tmp_path / "held.jsonl", {"prompt": "go up"})
    config = AgentConfig(training_file=training, held_out_file=held_out, command=("x",))
    with pytest.raises(InputError, match="trained on"):
        ENVIRONMENT.training_tasks(config, 0)


def test_a_line_that_cannot_be_scored_is_named(tmp_path: Path) -> None:
    training = lines(tmp_path / "train.jsonl", {"prompt": "one", "answer": "1"}, {"prompt": "two"})
    config = AgentConfig(training_file=training, command=("x",), reward="scorer")
    with pytest.raises(InputError, match="line 2: answer missing"):
        ENVIRONMENT.training_tasks(config, 0)


def test_what_has_to_be_given_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment\.training_file: give a file of tasks"):
        ENVIRONMENT.training_tasks(AgentConfig(command=("x",)), 0)
    with pytest.raises(ConfigError, match=r"environment\.command: give the agent's command"):
        ENVIRONMENT.training_tasks(AgentConfig(training_file=os.devnull), 0)
