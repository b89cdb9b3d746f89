"""Pages of rows that use what is known about files are the same as pages made from all rows together."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from command_line.episodes.rows import episode_training, memory_texts
from command_line.ui.cached import KnownFiles
from command_line.ui.episode import seen_texts, training_of
from command_line.ui.filters import Filter
from command_line.ui.rows import RowList, find_rows, joined_rows, read_page
from command_line.ui.stored import Stored
from storage.memory.chain import ENTRIES_FILE
from storage.memory.entries import MEMORY
from storage.tables.parquet import write_rows
from tests.command_line.ui.stores import BOARD, small_config
from tests.histories import entry_row

ITERATIONS, ROWS = 4, 64


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
        history: ModuleType = importlib.import_module("workloads.long_history")
    readable = history.Readable(small_config(folder, history.RUN), "arbitrary", BOARD)
    history.build(str(folder / "store"), ITERATIONS, ROWS, readable)
    return Stored(str(folder / "store"))


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ((), 256),
        ((Filter("role", "second_attempt"),), 64),
        ((Filter("role", "reflection"), Filter("said", "~ack")), None),
        ((Filter("reward", ">0.5"), Filter("success", "true")), None),
        ((Filter("outcome", "trained"),), None),
        ((Filter("role", "nobody"),), 0),
    ],
)
def test_every_page_of_filtered_rows_is_that_of_all_rows(
    stored: Stored, filters: tuple[Filter, ...], count: int | None
) -> None:
    run = stored.run("history")
    for held_out in (False, True):
        for span in (None, (2, 3)):
            for page in (1, 2, 99):
                listed = RowList(filters, "" if span is None else "2..3", held_out=held_out)
                found = find_rows(stored, run, listed, page)
                joined = joined_rows(stored, run, span, held_out=held_out)
                assert found == read_page(joined, listed, page)
    whole = find_rows(stored, run, RowList(filters), 1)
    assert count is None or whole.count == count
    assert count == 0 or 0 < whole.count <= 256


def test_an_episode_has_the_entries_and_the_training_that_all_files_give(stored: Stored) -> None:
    run = stored.run("history")
    seen = (pl.col("role") == "reflection") & (pl.col("memory_entry_ids").list.len() > 0)
    rows = joined_rows(stored, run, (3, 3)).filter(seen).head(1).collect().to_dicts()
    texts = seen_texts(stored, run, rows)
    assert list(texts) == rows[0]["memory_entry_ids"]
    assert texts == memory_texts(stored.artifacts, rows)
    manifests = stored.manifests(run)
    training = episode_training(stored.artifacts, manifests, rows[0]["episode_id"])
    assert rows[0]["trajectory_id"] in training
    assert training == training_of(stored, run, 3, rows[0]["episode_id"])


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / ENTRIES_FILE
    known = KnownFiles(MEMORY)
    write_rows(file, [entry_row("m-1", "first"), entry_row("m-2", "first")], MEMORY)
    before = {file: object()}
    assert known.holding(before, "entry_id", ["m-2", "m-9"]) == [file]
    assert known.counts(before, []) == [2]
    write_rows(file, [entry_row("m-3", "first")], MEMORY)
    # The store gives another object for a file that has changed.
    after = {file: object()}
    assert known.holding(after, "entry_id", ["m-2"]) == []
    assert known.holding(after, "entry_id", ["m-3"]) == [file]
    assert known.counts(after, []) == [1]
