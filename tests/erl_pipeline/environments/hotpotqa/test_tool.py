"""."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.loading import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.hotpotqa.environment import for_template
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tool import (
    Action,
    BadCall,
    FinalAnswer,
    Search,
    read_plain_lines,
    read_tool_calls,
)
from erl_pipeline.environments.messages import AssistantTurn, read_turn
from erl_pipeline.environments.mixture import ENVIRONMENT as MIXTURE
from erl_pipeline.runs.train import require_template_arguments, require_tools_are_known
from storage.errors import InputError
from storage.texts import StorableTexts
from tests.erl_pipeline.episodes.test_dialogue import CHATML, SAID, WITH_CALLS, chatml_tokenizer


def call(name: str = "search", **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def by_calls(text: str) -> list[Action]:
    return list(read_tool_calls(read_turn(text, 0, StorableTexts())))


def by_lines(text: str) -> Action:
    (action,) = read_plain_lines(AssistantTurn(text))
    return action


def test_calls_are_searches_and_come_before_an_answer() -> None:
    actions = by_calls(f"{call(query='the River Ode')} {call(query=' Bragg ')}\nAnswer: Oslo")
    assert [each.query for each in actions if isinstance(each, Search)] == ["the River Ode", "Bragg"]
    assert len(actions) == 2


def test_without_a_call_the_last_answer_line_counts() -> None:
    assert by_calls("Answer: Oslo? No.\n**Answer:** Anna Holm ") == [FinalAnswer("Anna Holm")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{search}</tool_call>", "the call is not JSON"),
        ('<tool_call>{"name": "search", "arguments": {"query": "a"}}', "the call has no </tool_call>"),
        (call("look_up", query="a"), "there is no tool 'look_up'; there is search"),
        (call("x" * 1_000_000), f"there is no tool '{'x' * 60}...'; there is search"),
        (call(), "search needs the argument query, a text"),
        (call(query=3), "search needs the argument query, a text"),
        (call(query="a", top_k=5), "search takes no argument 'top_k'; it takes query"),
        (call(query="  "), "the query is empty"),
        (call(query="a" * 401), "the query has 401 characters; allowed are 400"),
        ("Anna Holm", "the turn has neither a tool call nor a line that begins with Answer:"),
        ("Answer:  ", "the line that begins with Answer: is empty"),
        ("", "the turn has neither a tool call nor a line"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(text: str, problem: str) -> None:
    (action,) = by_calls(text)
    assert isinstance(action, BadCall)
    assert action.problem.startswith(problem)


def test_a_turn_has_no_more_than_four_calls() -> None:
    actions = by_calls(call(query="a") * 6)
    assert [type(each) for each in actions] == [Search] * 4 + [BadCall] * 2


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Search: River Ode", Search("River Ode")),
        ("I need the town.\n- **search:** River Ode\nResults: Oslo\nAnswer: Oslo", Search("River Ode")),
        ("answer: Anna Holm\nSearch: more", FinalAnswer("Anna Holm")),
        ("The answer is: Anna Holm", FinalAnswer("Anna Holm")),
        ("Search:", BadCall("the query is empty")),
        ("Answer:", BadCall("the line that begins with Answer: is empty")),
        ("Oslo", BadCall("the turn has no line that begins with Search: or Answer:")),
    ],
)
def test_in_plain_lines_the_first_one_counts(text: str, action: Action) -> None:
    assert by_lines(text) == action


def test_a_megabyte_is_read_at_once() -> None:
    assert isinstance(by_lines("* " * 500_000), BadCall)
    assert isinstance(by_calls(" \n" * 500_000)[0], BadCall)


@pytest.mark.parametrize(
    ("tool_format", "knows_tools", "is_plain"),
    [("auto", True, False), ("auto", False, True), ("template", True, False), ("plain", True, True)],
)
def test_the_setting_wins_over_the_template(tool_format: Any, knows_tools: bool, is_plain: bool) -> None:
    assert for_template(HotpotQAConfig(tool_format=tool_format), knows_tools).is_plain == is_plain


def test_parts_of_a_mixture_get_it_too() -> None:
    asked = {"parts": {"lake": {"environment": "frozen_lake"}, "wiki": {"environment": "hotpotqa"}}}
    found = MIXTURE.episodes.for_template(MIXTURE.settings.model_validate(asked), False)
    assert found.parts["wiki"].environment == HotpotQAConfig(tool_format="plain")
    assert found.parts["lake"].environment.type == "frozen_lake"


def config(folder: Path, *settings: str) -> RunConfig:
    """A run whose policy is in a folder."""
    return change_config(
        RunConfig.model_validate(
            {
                "name": "asking",
                "iterations": 1,
                "environment": {"type": "hotpotqa", "task_file": "questions.json"},
                "policy": {"type": "pretrained", "model": str(folder)},
            }
        ),
        settings,
    )


def saved(folder: Path, template: str) -> Path:
    """A folder with only a tokenizer, which has this chat template."""
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_tools_that_a_template_does_not_know_are_refused_before_the_start(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", CHATML.replace(WITH_CALLS, SAID))
    with pytest.raises(InputError, match=r"tool_format: template; .* allowed with it are plain and auto"):
        require_tools_are_known(config(plain, "environment.tool_format=template"))
    require_tools_are_known(config(plain))
    require_tools_are_known(config(plain, "environment.tool_format=plain"))
    calls = CHATML
    require_tools_are_known(config(saved(tmp_path / "calls", calls), "environment.tool_format=template"))


def test_arguments_that_a_template_does_not_read_are_refused_before_the_start(tmp_path: Path) -> None:
    folder = saved(tmp_path / "thinks", "{% if thinking %}<think>{% endif %}" + CHATML)
    require_template_arguments(config(folder))
    require_template_arguments(config(folder, "policy.template_arguments={thinking: false}"))
    with pytest.raises(
        InputError, match=r"policy\.template_arguments: .* does not read think; it reads thinking"
    ):
        require_template_arguments(config(folder, "policy.template_arguments={think: false}"))


def test_tools_are_looked_for_with_the_arguments_of_the_template(tmp_path: Path) -> None:
    folder = saved(tmp_path / "some", CHATML.replace("if tools", "if tools and with_tools"))
    wanted = "environment.tool_format=template"
    with pytest.raises(InputError, match="tool_format: template"):
        require_tools_are_known(config(folder, wanted))
    require_tools_are_known(config(folder, wanted, "policy.template_arguments={with_tools: true}"))
