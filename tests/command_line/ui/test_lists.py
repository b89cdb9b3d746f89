"""Lists of rows: as CSV, from one episode to the next in a list, and a task over the iterations."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import polars as pl
import pytest
from starlette.testclient import TestClient

from command_line.ui import rows
from command_line.ui.filters import Filter
from command_line.ui.pages import csv_text
from tests.command_line.ui.clients import client, links_of, main_text
from tests.command_line.ui.stores import write_page_store

EPISODES = "/runs/one/iterations/{}/episodes/{}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return client(write_page_store(tmp_path_factory.mktemp("lists")).store.uri)


def table(page: TestClient, path: str, **headers: str) -> list[dict[str, str]]:
    answer = page.get(path, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert answer.headers["content-disposition"].startswith("attachment")
    return list(csv.DictReader(io.StringIO(answer.text)))


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "＝"])
def test_a_text_that_a_spreadsheet_would_compute_is_written_as_text(begin: str) -> None:
    text = csv_text(["said", "number"], [{"said": f"{begin}HYPERLINK(1)", "number": -1.5}])
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row == {"said": f"'{begin}HYPERLINK(1)", "number": "-1.5"}


def test_values_of_every_kind_can_be_read_back() -> None:
    values = [None, True, 0, 'a "b", c\nd', ["x"], datetime(2026, 1, 2, tzinfo=UTC)]
    columns = list(map(str, range(len(values))))
    text = csv_text(columns, [dict(zip(columns, values, strict=True))])
    (_, row) = csv.reader(io.StringIO(text, newline=""))
    assert row == ["", "true", "0", 'a "b", c\nd', '["x"]', "2026-01-02T00:00:00+00:00"]


def test_rows_of_a_seed_are_those_of_no_other(page: TestClient) -> None:
    """Seeds have more digits than a number in 32 bits."""
    largest = 2**63 - 1
    seeds = pl.DataFrame({"seed": [largest - 1, largest, 7]})
    assert seeds.filter(Filter("seed", str(largest)).condition())["seed"].to_list() == [largest]
    for asked in (">3", "1.5", "-1", str(largest + 1)):
        answer = page.get("/runs/one/rows", params={"seed": asked})
        assert (answer.status_code, "give a whole number" in answer.text) == (400, True)


@pytest.mark.parametrize(("rising", "order"), [(True, "bacd"), (False, "cabd")])
def test_groups_without_a_value_come_last(rising: bool, order: str) -> None:
    means = {"a": -2.0, "b": -3.0, "c": 0.5, "d": None}
    groups = [{"group_id": name, "mean": mean} for name, mean in means.items()]
    found = rows.ordered_groups(groups, "mean", rising=rising)
    assert "".join(group["group_id"] for group in found) == order


def test_each_table_has_a_link_to_its_rows_as_csv(page: TestClient) -> None:
    for path, first in (
        ("/?sort=name&rising=true", {"run": "one", "method": "erl", "done": "2"}),
        ("/runs/one", {"iteration": "1"}),
        ("/runs/one/rows?reward=1&sort=loss&rising=true", {"trajectory_id": "reflection", "loss": "-0.25"}),
        ("/runs/one/memory?task_type=lake-8x8", {"entry_id": "m-north", "text": "<b>go up</b>"}),
        ("/runs/one/memory?text=right", {"entry_id": "m-east"}),
    ):
        (link,) = [each for each in links_of(page.get(path).text) if "format=csv" in each]
        found = table(page, link)[0]
        assert {name: found[name] for name in first} == first, link
    assert len(table(page, "/runs/one/rows", accept="text/csv")) == 4


@pytest.mark.parametrize("yes", ["true", "1", "yes"])
def test_a_yes_means_the_same_on_the_page_and_in_its_table(page: TestClient, yes: str) -> None:
    query = f"sort=reward&rising={yes}"
    rewards = [float(row["reward"]) for row in table(page, f"/runs/one/rows?{query}&format=csv")]
    assert rewards == sorted(rewards)
    assert 'aria-sort="ascending"' in page.get(f"/runs/one/rows?{query}").text


def test_what_is_neither_yes_nor_no_is_refused(page: TestClient) -> None:
    answer = page.get("/runs/one/rows?rising=maybe")
    assert (answer.status_code, "rising=maybe: give true or false" in answer.text) == (400, True)


def test_a_table_that_is_too_long_to_be_given_at_once_is_refused(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    refused = page.get("/runs/one/rows?format=csv")
    assert refused.status_code == 404
    assert "This table has 4 rows, and at most 3 are given at once." in main_text(refused.text)
    assert len(table(page, "/runs/one/rows?format=csv&iteration=1")) == 3


def next_to(page: TestClient, iteration: int, episode: str, within: str) -> list[str]:
    answer = page.get(EPISODES.format(iteration, episode), params={"within": within})
    assert answer.status_code == 200, main_text(answer.text)
    here = {answer.url.path}
    links = [each.partition("?")[0] for each in links_of(answer.text)]
    return [each for each in links if "/episodes/" in each and each not in here]


def test_an_episode_leads_to_the_next_of_the_list_that_one_came_from(page: TestClient) -> None:
    one, two = EPISODES.format(1, "episode"), EPISODES.format(2, "episode-2")
    (link, *_) = [each for each in links_of(page.get("/runs/one/rows?reward=0").text) if "/episodes/" in each]
    assert link == f"{two}?within=reward%3D0"
    assert next_to(page, 2, "episode-2", "reward=0") == [one]
    assert next_to(page, 1, "episode", "reward=0") == [two]
    assert next_to(page, 1, "episode", "outcome=trained&sort=loss&rising=true") == [two]
    assert next_to(page, 1, "episode", "reward=1") == []
    assert next_to(page, 2, "episode-2", "reward=1") == []  # it is not in that list
    assert next_to(page, 1, "episode", "") == []  # the only one of its iteration
    assert page.get(f"{one}?within=sort%3Dtaste").status_code == 400


def test_a_task_is_shown_iteration_by_iteration(page: TestClient) -> None:
    episode = page.get(EPISODES.format(1, "episode")).text
    assert "/runs/one/rows?task_id=t1" in links_of(episode)
    text = main_text(page.get("/runs/one/rows?task_id=t1").text)
    assert "first attempt, mean reward Share of successes solved second attempt, mean reward" in text
    assert "1 0 0 of 1 1 1 of 1" in text
    assert "iteration by iteration" not in main_text(page.get("/runs/one/rows?task_id=~t").text)
