"""The page searches a copy of the run's memory table, or one of its own making; the store stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from command_line.memory.run import RunMemory, open_memory
from command_line.ui.cached import MemorySearches
from storage.memory.chain import Delta
from storage.memory.index import MemoryIndex
from tests.command_line.invoke import FinishedRun


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    """A copy of a trained run's store, whose memory table the training brought up to the last version."""
    return Path(shutil.copytree(finished.store, tmp_path / "store"))


def count_created(monkeypatch: pytest.MonkeyPatch) -> list[MemoryIndex]:
    """A list that grows whenever a table is built from the committed memory versions."""
    created: list[MemoryIndex] = []
    create = MemoryIndex._create

    def counting(self: MemoryIndex, deltas: Sequence[Delta]) -> None:
        created.append(self)
        create(self, deltas)

    monkeypatch.setattr(MemoryIndex, "_create", counting)
    return created


def found(searches: MemorySearches, memory: RunMemory) -> list[tuple[str, float]]:
    """Ids and scores of a search by a word of the feedback that the entries came from."""
    hits = searches.search(memory, "lost", 5, None, "text")
    assert len(hits) > 0
    return [(hit.entry.entry_id, hit.score) for hit in hits]


def test_the_run_s_table_is_copied_and_brought_up_to_the_newest_version(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = count_created(monkeypatch)
    found(MemorySearches(), open_memory(str(store), "small"))
    assert created == []


def test_without_a_table_the_same_is_found_and_none_is_written(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = count_created(monkeypatch)
    memory = open_memory(str(store), "small")
    expected = found(MemorySearches(), memory)
    shutil.rmtree(store / "memory")
    assert found(MemorySearches(), memory) == expected
    assert not (store / "memory").exists()
    assert len(created) == 1


def test_a_table_that_is_removed_between_two_searches_is_not_missed(store: Path) -> None:
    memory, searches = open_memory(str(store), "small"), MemorySearches()
    expected = found(searches, memory)
    shutil.rmtree(store / "memory")
    assert found(searches, memory) == expected
