from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from storage.tables.training import SFT_SCHEMA, SftRow, read_sft_rows, write_sft_rows

ROW = SftRow(
    sft_row_id="s-1",
    prompt=({"role": "system", "content": "play"}, {"role": "user", "content": "go"}),
    completion=(
        {"role": "assistant", "content": "left"},
        {"role": "user", "content": "moved"},
        {"role": "assistant", "content": "right"},
    ),
    input_token_ids=(1, 2, 3, 4, 5),
    loss_mask=(0, 0, 1, 0, 1),
    trajectory_id="second",
    role="distilled",
    reflection_trajectory_id=None,
    first_trajectory_id="first",
    memory_entry_ids=("m-1", "m-2"),
    task_id="task",
    task_type="lake-4x4",
    episode_id="episode",
    iteration=3,
    policy_version="policy",
    weight=1.0,
)


def test_rows_survive_their_file_and_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, sft_row_id="s-2", reflection_trajectory_id="reflection", memory_entry_ids=())]
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    assert write_sft_rows(one, rows) == 2
    assert read_sft_rows([one]) == rows
    write_sft_rows(two, iter(rows))
    assert one.read_bytes() == two.read_bytes()


def test_the_schema_has_the_fields_of_the_dataclass() -> None:
    assert SFT_SCHEMA.names == [field.name for field in fields(SftRow)]


def test_datasets_loads_it_as_prompt_and_completion_messages(tmp_path: Path) -> None:
    write_sft_rows(tmp_path / "sft.parquet", [ROW])
    loaded = datasets.Dataset.from_parquet(str(tmp_path / "sft.parquet"), cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["prompt"] == list(ROW.prompt)
    assert loaded[0]["completion"] == list(ROW.completion)
    assert loaded[0]["loss_mask"] == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"loss_mask": (0, 1)}, "5 tokens and 2 loss_mask values"),
        ({"loss_mask": (0, 0, 1, 0, 3)}, "neither 0 nor 1"),
        ({"completion": ()}, "does not begin with the assistant"),
        ({"completion": ({"role": "user", "content": "go"},)}, "does not begin with the assistant"),
        ({"prompt": ({"role": "assistant", "content": "left"},)}, "assistant message in its prompt"),
    ],
)
def test_a_contradictory_row_is_refused_by_name(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"SFT row s-1 has .*{fault}"):
        write_sft_rows(tmp_path / "sft.parquet", [replace(ROW, **changes)])
