"""The map of a memory: where its entries are, and which of them a rectangle contains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from command_line.ui import memory as memory_map
from command_line.ui.cached import Sealed
from command_line.ui.memory import project
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.memory.chain import held_entries, held_rows, read_chain
from storage.memory.entries import MEMORY, EntryFiles
from storage.memory.operations import Operation, write_operations
from storage.tables.parquet import write_rows
from tests.command_line.ui.clients import client, main_text
from tests.command_line.ui.stores import REMEMBERED, remembered, write_page_store
from tests.histories import entry_row
from tests.training_stores import TrainingStore


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingStore:
    return write_page_store(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def page(made: TrainingStore) -> TestClient:
    return client(made.store.uri)


def test_the_axes_are_where_vectors_differ_most_and_point_to_their_largest_component() -> None:
    # Around the mean (1, 1, 5) they differ by 3 along the second axis, and by 1 along the first.
    vectors = np.array([[1, 4, 5], [1, -2, 5], [2, 1, 5], [0, 1, 5]], np.float32)
    found = project(vectors)
    assert found.points.tolist() == [[3, 0], [-3, 0], [0, 1], [0, -1]]
    assert found.shares == pytest.approx((0.9, 0.1))
    assert project(-vectors).points.tolist() == [[-3, 0], [3, 0], [0, -1], [0, 1]]


@pytest.mark.parametrize("rows", [[], [[1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]]])
def test_vectors_that_do_not_differ_lie_in_one_place(rows: list[list[float]]) -> None:
    found = project(np.array(rows, np.float32).reshape(len(rows), 2))
    assert found.points.tolist() == [[0, 0]] * len(rows)
    assert found.shares == (0, 0)


def test_vectors_of_one_number_lie_on_a_line() -> None:
    assert project(np.array([[1], [3]], np.float32)).points.tolist() == [[-1, 0], [1, 0]]


def test_the_map_has_a_point_for_each_entry_with_what_it_is_coloured_by(page: TestClient) -> None:
    found = page.get("/runs/one/memory/map").json()
    points = list(zip(found["across"], found["up"], strict=True))
    assert points == [(2, 0), (-2, 0), (0, 1), (0, -1)]
    assert found["values"] == [0.5, -0.25, 0, 0.125]
    assert found["shares"] == pytest.approx([0.8, 0.2])
    assert page.get("/runs/one/memory/map?colour=iteration").json()["values"] == [1, 1, 1, 1]
    assert page.get("/runs/one/memory/map?task_type=lake-8x8").json()["up"] == [1]
    assert page.get("/runs/one/memory/map?colour=taste").status_code == 400


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("across=1..3", ["go right"]),
        ("across=3..1", ["go right"]),
        ("across=2..2", ["go right"]),
        ("across=-0.5..2&up=-1..0", ["go right", "go down"]),
        ("up=-1..1&task_type=lake-8x8", ["<b>go up</b>"]),
        ("across=5..6", []),
        ("sort=support&rising=false", ["go down", "go right", "go left", "<b>go up</b>"]),
        ("sort=credit&rising=true", ["go left", "<b>go up</b>", "go down", "go right"]),
    ],
)
def test_a_rectangle_of_the_address_filters_the_list(page: TestClient, query: str, texts: list[str]) -> None:
    shown = main_text(page.get(f"/runs/one/memory?{query}").text)
    places = [shown.find(text) for text in texts]
    assert -1 not in places
    assert places == sorted(places)
    assert sum(str(given["text"]) in shown for given in REMEMBERED.values()) == len(texts)
    if "sort" not in query:
        assert f"{len(texts)} entr{'y' if len(texts) == 1 else 'ies'} in the rectangle, of 4" in shown


@pytest.mark.parametrize("asked", ["1", "left", "1..", "nan..1", "..", "1..inf"])
def test_what_is_no_range_is_refused_with_a_word(page: TestClient, asked: str) -> None:
    answer = page.get("/runs/one/memory", params={"up": asked})
    assert (answer.status_code, "give a range on the map" in answer.text) == (400, True)


def test_of_a_large_memory_every_so_many_entries_are_on_the_map(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_map, "MOST_POINTS", 2)
    monkeypatch.setattr("command_line.ui.memory_pages.MOST_POINTS", 2)
    # Of four entries the first and the third: (2, 0) and (0, 1), a half of (-2, 1) away from their mean.
    half = round(5**0.5 / 2, 4)
    assert page.get("/runs/one/memory/map").json()["across"] == [half, -half]
    shown = main_text(page.get("/runs/one/memory?across=0..9").text)
    assert "of 4 entries 2 are on the map" in shown
    assert "1 entry in the rectangle, of 4" in shown


def test_a_memory_without_entries_has_no_map(page: TestClient) -> None:
    shown = page.get("/runs/two/memory").text
    assert "This memory is empty" in shown
    assert "memory-map" not in shown
    assert page.get("/runs/two/memory/map").json()["across"] == []


def test_rows_of_files_are_found_by_number_and_entries_that_left_are_none(tmp_path: Path) -> None:
    made = TrainingStore(ArtifactStore(str(tmp_path)), write_page_store(tmp_path).runs)
    made.commit("index_memory-1", "memory", 1, {}, remembered)

    def forget(folder: Path) -> None:
        write_rows(folder / "entries.parquet", [entry_row("m-new", "x") | {"vector": [3.0, 4.0]}], MEMORY)
        write_operations(
            folder / "operations.parquet", [Operation("remove", "m-west", 2, "version", reason="forgotten")]
        )

    version = made.commit("index_memory-2", "memory", 2, {"memory": "index_memory-1"}, forget)
    deltas = read_chain(made.store, version)[1]
    numbers = held_rows(deltas)
    assert numbers.tolist() == [0, 2, 3, 4]
    assert held_entries(deltas).collect()["entry_id"].to_list() == ["m-east", "m-north", "m-south", "m-new"]
    files = EntryFiles([path for delta in deltas for path in delta.entry_files])
    assert files.vectors(numbers[[1, 3]]).tolist() == [[0, 1], [3, 4]]
    assert files.read(numbers[-1:], ["text", "entry_id"]).to_pylist() == [
        {"text": "go right", "entry_id": "m-new"}
    ]
    assert files.read(numbers[:0], ["entry_id"]).num_rows == 0


def test_vectors_of_several_lengths_are_refused(tmp_path: Path) -> None:
    rows = [entry_row("m-1", "x") | {"vector": [1.0]}, entry_row("m-2", "x") | {"vector": [1.0, 2.0]}]
    write_rows(tmp_path / "entries.parquet", rows, MEMORY)
    with pytest.raises(StoreError, match="several lengths"):
        EntryFiles([tmp_path / "entries.parquet"]).vectors(np.arange(2))


def test_what_follows_from_an_artifact_is_made_once_and_only_the_last_ones_are_kept() -> None:
    sealed, made = Sealed(most=2), list[str]()

    def ask(artifact: str) -> None:
        sealed.get(artifact, "map", lambda: made.append(artifact))

    for artifact in ("a", "a", "b", "a", "c", "a", "b"):
        ask(artifact)
    assert made == ["a", "b", "c", "b"]


def test_a_memory_whose_entries_are_redacted_can_be_listed_at_once(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    page = client(made.store.uri)
    assert "right" in main_text(page.get("/runs/one/memory").text)
    for manifest in list(made.store.list("index_memory")):
        changes = {entry.path: without_texts for entry in manifest.tables(MEMORY.name)}
        made.store.redact(manifest.artifact_id, changes, "test")
    for path in ("/runs/one/memory", "/runs/one/memory/map", "/runs/one/memory?format=csv"):
        assert page.get(path).status_code == 200, path
    assert "[redacted]" in main_text(page.get("/runs/one/memory").text)


def without_texts(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("text")
    return rows.set_column(place, rows.field(place), pa.array(["[redacted]"] * len(rows), pa.string()))
