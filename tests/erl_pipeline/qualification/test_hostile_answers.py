"""."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from erl_pipeline.environments.messages import read_turn
from erl_pipeline.environments.scorers import checked_score, scorer_named
from erl_pipeline.environments.scorers.interface import altered_numbers
from erl_pipeline.qualification.check import CheckResult
from erl_pipeline.qualification.examination import examine
from erl_pipeline.qualification.hostile_answers import hostile_answers
from erl_pipeline.qualification.served_environment import EnvironmentSpec
from storage.texts import StorableTexts

SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"properties": {"query": {"type": "string"}}}},
}


def test_a_few_are_one_of_each_kind() -> None:
    kinds = [each.kind for each in islice(hostile_answers(1000, 0), 11)]
    assert kinds[:3] == ["empty", "a megabyte", "control characters"]
    assert len(set(kinds[:10])) == 10


def test_a_thousand_are_a_thousand_and_depend_on_the_seed_alone() -> None:
    answers = hostile_answers(1000, 3)
    assert len(answers) == 1000
    assert answers == hostile_answers(1000, 3)
    assert answers != hostile_answers(1000, 4)
    assert max(len(each.text) for each in answers) == 1_000_000
    assert sum(len(each.text) for each in answers) < 10_000_000


def test_prompts_are_repeated() -> None:
    repeated = [each for each in hostile_answers(1000, 0) if each.kind == "prompts repeated"]
    assert [each.after("Go. ") for each in repeated][:2] == ["Go. ", "Go. Go. \n"]


def test_tools_are_called_with_wrong_arguments() -> None:
    answers = [each for each in hostile_answers(1000, 0, [SEARCH]) if each.kind.startswith("calls of tools")]
    given = [
        call.arguments for each in answers for call in read_turn(each.text, 0, StorableTexts()).tool_calls
    ]
    assert {"query": None} in given
    assert {"no_such_argument": 1} in given
    assert {"query": "\ufffd"} in given  # it was "\\ud800"


_LENIENT = """
def score(answer, payload):
    # Punctuation around an answer does not count, as it did not for math once.
    return float(answer is not None and answer.strip(" .!?") == payload["answer"])
"""


def wrong_answers(folder: Path, scorer: str) -> CheckResult:
    """That check of ten questions whose answers are 30 to 39."""
    file = folder / "questions.jsonl"
    lines = [json.dumps({"question": f"How many is {n} and 0?", "answer": n}) for n in range(30, 40)]
    file.write_text("\n".join(lines) + "\n")
    settings = {
        "type": "questions",
        "training_file": str(file),
        "held_out_share": 0.2,
        "scorer": scorer,
    }
    # Without hostile answers nothing is trained, which takes seconds.
    found = examine(EnvironmentSpec("questions", settings, 0, 2, 20.0), tasks=2, answers=0)
    return next(check for check in found.qualification.checks if check.name == "wrong_answers")


def test_a_lenient_scorer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lenient.py").write_text(_LENIENT)
    info = tmp_path / "lenient-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lenient\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[erl_pipeline.scorers]\nlenient = lenient:score\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = wrong_answers(tmp_path, "lenient")
    assert found.verdict == "failed"
    assert "boxed{.3" in found.problem
    assert "is wrong and gets reward 1" in found.problem


@pytest.mark.parametrize("scorer", ["numeric", "math"])
def test_the_built_in_ones_are_not_lenient(tmp_path: Path, scorer: str) -> None:
    # Of each of two tasks: nothing, one fixed wrong answer, and six that resemble the right one.
    found = wrong_answers(tmp_path, scorer)
    assert (found.verdict, found.counted) == ("passed", 16)


def test_answers_that_resemble_11() -> None:
    assert altered_numbers({"answer": "11"}) == [".11", "-11", "21", "110", "8 9 10 11", "11!"]
    assert altered_numbers({"answer": "-3"}) == [".3", "3", "-1", "30", "-6 -5 -4 -3", "-3!"]
    assert altered_numbers({"answer": "11", "tolerance": 5}) == ()
    assert altered_numbers({"answer": "x+1"}) == ()


@pytest.mark.parametrize("name", ["contains", "exact", "f1", "math", "numeric"])
@pytest.mark.parametrize("right", ["-12", "-3", "0", "1", "2", "5", "11", "1005"])
def test_no_built_in_scorer_gives_them_1(name: str, right: str) -> None:
    scorer, payload = scorer_named(name), {"answer": right}
    given = {said: checked_score(scorer, said, payload).score for said in scorer.wrong_answers(payload)}
    assert given
    assert max(given.values()) < 1.0, given
