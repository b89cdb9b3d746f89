from itertools import islice

from erl_pipeline.environments.tool_calls import read_turn
from erl_pipeline.qualification.hostile_answers import hostile_answers
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
