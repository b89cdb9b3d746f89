"""The example that serves: what it says where a night has nothing to learn, or the server does not start."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import six_nights


def test_a_night_that_has_nothing_to_learn_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = iter(
        [
            {"run": "capitals", "night": None, "reason": "8 rated episodes are too few"},
            {"night": "capitals-night-1", "verdict": {"reason": "held-out reward +0.100; allowed"}},
        ]
    )

    @contextmanager
    def serving(store: Path) -> Iterator[six_nights.Served]:
        with httpx.Client() as client:
            yield six_nights.Served(client, [])

    said = {"liked": True, "answer": "Lima", "call": "c", "headers": {"x-erl-checkpoint": "abc"}}
    monkeypatch.setattr(sys, "argv", ["six_nights.py", "--nights", "2"])
    monkeypatch.setattr(
        six_nights, "run", lambda *words: json.dumps(next(nights) if words[0] == "learn" else 0)
    )
    monkeypatch.setattr(six_nights, "serving", serving)
    monkeypatch.setattr(six_nights, "day", lambda *words: [said])
    six_nights.main()
    lines = capsys.readouterr().out.splitlines()
    assert "night 1: nothing is trained: 8 rated episodes are too few" in lines
    assert "night 2: held-out reward +0.100; allowed" in lines


@pytest.mark.parametrize(("answer", "liked"), [("Tunis.", True), ("It is in Tunisia.", False)])
def test_users_like_the_name_of_the_capital_and_not_a_longer_word(answer: str, liked: bool) -> None:
    def answered(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"id": "c", "choices": [{"message": {"content": answer}}]})

    with httpx.Client(transport=httpx.MockTransport(answered), base_url="http://policy") as client:
        words = ("episode", "What is the capital of Tunisia?", "Tunis", True, False)
        assert six_nights.conversation(client, six_nights.is_short, *words)["liked"] is liked


def test_what_a_server_says_that_does_not_start_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.exit('Error: no such run')"
    monkeypatch.setattr(six_nights, "command", lambda *words: [sys.executable, "-c", program])
    with pytest.raises(SystemExit) as ended, six_nights.serving(Path("store")):
        pass
    assert ended.value.code == "Error: no such run\nthe server ended with status 1"
