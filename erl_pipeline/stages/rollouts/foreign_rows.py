"""Reading rollouts that other trainers write: log tables of TRL, dumps of verl, plain conversations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from erl_pipeline.environments.messages import Message
from storage.errors import InputError
from storage.texts import StorableTexts

Format = Literal["trl", "verl", "messages"]
"""`trl`: the tables of `log_completions` (Parquet): prompt, completion, step, a column for each reward
function. `verl`: the JSON lines of `rollout_data_dir`: input, output, score, step. `messages`: columns
`messages`, where the completion begins with the assistant's first message, and `reward`; `step` and `task_id`
are optional."""

Text = str | Sequence[Message]
"""A text that is tokenized as it is, or messages that the chat template renders."""

_COLUMNS: Mapping[Format, tuple[str, ...]] = {
    "trl": ("prompt", "completion"),
    "verl": ("input", "output"),
    "messages": ("messages",),
}
_REWARDS: Mapping[Format, tuple[str, ...]] = {"trl": (), "verl": ("score",), "messages": ("reward",)}
_NO_REWARDS = ("step", "advantage")
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class ForeignRow:
    """One answer of a policy. `step` orders the rows; `task` is the same for rows whose rewards may be
    compared."""

    number: int
    prompt: Text
    completion: Text
    reward: float
    step: int
    task: str


def read_foreign(
    path: Path, format_: Format, rewards: Sequence[str], texts: StorableTexts
) -> list[ForeignRow]:
    """The rows of a `.parquet` or `.jsonl` file, in the order of their steps.

    Args:
        rewards: columns whose sum is the reward; empty for those of the format.
        texts: counts the texts in which something is replaced.

    Raises InputError for a file that cannot be read or has no rows, and for the first row that is wrong.
    """
    columns = list(rewards)
    found = []
    for number, row in enumerate(_rows(path, texts), start=1):
        where = f"{path}, row {number}"
        for name in _COLUMNS[format_]:
            if row.get(name) is None:
                held = ", ".join(row)
                raise InputError(
                    f"{where}: column {name} is missing, which --format {format_} needs; there are {held}"
                )
        columns = columns or _reward_columns(row, format_, where)
        prompt, completion = _parts(row, format_, where)
        found.append(
            ForeignRow(
                number=number,
                prompt=prompt,
                completion=completion,
                reward=sum(_number(row, name, where) for name in columns),
                step=int(_number(row, "step", where)) if row.get("step") is not None else 0,
                task=str(row["task_id"]) if row.get("task_id") else json.dumps(prompt, sort_keys=True),
            )
        )
    if not found:
        raise InputError(f"{path}: it holds no rows")
    return sorted(found, key=lambda row: row.step)


def read_conversations(path: Path, texts: StorableTexts) -> list[list[Message]]:
    """The `messages` of each row of a `.jsonl` or `.parquet` file; `texts` counts those in which something is
    replaced.

    Raises InputError for a file that cannot be read or has no rows, and for the first row that has no turn
    of the assistant after another message.
    """
    found = []
    for number, row in enumerate(_rows(path, texts), start=1):
        prompt, completion = _conversation(row.get("messages"), f"{path}, row {number}")
        found.append([*prompt, *completion])
    if not found:
        raise InputError(f"{path}: it holds no rows")
    return found


def _rows(path: Path, texts: StorableTexts) -> Iterator[dict[str, Any]]:
    """The rows of a file, with storable texts."""
    for number, row in enumerate(_raw_rows(path), start=1):
        try:
            yield texts.value(row)
        except ValueError as error:
            raise InputError(f"{path}, row {number}: {error}") from error


def _raw_rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".parquet":
        try:
            yield from pl.read_parquet(path).iter_rows(named=True)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet: {error}") from error
        return
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: allowed are files that end in .parquet or .jsonl")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, row {number}: is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, row {number}: must be an object, column -> value")
            yield row


def _reward_columns(row: Mapping[str, Any], format_: Format, where: str) -> list[str]:
    """The reward columns of the format; with TRL the only column of numbers, which has the name of a reward
    function."""
    if _REWARDS[format_]:
        return list(_REWARDS[format_])
    numbers = [
        name
        for name, value in row.items()
        if name not in _NO_REWARDS and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) != 1:
        raise InputError(
            f"{where}: which columns are the reward? There are {', '.join(numbers) or 'no numbers'}; "
            "name them with --reward, once for each that is added"
        )
    return numbers


def _parts(row: Mapping[str, Any], format_: Format, where: str) -> tuple[Text, Text]:
    if format_ != "messages":
        first, second = _COLUMNS[format_]
        return _text(row[first], where, first), _text(row[second], where, second)
    return _conversation(row["messages"], where)


def _conversation(value: Any, where: str) -> tuple[list[Message], list[Message]]:
    """The messages before the assistant's first turn, and all from that turn on."""
    messages = _messages(value, where, "messages")
    begin = next((place for place, each in enumerate(messages) if each["role"] == "assistant"), 0)
    if begin == 0:
        raise InputError(f"{where}: messages: a user's message and an assistant's after it are needed")
    return messages[:begin], messages[begin:]


def _text(value: Any, where: str, column: str) -> Text:
    return value if isinstance(value, str) else _messages(value, where, column)


def _messages(value: Any, where: str, column: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: {column}: allowed are messages with `role` and `content`")
    messages: list[Message] = []
    for each in value:
        role, content = (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
        if role not in _ROLES or not isinstance(content, str):
            raise InputError(f"{where}: {column}: allowed are messages with `role` and `content` as text")
        messages.append({"role": role, "content": content})
    return messages


def _number(row: Mapping[str, Any], column: str, where: str) -> float:
    value = row.get(column)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{where}: {column}: {value!r}; allowed is a finite number")
    return float(value)
