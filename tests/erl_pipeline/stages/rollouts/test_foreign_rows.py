"""Files of other trainers, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.stages.rollouts.foreign_rows import Format, read_foreign
from storage.errors import InputError
from storage.texts import StorableTexts

ASKED = {"role": "user", "content": "a b"}
SAID = {"role": "assistant", "content": "a"}


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_dump_of_verl_is_in_the_order_of_its_steps(tmp_path: Path) -> None:
    late = {"input": "a b", "output": "a", "score": 1.0, "step": 9, "gts": "x"}
    path = lines(tmp_path, late, {**late, "step": 5, "score": 0})
    first, second = read_foreign(path, "verl", (), StorableTexts())
    assert (first.number, first.step, first.reward) == (2, 5, 0.0)
    assert (second.prompt, second.completion, second.reward) == ("a b", "a", 1.0)
    assert first.task == second.task


def test_a_table_of_trl_has_a_column_for_each_reward_function(tmp_path: Path) -> None:
    path = tmp_path / "completions_00001.parquet"
    row = {"step": 1, "prompt": [ASKED], "completion": [SAID], "exact": 1.0, "advantage": 0.5}
    pl.DataFrame([row]).write_parquet(path)
    (found,) = read_foreign(path, "trl", (), StorableTexts())
    assert (found.prompt, found.completion, found.reward) == ([ASKED], [SAID], 1.0)
    pl.DataFrame([{**row, "short": 0.25}]).write_parquet(path)
    with pytest.raises(InputError, match=r"row 1: which columns are the reward\? There are exact, short"):
        read_foreign(path, "trl", (), StorableTexts())
    assert read_foreign(path, "trl", ("exact", "short"), StorableTexts())[0].reward == 1.25


def test_a_conversation_is_cut_where_the_assistant_first_speaks(tmp_path: Path) -> None:
    path = lines(tmp_path, {"messages": [ASKED, SAID, ASKED, SAID], "reward": 0.5, "task_id": "t"})
    (found,) = read_foreign(path, "messages", (), StorableTexts())
    assert (found.prompt, found.completion) == ([ASKED], [SAID, ASKED, SAID])
    assert (found.task, found.step) == ("t", 0)


@pytest.mark.parametrize(
    ("format_", "row", "said"),
    [
        (
            "verl",
            {"input": "a", "score": 1},
            "row 1: column output is missing, which --format verl needs; there are input, score",
        ),
        ("verl", {"input": "a", "output": "b", "score": None}, "score: None; allowed is a finite number"),
        ("messages", {"messages": [SAID], "reward": 1}, "a user's message and an assistant's after it"),
        ("messages", {"messages": [{"role": "u"}], "reward": 1}, "messages with `role` and `content`"),
        ("messages", [1], "must be an object"),
    ],
)
def test_a_wrong_row_is_named(format_: Format, row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_foreign(lines(tmp_path, row), format_, (), StorableTexts())
    assert said in str(error.value)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it holds no rows"):
        read_foreign(lines(tmp_path), "verl", (), StorableTexts())
