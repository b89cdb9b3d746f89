"""What cannot be shown gets a page that says what is wrong; hostile texts are shown, not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from storage.artifacts.sealing import record_bytes
from storage.filesystem import open_root
from storage.runs.locks import lock_collection
from tests.command_line.ui.clients import client, main_text
from tests.command_line.ui.stores import HOSTILE, write_hostile_store, write_page_store


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client(write_hostile_store(tmp_path_factory.mktemp("hostile")).store.uri)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_shown_and_are_never_markup(hostile: TestClient, name: str) -> None:
    for path in (
        f"/runs/one/iterations/1/episodes/{name}",
        f"/runs/one/rows?episode_id={name}",
        f"/runs/one/iterations/1/trajectories/first-{name}/text",
        "/runs/one/iterations/1",
    ):
        answer = hostile.get(path)
        assert answer.status_code == 200, path
        text = answer.text
        assert "<script>document" not in text
        assert "<img src=x" not in text
        assert "<svg onload" not in text
        assert "<b>" + name not in text
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\u202e" not in text


def test_what_cannot_be_seen_is_named(hostile: TestClient) -> None:
    assert "␛[2J␛[31mred␇" in hostile.get("/runs/one/iterations/1/episodes/ansi").text
    assert "abc⟨U+202E⟩def⟨U+200B⟩" in hostile.get("/runs/one/iterations/1/episodes/direction").text
    assert "&lt;script&gt;document" in hostile.get("/runs/one/iterations/1/episodes/script").text


def test_a_line_of_a_megabyte_is_cut_and_can_be_had_in_full_length(hostile: TestClient) -> None:
    page = hostile.get("/runs/one/iterations/1/episodes/long")
    assert len(page.content) < 60_000
    assert "… 996,000 more characters" in page.text
    assert len(hostile.get("/runs/one/rows").content) < 60_000


def test_hostile_addresses_are_told_of_as_text(hostile: TestClient) -> None:
    for path in (
        "/runs/%3Cscript%3E",
        "/runs/one/rows?role=%3Cscript%3E",
        "/lineage/%3Cscript%3E",
        "/%3Cscript%3E",
    ):
        assert "<script>" not in hostile.get(path).text.replace('<script src="/static', "")


def test_unknown_things_are_named(hostile: TestClient) -> None:
    for path, said in (
        ("/runs/nobody", "no run nobody"),
        ("/runs/one/iterations/7", "has no iteration 7"),
        ("/runs/one/iterations/1/episodes/nothing", "no episode has an id 'nothing'"),
        ("/artifacts/ffff", "no artifact ffff"),
        ("/nowhere", "Nothing is at /nowhere"),
        ("/static/../access.py", "Nothing is at"),
    ):
        assert said in told(hostile, path, 404), path


def told(page: TestClient, path: str, status: int) -> str:
    """The text of a page that has this status."""
    answer = page.get(path)
    assert answer.status_code == status, path
    return main_text(answer.text)


def test_a_mistyped_address_is_not_understood_and_names_no_option(hostile: TestClient) -> None:
    for path, said in (
        ("/runs/one/rows?iteration=abc", "iteration=abc: give one, such as 7"),
        ("/runs/one/rows?iteration=3..1", "iteration=3..1: the first is after the last"),
        ("/runs/one/rows?reward=abc", "reward=abc: give a number"),
        ("/runs/one/rows?sort=bad", "Rows cannot be sorted by bad"),
        ("/runs/one/iterations/1?sort=bad", "Groups cannot be sorted by bad"),
        ("/compare", "Choose 1 to 12 runs"),
    ):
        text = told(hostile, path, 400)
        assert (said in text, "--iteration" in text) == (True, False), path
        assert "The address cannot be understood" in text


def test_what_is_wrong_on_a_page_of_a_run_leads_back_to_the_run(hostile: TestClient) -> None:
    link = '<a href="/runs/one">one</a>'
    for path in ("/runs/one/rows?reward=abc", "/runs/one/plan?first=x", "/runs/one/iterations/7"):
        assert link in hostile.get(path).text, path
    for path in ("/runs/nobody", "/nowhere", "/compare"):
        answer = hostile.get(path)
        assert answer.status_code >= 400
        assert 'href="/runs/' not in answer.text, path


def test_a_damaged_artifact_is_named_also_after_it_was_read(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    page = client(made.store.uri)
    assert page.get("/runs/one/iterations/1/episodes/episode").status_code == 200
    file = next((tmp_path / "store/artifacts/rollout_shard" / made.ids["rollout_shard"]).glob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    answer = page.get("/runs/one/iterations/1/episodes/episode")
    assert answer.status_code == 500
    assert "An artifact is damaged" in main_text(answer.text)
    assert made.ids["rollout_shard"] in answer.text


def test_a_deleted_file_is_named_and_a_deleted_artifact_leaves_the_rest(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    page = client(made.store.uri)
    folder = tmp_path / "store/artifacts/rollout_shard" / made.ids["rollout_shard"]
    next(folder.glob("*.parquet")).unlink()
    answer = page.get("/runs/one/iterations/1")
    assert (answer.status_code, "is missing" in main_text(answer.text)) == (500, True)
    artifacts = made.store
    manifest = artifacts.find(made.ids["rollout_shard"])
    assert manifest is not None
    with lock_collection(open_root(artifacts.uri), lambda: ["one", "two"]):
        artifacts.remove(manifest)
    assert "1 artifact of this run is damaged or no longer in the store" in main_text(
        page.get("/runs/one").text
    )
    assert "1 row" in main_text(page.get("/runs/one/rows").text)


def test_a_run_of_an_earlier_version_is_in_the_table_and_its_page_says_so(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    runs = tmp_path / "store" / "runs"
    for name, content in (
        ("older", b'{"schema_version": 1, "name": "older", "config": {}}'),
        ("unreadable", record_bytes({"name": "unreadable", "config": {"name": "unreadable", "colour": 1}})),
    ):
        (runs / name).mkdir()
        (runs / name / "run.json").write_bytes(content)
    page = client(made.store.uri)
    table = page.get("/")
    assert table.status_code == 200
    assert "written by an earlier version" in main_text(table.text)
    older, unreadable = page.get("/runs/older"), page.get("/runs/unreadable")
    assert (older.status_code, unreadable.status_code) == (500, 409)
    assert "train into a new store" in main_text(older.text)
    assert "begun with settings of another version" in main_text(unreadable.text)
    assert page.get("/runs/unreadable/settings").status_code == 200


def test_tokens_of_a_forgotten_user_are_named(tmp_path: Path) -> None:
    """Although the record of the update still has numbers for each token."""
    made = write_page_store(tmp_path)

    def silenced(rows: pa.Table) -> pa.Table:
        says: dict[str, Any] = {
            "response_token_ids": [],
            "response_mask": [],
            "behaviour_logprobs": [],
            "finish_reason": "redacted_scored",
        }
        for place, column in enumerate(rows.schema):
            if column.name in says:
                value = pa.array([says[column.name]] * len(rows), column.type)
                rows = rows.set_column(place, column, value)
        return rows

    made.store.redact(made.ids["rollout_shard"], {"trajectories.parquet": silenced}, "test")
    for trajectory in ("first", "second"):
        answer = client(made.store.uri).get(f"/runs/one/iterations/1/trajectories/{trajectory}/tokens")
        assert "were removed when its user was forgotten." in main_text(answer.text)
        assert answer.status_code < 500


def test_tokens_that_retention_has_removed_are_named(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    made.store.prune(made.ids["rollout_shard"], ["trajectories.parquet"], "test")
    answer = client(made.store.uri).get("/runs/one/iterations/1/trajectories/first/tokens")
    assert "Retention has removed the tokens of this trajectory." in main_text(answer.text)
    assert answer.status_code < 500
