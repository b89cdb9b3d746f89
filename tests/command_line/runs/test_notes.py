"""Tags and notes of runs: by command, and on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line.invoke import invoke
from tests.command_line.ui.clients import client, commands_of, main_text
from tests.command_line.ui.stores import write_page_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    write_page_store(folder)
    assert invoke("runs", "tag", "one", "baseline", "seed-1", "--store", folder / "store").status == 0
    said = invoke("runs", "note", "one", "<b>too</b>\nhigh", "--store", folder / "store")
    assert said.output == "Run one\nTags: baseline seed-1\nNote: <b>too</b>\nhigh\n"
    return folder / "store"


def test_runs_are_listed_by_tag_and_shown_with_what_is_said_of_them(store: Path) -> None:
    (one,) = invoke("runs", "list", "--tag", "baseline", "--store", store, "--json").json
    assert (one["run"], one["tags"], one["note"]) == ("one", ["baseline", "seed-1"], "<b>too</b>\nhigh")
    assert "baseline seed-1" in invoke("runs", "list", "--store", store).output
    assert (
        "Tags: baseline seed-1\nNote: <b>too</b>\nhigh"
        in invoke("runs", "show", "one", "--store", store).output
    )


def test_a_tag_of_an_unknown_run_and_a_bad_tag_are_refused(store: Path) -> None:
    for words, said in ((["nobody", "x"], "no run nobody"), (["one", "a b"], "cannot be a tag")):
        refused = invoke("runs", "tag", *words, "--store", store)
        assert (refused.status, said in refused.errors) == (2, True)


def test_the_page_shows_them_and_filters_by_tag(store: Path) -> None:
    page = client(store)
    listed = page.get("/").text
    assert '<a class="tag" href="/?tag=baseline">baseline</a>' in listed
    assert "&lt;b&gt;too&lt;/b&gt;" in listed
    only = page.get("/?tag=baseline").text
    assert '"/runs/one"' in only
    assert '"/runs/two"' not in only
    assert "No run here with these filters" in main_text(page.get("/?tag=other").text)
    overview = page.get("/runs/one").text
    assert "baseline" in main_text(overview)
    assert any("runs tag one TAG" in line for line in commands_of(overview))
