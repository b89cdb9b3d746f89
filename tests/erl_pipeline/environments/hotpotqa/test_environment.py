"""Attempts with a search tool whose answers the test gives."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from erl_pipeline.environments.hotpotqa.environment import (
    HotpotQA,
    exact_match,
    f1_score,
    gold_answer,
    normalise,
)
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tasks import Passage
from erl_pipeline.environments.interface import Task, Transition
from erl_pipeline.environments.messages import read_turn
from storage.texts import StorableTexts

PAGES = {
    "ode": [Passage("River Ode", "It flows past Bragg."), Passage("Holm Castle", "In Sudland.")],
    "bragg": [Passage("Bragg", "Its mayor is Anna Holm."), Passage("River Ode", "It flows past Bragg.")],
    "castle": [Passage("Holm Castle", "In Sudland.")],
}
TASK = Task(
    "hotpotqa-q-mayor",
    "hotpotqa-bridge",
    "hotpotqa",
    {
        "question": "Who is the mayor?",
        "answer": "Anna Holm",
        "supporting": ["River Ode", "Bragg"],
        "level": "easy",
    },
)


def search(query: str) -> Sequence[Passage]:
    return PAGES.get(query, [])


def call(query: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': query}})}</tool_call>"


def play(*turns: str, **settings: object) -> tuple[HotpotQA, list[Transition]]:
    """An attempt in which the policy says these turns, by tool calls."""
    environment = HotpotQA(HotpotQAConfig(**settings), TASK, search)
    assert environment.reset() == "Question: Who is the mayor?"
    return environment, [
        environment.step(read_turn(text, number, StorableTexts())) for number, text in enumerate(turns)
    ]


def sums(transitions: Sequence[Transition]) -> dict[str, float]:
    """The metrics of an attempt, summed over its turns."""
    names = {name for each in transitions for name in each.metrics}
    return {name: sum(each.metrics.get(name, 0.0) for each in transitions) for name in names}


def test_an_attempt_that_finds_both_pages_and_answers() -> None:
    environment, (first, second, last) = play(call("ode"), call("bragg"), "Answer: anna holm.")
    assert first.messages == [
        {
            "role": "tool",
            "content": "[1] River Ode: It flows past Bragg.\n[2] Holm Castle: In Sudland.\n4 turns are left.",
            "tool_call_id": "call00000",
            "name": "search",
        }
    ]
    assert (first.done, second.done, last.done) == (False, False, True)
    assert (first.reward, second.reward, last.reward) == (0.0, 0.0, 1.0)
    assert sums([first, second, last]) == {
        "searches": 2.0,
        "bad_calls": 0.0,
        "supporting_found": 2.0,
        "exact_match": 1.0,
        "f1": 1.0,
    }
    assert environment.feedback() == (
        "The answer is right. The question needs 2 pages; all of them were among the results of 2 searches."
    )


def test_feedback_says_what_was_not_found_and_never_the_answer_or_a_page() -> None:
    environment, turns = play(call("castle"), call("castle"), call("ode"), "Answer: the mayor Anna")
    assert turns[-1].reward == pytest.approx(0.5)  # words: mayor, Anna; one of two, both ways
    said = environment.feedback()
    assert said == (
        "The answer is not right, but some of its words are. The question needs 2 pages; 1 of them was among "
        "the results of 3 searches. Search 2 returned nothing new."
    )
    for secret in ("Anna", "Holm", "River Ode", "Bragg"):
        assert secret not in said
    assert environment.trace() == (
        'Turn 1: searched for "castle"; results: Holm Castle\n'
        'Turn 2: searched for "castle"; results: Holm Castle\n'
        'Turn 3: searched for "ode"; results: River Ode; Holm Castle\n'
        'Turn 4: answered "the mayor Anna"'
    )


def test_exact_match_can_be_the_reward() -> None:
    _, turns = play("Answer: Anna", reward="exact_match")
    assert turns[0].reward == 0.0
    assert turns[0].metrics["f1"] == pytest.approx(2 / 3)
    _, turns = play("Answer: Anna Holm", reward="exact_match")
    assert turns[0].reward == 1.0


def test_calls_that_cannot_be_done_are_told_counted_and_end_the_attempt_by_rule() -> None:
    unclosed, unknown = '<tool_call>{"name": "search"}', '<tool_call>{"name": "find"}</tool_call>'
    environment, turns = play(unclosed, unknown, call("ode"), "Oslo", max_bad_calls=3)
    assert [each.done for each in turns] == [False, False, False, True]
    assert turns[0].messages[0]["content"] == (
        "This could not be done: the call has no </tool_call>.\n4 turns are left."
    )
    assert turns[1].messages[0]["content"].startswith("This could not be done: there is no tool 'find'")
    assert sums(turns)["bad_calls"] == 3.0
    assert turns[-1].reward == 0.0
    assert environment.feedback() == (
        "No answer was given in 4 turns: too many calls could not be done. The question needs 2 pages; 1 of "
        "them was among the results of 1 search. 3 calls could not be done."
    )


def test_all_calls_of_a_turn_are_answered() -> None:
    _, (turn,) = play(call("ode") + call("nothing") + call("bragg"))
    assert [message["tool_call_id"] for message in turn.messages] == ["call00000", "call00001", "call00002"]
    assert turn.messages[1]["content"] == "No page was found."
    assert turn.metrics["supporting_found"] == 2.0


def test_an_attempt_without_an_answer_ends_with_its_turns() -> None:
    environment, turns = play(call("ode"), call("ode"), max_turns=2)
    assert turns[0].messages[0]["content"].endswith("This is the last turn: answer now.")
    assert [each.done for each in turns] == [False, True]
    assert sums(turns)["exact_match"] == 0.0
    assert environment.feedback().startswith("No answer was given in 2 turns: all turns were used.")


def test_the_plain_protocol_offers_no_tools_and_answers_as_the_user() -> None:
    environment = HotpotQA(HotpotQAConfig(tool_format="plain", passage_characters=8), TASK, search)
    assert environment.tools == ()
    assert "Search: what to look for" in environment.instructions
    environment.reset()
    turn = environment.step(read_turn("Search: castle", 0, StorableTexts()))
    assert turn.messages == [{"role": "user", "content": "[1] Holm Castle: In Sudla...\n4 turns are left."}]
    environment.reset()
    assert environment.trace() == ""


def test_case_punctuation_articles_and_spaces_do_not_count() -> None:
    assert normalise("  The  U.S. Army, a force ") == "us army force"
    assert exact_match("the Beatles.", "Beatles")
    assert not exact_match("Beatle", "Beatles")


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("Anna Holm", "Anna Holm", 1.0),
        ("the mayor Anna Holm", "Anna Holm", 0.8),  # precision 2/3, recall 1: 2 * 2/3 / (5/3)
        ("Anna", "Anna Holm", 2 / 3),
        ("Anna Anna", "Anna Holm", 0.5),  # a word counts as often as the right answer has it
        ("Holm Anna", "Anna Holm", 1.0),
        ("Berta", "Anna Holm", 0.0),
        ("yes", "yes", 1.0),
        ("yes it is", "yes", 0.0),
        ("no", "no one", 0.0),
        ("no", "yes", 0.0),
        ("", "Anna", 0.0),
    ],
)
def test_f1_of_words_but_yes_and_no_are_right_or_wrong_as_a_whole(
    answer: str, gold: str, score: float
) -> None:
    assert f1_score(answer, gold) == pytest.approx(score)


def test_an_answer_of_an_article_alone_is_not_equal_to_an_empty_one() -> None:
    assert exact_match("a", "A")
    assert not exact_match("", "A")
    assert not exact_match("...", "A")


PAYLOAD = {
    "question": "Who?",
    "answer": "Anna\n Holm",
    "supporting": ["River Ode", "Bragg"],
    "level": "easy",
}
TWO_PAGES = Task("hotpotqa-q", "hotpotqa-bridge", "hotpotqa", PAYLOAD)


def test_each_page_is_searched_for_by_its_title() -> None:
    assert gold_answer(HotpotQAConfig(tool_format="plain"), TWO_PAGES) == [
        "Search: River Ode",
        "Search: Bragg",
        "Answer: Anna Holm",
    ]
    assert gold_answer(HotpotQAConfig(tool_format="template"), TWO_PAGES)[0] == (
        '<tool_call>{"name": "search", "arguments": {"query": "River Ode"}}</tool_call>'
    )


def test_the_answer_has_the_last_turn_that_there_is() -> None:
    config = HotpotQAConfig(tool_format="plain", max_turns=2)
    assert gold_answer(config, TWO_PAGES) == ["Search: River Ode", "Answer: Anna Holm"]
    assert gold_answer(config.model_copy(update={"max_turns": 1}), TWO_PAGES) == ["Answer: Anna Holm"]


@pytest.mark.parametrize("reward", ["f1", "exact_match"])
@pytest.mark.parametrize("tool_format", ["template", "plain"])
def test_it_finds_all_pages_and_gets_reward_1(tool_format: str, reward: str) -> None:
    config = HotpotQAConfig.model_validate({"tool_format": tool_format, "reward": reward})
    environment = HotpotQA(config, TWO_PAGES, lambda query: [Passage(query, "A page.")])
    environment.reset()
    made = [
        environment.step(read_turn(text, number, StorableTexts()))
        for number, text in enumerate(gold_answer(config, TWO_PAGES))
    ]
    assert (made[-1].reward, made[-1].done) == (1.0, True)
    assert sum(each.metrics["supporting_found"] for each in made) == 2.0
