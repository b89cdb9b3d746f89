"""The pages over a really trained run: every page, searches of its memory, its tokens as text."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.ui.clients import client, links_of, main_text


@pytest.fixture(scope="module")
def page(finished: FinishedRun) -> TestClient:
    return client(finished.store)


def test_every_page_can_be_reached_by_links_and_none_fails(page: TestClient) -> None:
    seen: set[str] = set()
    kinds: set[str] = set()
    waiting = ["/"]
    while waiting and len(seen) < 250:
        path = waiting.pop(0)
        kind = re.sub(r"\?.*|/[0-9a-f]{32}|/m-[0-9a-f]+|/\d+", "", path)
        # A few pages of each kind are enough.
        if path in seen or path.startswith("/static") or sum(kind == k.partition("#")[0] for k in kinds) > 6:
            continue
        seen.add(path)
        kinds.add(f"{kind}#{len(seen)}")
        answer = page.get(path)
        assert answer.status_code == 200, (path, main_text(answer.text))
        waiting += links_of(answer.text)
    shown = {kind.partition("#")[0] for kind in kinds}
    assert {
        "/",
        "/runs/small",
        "/runs/small/rows",
        "/runs/small/memory",
        "/runs/small/plan",
        "/artifacts",
    } <= shown
    assert {"/runs/small/iterations", "/runs/small/iterations/episodes", "/lineage"} <= shown


def test_the_curves_are_those_of_status(page: TestClient, finished: FinishedRun) -> None:
    rows = invoke("status", "small", "--store", finished.store, "--json").json["rows"]
    charts = {chart["title"]: chart for chart in page.get("/curves?run=small").json()["charts"]}
    success = charts["Held-out success"]["series"][0]
    expected = [(row["iteration"], row["evaluate/greedy_success"]) for row in rows]
    expected = [(iteration, value) for iteration, value in expected if value is not None]
    assert list(zip(success["x"], success["y"], strict=True)) == expected


def test_the_first_figure_of_a_run_is_its_held_out_success(page: TestClient) -> None:
    first = page.get("/runs/small").text.partition('<dl class="tiles"')[2].partition("</div>")[0]
    assert "<dt>Held-out success</dt>" in first


def test_tokens_are_texts_of_the_policys_tokenizer(page: TestClient) -> None:
    rows = page.get("/runs/small/rows?role=first_attempt").text
    address = re.search(r'hx-get="(/runs/small/iterations/\d+/trajectories/[0-9a-f]+)/text', rows)
    assert address is not None
    tokens = page.get(f"{address[1]}/tokens?measure=logprob").text
    assert "&lt;end&gt;" in tokens
    assert "#" not in re.sub(r"<[^>]*>", "", tokens.partition('class="strip"')[2].partition("</p>")[0])


def test_memory_is_searched_by_words_without_a_table_in_the_store(
    page: TestClient, finished: FinishedRun
) -> None:
    tables = finished.store / "memory"
    before = {str(path): path.stat().st_mtime_ns for path in tables.rglob("*")}
    found = page.get("/runs/small/memory?text=fell&mode=text")
    assert found.status_code == 200
    assert "by words after iteration" in main_text(found.text)
    assert {str(path): path.stat().st_mtime_ns for path in tables.rglob("*")} == before
