"""The pages of a policy that serves: its aliases and their gates, and conversations that were collected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from erl_pipeline.serving.learning.collect import collect
from erl_pipeline.serving.learning.gate import Comparison, verdict
from erl_pipeline.serving.settings import EpisodeSettings, GateSettings
from storage.memory.standalone import Lesson, StandaloneMemory
from storage.serving.aliases import change_alias, record_verdict
from tests.command_line.ui.clients import client, links_of, main_text
from tests.embedders import WordEmbedder
from tests.erl_pipeline.serving.learning.served_traffic import TOMORROW, at, begin_run, end, log, rating, turn
from tests.storage.serving.aliases import alias_change


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversation of two calls with feedback, part of which came after it was collected; another tenant
    has an episode of the same name."""
    folder = tmp_path_factory.mktemp("serving")
    begin_run(folder)
    log(
        folder,
        turn("one"),
        turn("two", after="one", context_token_ids=(4,), arrived=at(5)),
        rating("up", 1.0, call_id="call-one", received=at(6)),
        rating("said", None, metric="comment", value="<b>too long</b>", received=at(7)),
        end(seconds=8),
        turn("other", tenant="else"),
    )
    collect(str(folder), "small", EpisodeSettings(), TOMORROW)
    log(folder, rating("down", 0.0, value="down", received=TOMORROW))
    return folder


@pytest.fixture(scope="module")
def page(store: Path) -> TestClient:
    return client(store)


def served(page: TestClient) -> str:
    rows = page.get("/runs/small-traffic/rows?format=csv&said=two").text.splitlines()
    names, values = rows[0].split(","), rows[1].split(",")
    answer = page.get(f"/runs/small-traffic/iterations/1/episodes/{values[names.index('episode_id')]}")
    assert answer.status_code == 200, main_text(answer.text)
    return answer.text.split('aria-label="As it was served"')[1].split("</section>")[0]


def test_a_served_conversation_has_its_calls_and_its_feedback_in_their_order(page: TestClient) -> None:
    text = main_text(f"<main>{served(page)}</main>")
    order = [
        text.index(each) for each in ("says one", "says two", "thumbs", "comment", "the client ended it")
    ]
    assert order == sorted(order)
    assert "thumbs from user call-one up 1" in text
    assert "comment from user the whole episode <b>too long</b>" in text
    assert "says other" not in text
    assert "&lt;b&gt;too long&lt;/b&gt;" in served(page)


def test_runs_that_are_no_training_lead_to_the_pages_that_they_have(store: Path, page: TestClient) -> None:
    memory = StandaloneMemory(str(store), "kitchen", WordEmbedder())
    memory.add([Lesson("This oven runs hot.", "the bread came out black")])
    for run, first, gone in (
        ("small-traffic", "Episodes", ("Overview", "Memory", "Plan")),
        ("kitchen", "Memory", ("Overview", "Plan")),
    ):
        answer = page.get(f"/runs/{run}")
        assert answer.status_code == 200
        tabs = re.findall(r">([^<]*)</a>", answer.text.partition('class="tabs"')[2].partition("</nav>")[0])
        assert set(gone).isdisjoint(tabs)
        assert f'aria-current="page">{first}</a>' in answer.text
        links = {each for each in links_of(answer.text) if f"/runs/{run}" in each}
        assert {each: page.get(each).status_code for each in links} == dict.fromkeys(links, 200)


def test_feedback_that_came_too_late_is_marked(page: TestClient) -> None:
    text = main_text(f"<main>{served(page)}</main>")
    assert text.count("too late") == 2  # the record, and what that means
    assert "thumbs too late from user the whole episode down 0" in text


def test_without_the_log_the_rest_is_shown(store: Path, page: TestClient) -> None:
    (store / "serving/small/log").rename(store / "serving/small/moved")
    text = main_text(f"<main>{served(page)}</main>")
    (store / "serving/small/moved").rename(store / "serving/small/log")
    assert "served by small episode e key of acme" in text
    assert "The log of its calls is no longer in this store." in text


def test_aliases_are_shown_with_their_changes_and_the_gates_verdicts(store: Path, page: TestClient) -> None:
    assert "This run has no aliases" in main_text(page.get("/runs/small/serving").text)
    change_alias(str(store), "small", alias_change("c" * 32))
    judged = verdict(Comparison(0.25, 0.125, {"tasks": 8}), None, "d" * 32, "c" * 32, "night", GateSettings())
    gated = {"gate": judged.numbers, "reason": judged.reason}
    after = alias_change("d" * 32, previous="c" * 32, run="night").model_copy(update=gated)
    change_alias(str(store), "small", after)
    record_verdict(str(store), "small", judged)
    answer = page.get("/runs/small/serving").text
    text = main_text(answer)
    assert "production dddddddddddd of night , since 2026-01-01 12:00 UTC" in text
    assert text.count("held-out reward +0.250, lower bound +0.125 over 8 tasks, needed ") == 2
    assert "passed" in text
    assert "held out tasks 8" in text
    assert 'href="/runs/small-traffic/rows"' in answer
