"""Collecting, learning and promoting, as commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.serving.forgetting import forget_user
from storage.serving.users import NamedUser
from tests.command_line.invoke import FinishedRun, Result, invoke
from tests.erl_pipeline.serving.learning.served_traffic import RUN, conversations, log

SETTINGS = """\
learn: {min_episodes: 8}
gate: {held_out_drop: 2}
"""
LATER = "2026-01-05"


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    """A copy of the finished run `small`."""
    (tmp_path / "serving.yaml").write_text(SETTINGS)
    return Path(shutil.copytree(finished.store, tmp_path / "store"))


def command(name: str, store: Path, *words: str) -> Result:
    settings = ("--config", store.parent / "serving.yaml")
    return invoke(name, RUN, "--store", store, *settings, *words)


def begun(store: Path) -> str:
    first = command("promote", store, "--checkpoint", "latest", "--without-gate", "--why", "first", "--json")
    checkpoint: str = first.json["checkpoint_id"]
    return checkpoint


def test_collect_says_what_it_sealed(store: Path) -> None:
    log(store, *conversations(store, 9, begun(store)))

    sealed = command("collect", store, "--now", LATER)
    again: dict[str, Any] = command("collect", store, "--now", LATER, "--json").json

    assert "9 episodes, 9 of them rated" in sealed.output
    assert f"Sealed as iteration 1 of run {RUN}-traffic" in sealed.output
    assert (again["settled"], again["batch"]) == (0, None)


def test_collect_says_how_many_conversations_may_still_go_on(store: Path) -> None:
    log(store, *conversations(store, 9, begun(store)))

    early = command("collect", store, "--now", "2026-01-01T00:01:00")

    assert "Not settled yet: 9 episodes" in early.output


def test_learn_says_what_it_waits_for(store: Path) -> None:
    log(store, *conversations(store, 7, begun(store)))

    waits = command("learn", store, "--now", LATER)

    assert (waits.status, waits.output.splitlines()[-1]) == (
        0,
        "Nothing is trained: 7 of 8 rated episodes (learn.min_episodes) are there.",
    )


def test_a_night_promotion_rollback_and_what_taught_the_checkpoint(store: Path) -> None:
    first = begun(store)
    log(store, *conversations(store, 8, first))

    night: dict[str, Any] = command("learn", store, "--now", LATER, "--json").json
    learned = night["verdict"]["checkpoint_id"]

    assert night["change"]["alias"] == "candidate"
    promoted = command("promote", store, "--checkpoint", learned, "--json").json
    assert promoted["previous"] == first
    assert promoted["gate"]["held_out_tasks"] == 8
    rows = invoke("lineage", "trained-on", learned, "--store", store, "--json", "--limit", 99).json["rows"]
    taught = {row["served"]["episode_id"]: row["served"]["call_ids"] for row in rows if row["served"]}
    assert taught == {f"e{number}": [f"call-t{number}"] for number in range(8)}
    assert "served episode" in invoke("lineage", "trained-on", learned, "--store", store).output

    back = command("promote", store, "--to", "previous", "--json").json
    assert (back["checkpoint_id"], back["previous"]) == (first, learned)
    shown = command("promote", store).output
    changes = [line.split()[:2] for line in shown.splitlines() if line.strip().startswith("production")]
    assert changes == [["production", each[:12]] for each in (first, learned, first)]
    assert "passed; held-out reward" in shown

    forget_user(str(store), RUN, NamedUser("acme", ("u1",)))
    refused = command("promote", store, "--checkpoint", learned)
    assert refused.status == 2
    assert f"checkpoint {learned[:12]} cannot unlearn: " in refused.errors
    assert f"(run {night['night']}) had trained on iteration 1 of {RUN}-traffic before" in refused.errors
    forward = command("promote", store, "--to", "previous")
    assert forward.status == 0
    assert "Conversations of a user who was forgotten since cannot be unlearned: " in forward.output
    again = command("promote", store, "--to", "previous", "--json").json
    assert (again["checkpoint_id"], again["learned_from_forgotten"]) == (first, [])
    told = command("promote", store, "--to", "previous", "--json").json["learned_from_forgotten"]
    assert [each.split()[2].rstrip(")") for each in told] == [night["night"]]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--checkpoint", "latest"], "was never asked: no night has made it"),
        (["--checkpoint", "latest", "--without-gate"], "--without-gate needs a reason"),
        (["--to", "previous"], "meant nothing before"),
        (["--to", "next"], "allowed is previous"),
    ],
)
def test_what_may_not_be_promoted_is_refused(store: Path, words: list[str], problem: str) -> None:
    begun(store)

    refused = command("promote", store, *words)

    assert refused.status == 2
    assert problem in refused.errors
