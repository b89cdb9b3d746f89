"""The pages over a store that was written by hand: what each shows, and that its links and commands are
valid."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from command_line.main import command_tree
from command_line.ui.differences import code_differences
from command_line.ui.stored import RunView
from erl_pipeline.statistics import MeanEstimate
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.ui.clients import client, commands_of, links_of, main_text
from tests.command_line.ui.stores import add_searches, small_config, trajectories, write_page_store
from tests.training_stores import TrainingStore


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingStore:
    return write_page_store(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def page(made: TrainingStore) -> TestClient:
    return client(made.store.uri)


def shown(page: TestClient, path: str) -> str:
    answer = page.get(path)
    assert answer.status_code == 200, main_text(answer.text)
    return main_text(answer.text)


def test_runs_are_listed_filtered_and_sorted_by_the_address(page: TestClient) -> None:
    everything = page.get("/").text
    assert '"/runs/two"' in everything
    by_name = page.get("/?sort=name&rising=true").text
    assert by_name.index('href="/runs/one"') < by_name.index('href="/runs/two"')
    only = page.get("/?q=TW").text
    assert '"/runs/two"' in only
    assert '"/runs/one"' not in only
    assert "No run here with these filters" in shown(page, "/?q=nothing")
    # What can be chosen does not depend on what is chosen.
    assert "<option>erl</option>" in page.get("/?method=crl").text
    assert page.get("/?sort=taste").status_code == 400


def test_an_iteration_shows_groups_with_rewards_and_why_rows_were_not_trained(page: TestClient) -> None:
    text = shown(page, "/runs/one/iterations/1")
    assert "Groups" in text
    assert "reflection 1 0 1 1/1" in text
    assert "first attempt 0 0 0 0/1" in text
    assert "zero advantage 1" in text
    assert page.get("/runs/one/iterations/9").status_code == 404
    assert "reflection 1 0 1 1/1" in shown(page, "/runs/one/iterations/1?page=7")  # the last there is


def test_an_episode_is_side_by_side_with_what_was_trained_of_it(
    page: TestClient, made: TrainingStore
) -> None:
    text = shown(page, "/runs/one/iterations/1/episodes/episode")
    order = [text.index(title) for title in ("First attempt", "Feedback", "Reflection", "Second attempt")]
    assert order == sorted(order)
    assert "not trained: zero advantage" in text
    assert "advantage +0.500" in text
    assert "distilled" in text
    changed = page.get("/runs/one/iterations/1/episodes/episode").text
    assert "<mark>right d</mark>" in changed
    assert "<mark>down c</mark>" not in changed.split("Second attempt")[0]


def test_the_board_is_drawn_with_the_way_that_was_gone(page: TestClient) -> None:
    text = page.get("/runs/one/iterations/1/episodes/episode").text
    assert text.count('<svg class="board"') == 2
    # Cells are 40 wide: from the start down into the hole, and right, then down, to the goal.
    assert 'points="20,20 20,60 "' in text
    assert 'points="20,20 60,20 60,60 "' in text
    assert "fell into a hole" in text


def test_searches_are_shown_as_tool_calls_with_the_documents_that_they_found(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    made = add_searches(TrainingStore(ArtifactStore(uri), RunStore(uri)))
    page = client(made.store.uri).get("/runs/asked/iterations/1/episodes/episode")
    first, second = page.text.split('aria-label="Second attempt"')
    assert "found in 1 search 2 documents, 1 of them needed" in main_text(page.text)
    assert "found in 2 searches 3 documents, 2 of them needed" in main_text(page.text)
    assert first.count('<li class="needed">') == 1
    assert second.count('<li class="needed">') == 2
    assert "<b>search</b>" in first
    assert "&lt;b&gt;Holm&lt;/b&gt; Castle" in first
    # The first search is the same as before; the second one is new.
    assert "<mark>mayor of bragg</mark>" in second
    assert "<mark>river ode</mark>" not in second


def test_tokens_are_coloured_by_what_is_stored_and_say_what_is_not(page: TestClient) -> None:
    first = main_of(page, "/runs/one/iterations/1/trajectories/first/tokens?measure=entropy")
    assert "This row was not trained: zero advantage." in first
    second = main_of(page, "/runs/one/iterations/1/trajectories/second/tokens")
    assert "h8" in second  # the largest advantage there is
    assert "advantage 0.5\nlog-probability -0.5\nentropy 0.75\nratio 1.284\nmismatch 0.25" in second
    assert ">#3<" in second  # without a tokenizer the id itself
    assert "of the environment; never trained" in second
    assert page.get("/runs/one/iterations/1/trajectories/unknown/tokens").status_code == 404


def main_of(page: TestClient, path: str) -> str:
    answer = page.get(path)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("", 4),
        ("iteration=1", 3),
        ("role=reflection", 1),
        ("role=!reflection", 3),
        ("outcome=trained", 3),
        ("outcome=zero_advantage", 1),
        ("reward=1", 2),
        ("reward=%3E0.5", 2),
        ("reward=%3C=0", 2),
        ("reward=0.5..1", 2),
        ("advantage=0.5", 2),
        ("success=true", 2),
        ("said=right", 2),
        ("said=down", 3),
        ("task_id=~2", 1),
        ("tokens=1", 4),
        ("role=second_attempt&success=false", 0),
        ("memory_entry=m-", 0),
    ],
)
def test_rows_are_filtered_by_any_column(page: TestClient, query: str, rows: int) -> None:
    text = shown(page, f"/runs/one/rows?{query}")
    assert f"{rows} row{'' if rows == 1 else 's'}" in text


@pytest.mark.parametrize(
    "query", ["reward=high", "reward=1..", "success=maybe", "sort=said", "iteration=x", "reward=nan"]
)
def test_filters_that_mean_nothing_are_refused_with_a_word(page: TestClient, query: str) -> None:
    answer = page.get(f"/runs/one/rows?{query}")
    assert answer.status_code == 400
    assert "role=alert" in answer.text.replace('"', "")


def test_rows_are_sorted_with_those_that_have_no_value_last(page: TestClient) -> None:
    text = shown(page, "/runs/one/rows?sort=loss&rising=true")
    assert text.index("reflection iteration 1") < text.index("first attempt iteration 1")


def test_a_run_shows_rollouts_that_it_shares(page: TestClient) -> None:
    text = shown(page, "/runs/two/rows")
    assert "3 rows" in text
    assert "no record" in text


def test_lineage_leads_both_ways_and_no_further_than_asked(page: TestClient, made: TrainingStore) -> None:
    update = made.ids["update_policy"]
    near = page.get(f"/lineage/{update}?depth=1").text
    assert made.ids["bootstrap"] in near
    assert made.ids["rollout_shard"] not in near
    assert made.ids["rollout_shard"] in page.get(f"/lineage/{update}?depth=2").text
    row = shown(page, "/lineage/second?depth=2")
    assert "trajectory it followed" in row
    assert "SFT row made of it" in row
    assert page.get("/lineage/unknown").status_code == 404
    assert page.get(f"/lineage/{update}?depth=99").status_code == 400


def test_a_card_of_the_lineage_shows_its_own_id(page: TestClient, made: TrainingStore) -> None:
    update, start = made.ids["update_policy"], made.ids["bootstrap"]
    for path in (f"/lineage/{update}?depth=1", f"/artifacts/{update}"):
        card = page.get(path).text.partition(f'data-thing="{start}"')[2].partition("</a>")[0]
        assert f"<b>bootstrap</b> <code>{start[:12]}</code>" in card
        assert update[:12] not in card


def test_lines_of_the_lineage_lead_from_what_a_thing_was_made_of(
    page: TestClient, made: TrainingStore
) -> None:
    shown_lines = re.search(r'data-links="([^"]*)"', page.get(f"/lineage/{made.ids['update_policy']}").text)
    assert shown_lines is not None
    lines = {tuple(line) for line in json.loads(html.unescape(shown_lines[1]))}
    named = {artifact_id: name for name, artifact_id in made.ids.items()}
    names = {(named.get(first), named.get(second)) for first, second in lines}
    assert {("bootstrap", "rollout_shard"), ("bootstrap", "update_policy")} <= names
    assert {("generate_rollouts", "update_policy"), ("rollout_shard", "generate_rollouts")} <= names
    assert not {(second, first) for first, second in lines} & lines


def test_a_manifest_names_files_with_their_digests(page: TestClient, made: TrainingStore) -> None:
    text = shown(page, f"/artifacts/{made.ids['update_policy']}")
    assert "training_record.parquet" in text
    assert "sequences 2" in text


def test_two_runs_part_where_the_second_begins(page: TestClient) -> None:
    text = shown(page, "/divergence?a=one&b=two")
    assert "First artifact that differs" in text
    assert "They do not diverge" in shown(page, "/divergence?a=one&b=one")


def test_runs_are_compared_and_their_curves_are_numbers(page: TestClient) -> None:
    assert "Settings that differ" in shown(page, "/compare?run=one&run=two")
    found = page.get("/curves?run=one&x=tokens").json()
    assert found["x"] == "generated tokens"
    assert page.get("/compare").status_code == 400


def test_an_entry_without_a_comparison_has_no_credit(page: TestClient) -> None:
    text = shown(page, "/runs/one/memory?sort=credit")
    assert re.findall(r"lake-\dx\d (\S+(?: of \d)?) \d 0 1 ", text) == [
        "+0.500 of 4",
        "+0.125 of 1",
        "–",
        "-0.250 of 2",
    ]
    assert "Credit – nothing to compare with yet" in shown(page, "/runs/one/memory/m-north")


@pytest.mark.parametrize(
    ("credit", "said"),
    [
        (MeanEstimate(0.25, -0.125, 0.625, 2, 3), "Credit +0.250 -0.125 to +0.625; 3 comparisons, 2 tasks S"),
        (MeanEstimate(0.25, None, None, 1, 1), "Credit +0.250 no interval; 1 comparison, 1 task S"),
    ],
)
def test_the_credit_of_an_entry_is_said_once(
    made: TrainingStore, monkeypatch: pytest.MonkeyPatch, credit: MeanEstimate, said: str
) -> None:
    monkeypatch.setattr("command_line.ui.memory_pages.entry_credits", lambda _: {"m-east": credit})
    text = shown(client(made.store.uri), "/runs/one/memory/m-east")
    assert said in text


@dataclass(frozen=True)
class MadeBy:
    code: dict[str, str]
    code_version: str = "c"
    stage_version: int = 1


@dataclass(frozen=True)
class Made:
    stage: str
    manifest: MadeBy
    on_request: bool = False


def code_shown(*histories: Sequence[Made]) -> list[tuple[str, list[str]]]:
    return code_differences([cast("RunView", SimpleNamespace(history=each)) for each in histories])


def test_code_of_which_one_method_uses_more_does_not_differ() -> None:
    tasks = Made("prepare_tasks", MadeBy({"prompts": "part"}))
    rlvr = [tasks, Made("evaluate", MadeBy({"prompts": "part", "rlvr": "r"}))]
    erl = [tasks, Made("evaluate", MadeBy({"prompts": "whole", "erl": "e"}))]
    assert code_shown(erl, rlvr) == []
    edited = Made("evaluate", MadeBy({"prompts": "edited", "erl": "e"}))
    assert code_shown(erl, [tasks, edited]) == [("prompts", ["part, whole", "part, edited"])]
    assert code_shown([*erl, edited], rlvr) == [("prompts", ["part, whole, edited", "part"])]
    others = [Made("prepare_tasks", MadeBy({"prompts": "other"})), rlvr[1]]
    assert code_shown(erl, others) == [("prompts", ["part", "other"])]


def test_every_link_leads_somewhere_and_every_command_is_one(page: TestClient) -> None:
    seen: set[str] = set()
    waiting = ["/"]
    commands: set[str] = set()
    while waiting and len(seen) < 150:
        path = waiting.pop()
        if path in seen or path.startswith("/static"):
            continue
        seen.add(path)
        answer = page.get(path)
        # In hand-made data the name of a policy or memory version may be that of no artifact.
        assert answer.status_code in (200, 404), path
        if answer.status_code == 200 and "text/html" in answer.headers["content-type"]:
            waiting += links_of(answer.text)
            commands |= set(commands_of(answer.text))
    assert len(seen) > 40
    assert len(commands) > 10
    for line in commands:
        require_command(line)


def require_command(line: str) -> None:
    """Raise where the command line would refuse these words."""
    words = shlex.split(line)[1:]
    found: Any = command_tree()
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
    with found.make_context("erl-pipeline", words):
        pass


def test_looking_writes_nothing_into_the_store(made: TrainingStore, page: TestClient) -> None:
    def files() -> dict[str, int]:
        root = Path(made.store.uri)
        return {str(path): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}

    before = files()
    for path in (
        "/",
        "/runs/one",
        "/runs/one/plan",
        "/runs/one/rows",
        "/runs/one/iterations/1",
        "/lineage/second",
    ):
        page.get(path)
    assert files() == before


@pytest.mark.parametrize(
    ("per", "said", "tables"),
    [
        ("subgroup", "4 rows; each reward is compared only with the others of its table", (2, 1, 1)),
        ("group", "4 rows whose rewards are compared with each other", (4,)),
    ],
)
def test_rows_of_a_group_are_apart_where_their_rewards_are(
    tmp_path: Path, per: str, said: str, tables: tuple[int, ...]
) -> None:
    uri = str(tmp_path / "store")
    made = TrainingStore(ArtifactStore(uri), RunStore(uri))
    made.runs.create("split", small_config(tmp_path, "split", **{"objective.advantages_per": per}))
    rows = [
        {"trajectory_id": f"t{sample}", "group_id": "g", "sample_index": sample, "subgroup": subgroup}
        for sample, subgroup in enumerate(("guided", "free", "guided", None))
    ]
    made.commit("rollout_shard", "trajectories", 1, None, trajectories(*rows), run="split")
    page = client(uri).get("/runs/split/iterations/1/group?id=g").text
    assert said in main_text(page)
    assert tuple(table.count('data-label="Row"') for table in page.split("<tbody>")[1:]) == tables
