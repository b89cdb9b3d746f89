"""The table of a memory is compared with its artifacts once; afterwards only the digests of its files are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import lancedb
import pytest

from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.memory import index
from storage.memory.chain import Delta
from storage.memory.checksums import IndexChecksums
from storage.memory.entries import Embedder, MemoryEntry
from storage.memory.index import MemoryIndex, copy_index
from storage.memory.search import MemoryFilter
from storage.memory.view import ReflectionMemory

Entry = Callable[..., MemoryEntry]
Commit = Callable[..., str]


@pytest.fixture
def folder(store: ArtifactStore) -> Path:
    return Path(store.uri) / "memory" / "run"


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows whenever all rows are compared."""
    compared: list[str] = []
    holds = MemoryIndex._holds

    def counting(self: MemoryIndex, deltas: Sequence[Delta]) -> bool:
        compared.append(deltas[-1].version)
        return holds(self, deltas)

    monkeypatch.setattr(MemoryIndex, "_holds", counting)
    return compared


def test_rows_are_compared_once_and_a_new_version_adds_to_what_is_known(
    store: ArtifactStore,
    embedder: Embedder,
    commit_memory: Commit,
    entry: Entry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = count_comparisons(monkeypatch)
    first = commit_memory([entry(1)])
    memory = ReflectionMemory(store.uri, "run", store, embedder)
    memory.at(first)
    assert set(compared) == {first}
    compared.clear()
    second = commit_memory([entry(2)], parent=first)
    assert memory.at(second).count() == 2
    again = ReflectionMemory(store.uri, "run", store, embedder)
    assert [again.at(version).count() for version in (first, second)] == [1, 2]
    assert compared == []


def test_a_table_that_another_process_has_removed_is_made_again(
    store: ArtifactStore, folder: Path, embedder: Embedder, commit_memory: Commit, entry: Entry
) -> None:
    version = commit_memory([entry(1)])
    memory = ReflectionMemory(store.uri, "run", store, embedder)
    assert memory.at(version).count() == 1
    MemoryIndex(folder, store).discard()
    assert memory.at(version).count() == 1


def test_a_flipped_bit_in_the_table_is_found_and_mended(
    store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry, folder: Path
) -> None:
    version = commit_memory([entry(1), entry(2)])
    digest = ReflectionMemory(store.uri, "run", store, embedder).at(version).digest()
    [data] = (folder / "reflections.lance" / "data").iterdir()
    content = bytearray(data.read_bytes())
    content[len(content) // 3] ^= 4
    data.write_bytes(content)
    checksums = IndexChecksums(folder)
    checksums.load()
    assert checksums.versions == {}
    assert ReflectionMemory(store.uri, "run", store, embedder).at(version).digest() == digest


@pytest.mark.parametrize("damage", [b"", b"{}\n", b'{"versions": {'])
def test_damaged_checksums_are_not_trusted(
    damage: bytes, store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry, folder: Path
) -> None:
    version = commit_memory([entry(1)])
    ReflectionMemory(store.uri, "run", store, embedder).at(version)
    path = folder.with_name("run.checksums.jsonl")
    path.write_bytes(path.read_bytes()[:40] + damage)
    assert ReflectionMemory(store.uri, "run", store, embedder).at(version).count() == 1
    checksums = IndexChecksums(folder)
    checksums.load()
    assert list(checksums.versions) == [version]


def test_many_versions_are_put_together_only_when_it_is_worth_it(
    store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry, folder: Path
) -> None:
    """100 entries in one file, then 30 files of one entry each. With the 25th they are a quarter of 100, and
    become one file; the five after that stay separate."""
    versions = [commit_memory([entry(number) for number in range(100)])]
    memory = ReflectionMemory(store.uri, "run", store, embedder)
    for number in range(100, 130):
        versions.append(commit_memory([entry(number)], parent=versions[-1]))
        memory.at(versions[-1])
    data = folder / "reflections.lance" / "data"
    assert len(list(data.iterdir())) == 1 + 30 + 1
    assert [memory.at(versions[place]).count() for place in (0, 15, 30)] == [100, 115, 130]


def test_a_table_of_an_earlier_layout_is_made_anew(
    store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry, folder: Path
) -> None:
    version = commit_memory([entry(1), entry(2)])
    ReflectionMemory(store.uri, "run", store, embedder).at(version)
    table = lancedb.connect(folder).open_table("reflections")
    table.drop_columns(["text_key"])
    table.tags.update(version, table.version)
    checksums = folder.with_name("run.checksums.jsonl")
    checksums.write_text(checksums.read_text().replace('"layout":5,', ""))
    view = ReflectionMemory(store.uri, "run", store, embedder).at(version)
    assert [len(hits) for hits in view.search(["a lake"], 5, MemoryFilter(minimum_credit=0.0))] == [2]


@pytest.fixture
def first(store: ArtifactStore, commit_memory: Commit, entry: Entry, folder: Path) -> str:
    """A version with one entry, which the table has."""
    version = commit_memory([entry(1)])
    assert MemoryIndex(folder, store).open(version) is not None
    return version


def test_a_copy_of_a_table_grows_by_itself_and_is_not_compared_again(
    first: str,
    store: ArtifactStore,
    commit_memory: Commit,
    entry: Entry,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_index(folder, tmp_path / "copy")
    compared = count_comparisons(monkeypatch)
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(folder.parent)}
    second = commit_memory([entry(2)], parent=first)
    copy = MemoryIndex(tmp_path / "copy", store)
    tables = copy.open(first), copy.open(second)
    assert [table.count_rows() for table in tables if table is not None] == [1, 2]
    assert compared == []
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in _files(folder.parent)} == files


def test_a_copy_of_no_table_is_none(store: ArtifactStore, folder: Path, tmp_path: Path) -> None:
    copy_index(folder, tmp_path / "copy")
    assert list(tmp_path.glob("copy*")) == []


def test_a_copy_that_failed_is_made_by_the_next_one(
    first: str, store: ArtifactStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(source: str, path: str) -> None:
        Path(path).touch()
        raise FileNotFoundError(source)

    with monkeypatch.context() as patch:
        patch.setattr(index, "_link", gone)
        with pytest.raises(StoreError):
            copy_index(folder, tmp_path / "copy")
    copy_index(folder, tmp_path / "copy")
    table = MemoryIndex(tmp_path / "copy", store).open(first)
    assert table is not None
    assert table.count_rows() == 1


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
