"""An agent's attempt on the page of its episode: the tree of its token sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from command_line.ui.sequences import inserted_pieces
from erl_pipeline.views.report.episodes import Piece
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.ui.clients import client, main_text
from tests.command_line.ui.stores import add_agent
from tests.training_stores import TrainingStore

EPISODE = "/runs/helper/iterations/1/episodes/episode"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    uri = str(tmp_path_factory.mktemp("agents") / "store")
    return client(add_agent(TrainingStore(ArtifactStore(uri), RunStore(uri))).store.uri)


def first_attempt(page: TestClient) -> str:
    answer = page.get(EPISODE)
    assert answer.status_code == 200, main_text(answer.text)
    return answer.text.split('aria-label="Sequences of the first attempt"')[1].split("</section>")[0]


def test_sequences_are_a_tree_by_what_each_goes_on_from(page: TestClient) -> None:
    text = " ".join(main_text(f"<main>{first_attempt(page)}</main>").split())
    assert "4 token sequences, 5 sampled tokens" in text
    assert "Sequence 1 2 turns, 2 tokens" in text
    assert "Sequence 2 , goes on from sequence 1 1 turn, 1 token" in text
    assert "Sequence 3 , goes on from sequence 2 1 turn, 1 token" in text
    assert "Sequence 4 , begins a conversation of its own" in text
    assert "Context: the first 3 messages of sequence 1." in text
    assert "Context: the first 5 messages of sequence 2." in text


def test_tools_have_their_arguments_and_results_where_they_were_sampled(page: TestClient) -> None:
    first, branch, twig, checker = first_attempt(page).split("<b>Sequence ")[1:]
    assert "<b>search</b>" in first
    assert "[1] Bragg has a &lt;b&gt;mayor&lt;/b&gt;." in first
    # The branch shares the call, and was told something else.
    assert branch.count("<b>search</b>") == 1
    assert "Nothing was found." in branch.split("Sampled here")[0]
    assert "Bragg" in branch.split("Sampled here")[1]
    assert "A town." in twig.split("Sampled here")[0]
    assert "A small town." in twig.split("Sampled here")[1]
    assert "You check names." in checker


def test_calls_stand_on_a_time_line_as_they_came(page: TestClient) -> None:
    """The last answer was given after 2 s: the first call took 0.75 s of these, the policy 0.5 s."""
    table = first_attempt(page).split("Times of its 3 calls, within 2.0 s")[1]
    rows = [" ".join(main_text(f"<main>{row}</main>").split()) for row in table.split("<tr>")[2:]]
    assert rows == ["1 1 tool calls 0.00 s 0.75 s", "– 0 too long 1.00 s 0.00 s", "2 3 stop 1.25 s 0.75 s"]
    assert '<rect class="gateway" x="0.0" width="375.0"' in table
    assert '<rect class="policy" x="0.0" width="250.0"' in table
    assert '<rect class="gateway" x="625.0" width="375.0"' in table
    second = page.get(EPISODE).text.split('aria-label="Sequences of the second attempt"')[1]
    assert "Times of" not in second


def test_what_the_gateway_inserted_is_marked(page: TestClient) -> None:
    second = page.get(EPISODE).text.split('aria-label="Sequences of the second attempt"')[1]
    assert "What the gateway inserted" in second
    assert "Be brief.<mark> Reflection: read the second page.</mark>" in second
    assert "What the gateway inserted" not in first_attempt(page)


def test_all_of_a_system_message_is_marked_where_the_agent_has_none() -> None:
    assert inserted_pieces("", "Notes: look first.") == [Piece("Notes: look first.", True)]
    assert inserted_pieces("", "") == []


def test_further_sequences_are_no_attempts_of_their_own(page: TestClient) -> None:
    assert "2 rows" in main_text(page.get("/runs/helper/rows").text)
    strip = page.get("/runs/helper/iterations/1/trajectories/twig/tokens")
    assert strip.status_code == 200
    assert ">#3<" in strip.text


def test_sequences_that_retention_has_pruned_are_named(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    made = add_agent(TrainingStore(ArtifactStore(uri), RunStore(uri)))
    made.store.prune(made.ids["rollout_shard"], ["trajectories.parquet", "further_sequences.parquet"], "test")
    answer = client(uri).get(EPISODE)
    assert answer.status_code == 200
    assert main_text(answer.text).count("The texts of this sequence were pruned by retention.") == 5
