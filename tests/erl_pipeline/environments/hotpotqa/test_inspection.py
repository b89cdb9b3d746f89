"""Perfect attempts, in both protocols."""

from __future__ import annotations

import pytest

from erl_pipeline.environments.hotpotqa.environment import HotpotQA
from erl_pipeline.environments.hotpotqa.inspection import gold_answer
from erl_pipeline.environments.hotpotqa.question_file import Passage
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.tool_calls import read_turn
from storage.texts import StorableTexts

PAYLOAD = {"question": "Who?", "answer": "Anna\n Holm", "supporting": ["River Ode", "Bragg"], "level": "easy"}
TASK = Task("hotpotqa-q", "hotpotqa-bridge", "hotpotqa", PAYLOAD)


def test_each_page_is_searched_for_by_its_title() -> None:
    assert gold_answer(HotpotQAConfig(tool_format="plain"), TASK) == [
        "Search: River Ode",
        "Search: Bragg",
        "Answer: Anna Holm",
    ]
    assert gold_answer(HotpotQAConfig(tool_format="template"), TASK)[0] == (
        '<tool_call>{"name": "search", "arguments": {"query": "River Ode"}}</tool_call>'
    )


def test_the_answer_has_the_last_turn_that_there_is() -> None:
    config = HotpotQAConfig(tool_format="plain", max_turns=2)
    assert gold_answer(config, TASK) == ["Search: River Ode", "Answer: Anna Holm"]
    assert gold_answer(config.model_copy(update={"max_turns": 1}), TASK) == ["Answer: Anna Holm"]


@pytest.mark.parametrize("reward", ["f1", "exact_match"])
@pytest.mark.parametrize("tool_format", ["template", "plain"])
def test_it_finds_all_pages_and_gets_reward_1(tool_format: str, reward: str) -> None:
    config = HotpotQAConfig.model_validate({"tool_format": tool_format, "reward": reward})
    environment = HotpotQA(config, TASK, lambda query: [Passage(query, "A page.")])
    environment.reset()
    made = [
        environment.step(read_turn(text, number, StorableTexts()))
        for number, text in enumerate(gold_answer(config, TASK))
    ]
    assert (made[-1].reward, made[-1].done) == (1.0, True)
    assert sum(each.metrics["supporting_found"] for each in made) == 2.0
