"""Files of conversations, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.stages.training.conversations import (
    Conversation,
    as_conversation,
    read_conversations,
    write_conversations,
)
from storage.errors import InputError
from storage.texts import StorableTexts

ASKED = {"role": "user", "content": "a b"}
SAID = {"role": "assistant", "content": "a"}


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_conversations_are_read_from_both_kinds_of_files(tmp_path: Path) -> None:
    path = lines(tmp_path, {"messages": [ASKED, SAID, ASKED, SAID], "more": 1}, {"messages": [ASKED, SAID]})
    read = read_conversations(path, StorableTexts())
    assert [each.messages for each in read] == [[ASKED, SAID, ASKED, SAID], [ASKED, SAID]]
    pl.DataFrame({"messages": [[ASKED, SAID]]}).write_parquet(tmp_path / "rows.parquet")
    assert read_conversations(tmp_path / "rows.parquet", StorableTexts()) == [as_conversation([ASKED, SAID])]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [SAID]}, "a user's message and an assistant's after it"),
        ({"messages": [ASKED]}, "a user's message and an assistant's after it"),
        ({"messages": [SAID, ASKED, SAID]}, "a user's message and an assistant's after it"),
        ({"messages": [{"role": "u"}]}, "messages with `role` and `content`"),
        ({"prompt": "a"}, "messages with `role` and `content`"),
        ([1], "must be an object"),
        ({"prompt": [SAID], "completion": [SAID]}, "a prompt begins with another's message"),
        ({"prompt": [ASKED], "completion": [ASKED]}, "a completion with the assistant's"),
        ({"prompt": [ASKED], "completion": [SAID], "tools": "{}"}, "tools: allowed is a list"),
        ({"prompt": [ASKED], "completion": [SAID], "tools": "["}, "is not JSON"),
    ],
)
def test_a_wrong_row_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 1") as error:
        read_conversations(lines(tmp_path, row), StorableTexts())
    assert said in str(error.value)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it holds no rows"):
        read_conversations(lines(tmp_path), StorableTexts())


def test_a_prompt_and_a_completion_stay_apart_in_a_file(tmp_path: Path) -> None:
    """What was answered before is not taught again, and tools are kept."""
    rows = [
        Conversation([ASKED, SAID, ASKED], [SAID]),
        Conversation([ASKED], [SAID], '[{"type": "function"}]'),
        as_conversation([ASKED, SAID]),
    ]
    write_conversations(tmp_path / "rows.jsonl", rows)
    assert read_conversations(tmp_path / "rows.jsonl", StorableTexts()) == rows
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[2]) == {"messages": [ASKED, SAID]}
