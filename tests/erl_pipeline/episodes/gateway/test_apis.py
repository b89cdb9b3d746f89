"""Responses and Anthropic's messages, asked by the clients of their makers: they say the same as chat."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message, ToolUseBlock
from openai.types.responses import Response, ResponseFunctionToolCall

from erl_pipeline.environments.agent.attempts import AgentTask
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.episodes.gateway import anthropic_api, responses_api
from erl_pipeline.episodes.gateway.anthropic_api import ANTHROPIC
from erl_pipeline.episodes.gateway.api import Api, ChatCompletion, Choice, RequestRefused
from erl_pipeline.episodes.gateway.chat_api import CHAT
from erl_pipeline.episodes.gateway.responses_api import RESPONSES
from erl_pipeline.episodes.gateway.sequences import Answer
from tests.erl_pipeline.episodes.gateway.agents import client
from tests.erl_pipeline.episodes.gateway.playing import END, only, played, text

SEARCH: Any = {"name": "search", "description": "Find pages.", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f"}
GO: Any = [{"role": "user", "content": "go"}]
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
CALLS = (
    'look <tool_call>{"name": "search", "arguments": {"for": "lakes"}}</tool_call>'
    '<tool_call>{"name": "search", "arguments": {"for": "ice"}}</tool_call>'
)
RESULTS = (
    "<|im_start|>user\n<tool_response>page on lakes</tool_response>"
    f"{END}\n<|im_start|>user\n<tool_response>page on ice</tool_response>{END}\n<|im_start|>assistant\n7{END}"
)


def says(prompt: str) -> str:
    return "7" if "page on ice" in prompt else CALLS


def by_responses(task: AgentTask, *, stream: bool, dump: bool = False) -> dict[str, Any]:
    """Sends each answer back as the items that it was; with `dump` as all their fields."""
    items: Any = [{"role": "user", "content": task.prompt}]
    given: Any = {"instructions": "be brief", "tools": [{"type": "function", **SEARCH}], "temperature": 0.1}
    while True:
        answer = _response(task, stream, model="any", input=items, **given)
        items += [each.model_dump() for each in answer.output] if dump else answer.output
        calls = [each for each in answer.output if isinstance(each, ResponseFunctionToolCall)]
        if not calls:
            assert answer.usage is not None
            return {"answer": answer.output_text, "metrics": {"said": answer.usage.output_tokens}}
        for call in calls:
            found = f"page on {json.loads(call.arguments)['for']}"
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": found})


def _response(task: AgentTask, stream: bool, **asked: Any) -> Response:
    if not stream:
        answer: Response = client(task).responses.create(**asked)
        return answer
    with client(task).responses.stream(**asked) as events:
        return events.get_final_response()


def asks_by_responses(task: AgentTask) -> dict[str, Any]:
    return by_responses(task, stream=False)


def streams_by_responses(task: AgentTask) -> dict[str, Any]:
    return by_responses(task, stream=True)


def dumps_by_responses(task: AgentTask) -> dict[str, Any]:
    return by_responses(task, stream=False, dump=True)


def by_messages(task: AgentTask, *, stream: bool, dump: bool = False) -> dict[str, Any]:
    """Sends each answer back as the blocks that it was; with `dump` as all their fields."""
    asked = anthropic.Anthropic(base_url=task.anthropic_url, api_key=task.api_key)
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": task.prompt}]}]
    tool = {"name": "search", "description": "Find pages.", "input_schema": {"type": "object"}}
    given: Any = {"model": "any", "max_tokens": 1000, "system": "be brief", "tools": [tool]}
    given["extra_body"] = {"top_k": 5}
    while True:
        answer = _message(asked, stream, messages=messages, **given)
        blocks = [each.model_dump() for each in answer.content] if dump else answer.content
        messages.append({"role": "assistant", "content": blocks})
        calls = [each for each in answer.content if isinstance(each, ToolUseBlock)]
        if not calls:
            assert answer.stop_reason == "end_turn"
            (block,) = answer.content
            return {"answer": block.text, "metrics": {"said": answer.usage.output_tokens}}  # type: ignore[union-attr]
        assert answer.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": f"page on {call.input['for']}"}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


def _message(asked: anthropic.Anthropic, stream: bool, **given: Any) -> Message:
    if not stream:
        answer: Message = asked.messages.create(**given)
        return answer
    with asked.messages.stream(**given) as events:
        return events.get_final_message()


def asks_by_messages(task: AgentTask) -> dict[str, Any]:
    return by_messages(task, stream=False)


def streams_by_messages(task: AgentTask) -> dict[str, Any]:
    return by_messages(task, stream=True)


def dumps_by_messages(task: AgentTask) -> dict[str, Any]:
    return by_messages(task, stream=False, dump=True)


def streams_by_chat(task: AgentTask) -> dict[str, Any]:
    """Sends each answer back as OpenAI's library has put it together."""
    messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": task.prompt}]
    given: Any = {"tools": [{"type": "function", "function": SEARCH}], "temperature": 0.1}
    given["stream_options"] = {"include_usage": True}
    while True:
        with client(task).chat.completions.stream(model="any", messages=messages, **given) as events:
            answer = events.get_final_completion()
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            assert answer.usage is not None
            return {"answer": message.content, "metrics": {"said": answer.usage.completion_tokens}}
        for call in message.tool_calls:
            found = f"page on {json.loads(call.function.arguments)['for']}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


@pytest.mark.parametrize(
    "agent",
    [
        asks_by_responses,
        streams_by_responses,
        dumps_by_responses,
        asks_by_messages,
        streams_by_messages,
        dumps_by_messages,
        streams_by_chat,
    ],
)
def test_tools_are_called_and_answered_in_one_sequence(agent: Any) -> None:
    """The items or blocks of an answer, which the agent sends back, are one message again."""
    episodes = played(agent, says, reward="scorer")
    row = only(episodes)
    assert (row.reward, row.finish_reason, episodes.further) == (1.0, "done", [])
    opening = f"<|im_start|>system\nbe brief{END}\n<|im_start|>user\nhow many?{END}\n<|im_start|>assistant\n"
    assert text(row.prompt_token_ids).endswith(opening)
    assert text(row.response_token_ids) == f"{CALLS}{END}\n{RESULTS}"
    assert sum(row.response_mask) == len(CALLS) + 1 + 2
    assert json.loads(row.metrics) == {"calls": 2.0, "overridden_calls": 2.0, "sequences": 1.0, "said": 2.0}


THOUGHTS = '<think>\nIce? <tool_call>{"name": "search"}</tool_call>\n</think>\n\n'


@pytest.mark.parametrize(
    "agent", [dumps_by_responses, streams_by_messages, dumps_by_messages, streams_by_chat]
)
def test_agents_are_told_answers_without_thoughts_and_their_tokens_stay_in_the_sequence(agent: Any) -> None:
    """What the agent sends back has no thoughts, so the turn is found again without them."""

    def thinks(prompt: str) -> str:
        return THOUGHTS + says(prompt)

    episodes = played(agent, thinks, reward="scorer")
    row = only(episodes)
    assert (row.reward, row.finish_reason, episodes.further) == (1.0, "done", [])
    results = RESULTS.removesuffix(f"7{END}")
    assert text(row.response_token_ids) == f"{THOUGHTS}{CALLS}{END}\n{results}{THOUGHTS}7{END}"
    assert sum(row.response_mask) == 2 * len(THOUGHTS) + len(CALLS) + 1 + 2
    said = [each["content"] for each in json.loads(row.messages) if each["role"] == "assistant"]
    assert said == [f"{THOUGHTS}look", f"{THOUGHTS}7"]


def tells_its_thoughts(task: AgentTask) -> dict[str, Any]:
    message: Any = client(task).chat.completions.create(model="any", messages=GO).choices[0].message
    return {"reward": 0.0, "feedback": f"{message.content!r} for {message.reasoning_content!r}"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("<think>\nIce.\n</think>\n\n7", ("7", "Ice.")),
        ("<think>\nIce has no end", ("", "Ice has no end")),
    ],
)
def test_thoughts_stand_beside_the_answer_of_a_chat_completion(said: str, told: tuple[str, str]) -> None:
    row = only(played(tells_its_thoughts, lambda _: said))
    assert json.loads(row.messages)[-1]["content"] == said
    assert row.feedback == f"{told[0]!r} for {told[1]!r}"


def runs_tools(task: AgentTask) -> dict[str, Any]:
    """Anthropic's runner of tools asks for a thread first."""

    def search(**asked: Any) -> str:
        return f"page on {asked['for']}"

    tool = anthropic.beta_tool(search, input_schema={"type": "object"})
    asked = anthropic.Anthropic(base_url=task.anthropic_url, api_key=task.api_key)
    given: Any = [{"role": "user", "content": task.prompt}]
    runner = asked.beta.messages.tool_runner(model="any", max_tokens=1000, messages=given, tools=[tool])
    (block,) = runner.until_done().content
    return {"answer": block.text}  # type: ignore[union-attr]


def test_anthropics_runner_of_tools_goes_on_without_a_thread() -> None:
    episodes = played(runs_tools, says, reward="scorer")
    row = only(episodes)
    assert (row.reward, episodes.further) == (1.0, [])
    assert json.loads(row.metrics) == {"calls": 2.0, "refused_calls": 1.0, "sequences": 1.0}


def reaches_limits(task: AgentTask) -> dict[str, Any]:
    """What an answer says that a limit or a stop text has ended, and a context without room."""
    told: Any = {"model": "any", "messages": [{"role": "user", "content": task.prompt}], "max_tokens": 2}
    asked = anthropic.Anthropic(base_url=task.anthropic_url, api_key=task.api_key)
    stopped = asked.messages.create(**{**told, "max_tokens": 9}, stop_sequences=["dle", "d"])
    cut = asked.messages.create(**told)
    response = client(task).responses.create(model="any", input=task.prompt, max_output_tokens=2)
    assert (stopped.stop_reason, stopped.stop_sequence, cut.stop_reason) == (
        "stop_sequence",
        "d",
        "max_tokens",
    )
    assert (stopped.content[0].text, response.status) == ("mi", "incomplete")
    assert response.incomplete_details is not None
    long: Any = [{"role": "user", "content": "x" * 200}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        asked.messages.create(**{**told, "messages": long})
    with pytest.raises(openai.BadRequestError) as refused:
        client(task).responses.create(model="any", input="x" * 200)
    return {"reward": 1.0, "feedback": str(refused.value.code)}


def test_limits_are_told_in_the_words_of_each_api() -> None:
    row = only(played(reaches_limits, lambda prompt: "middle"[:4], context_length=160))
    assert row.feedback == "context_length_exceeded"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.message"),
        ({"input": [{**CALL, "arguments": "["}]}, "input.0"),
        ({"input": [{**CALL, "arguments": '{"a": 1e400}'}]}, "input.0"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.type"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"seed": 1}, "seed"),
    ],
)
def test_responses_that_cannot_be_honoured_are_refused_by_name(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        responses_api.read_request(json.dumps({"input": "go", **changed}).encode())
    assert (refused.value.param or "").startswith(field)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "content": "It is"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages.0.content.0"),
        ({"tools": [{"name": "f", "input_schema": {"a": 1e400}}]}, "tools.0.input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"mcp_servers": []}, "mcp_servers"),
    ],
)
def test_messages_that_cannot_be_honoured_are_refused_by_name(changed: dict[str, Any], field: str) -> None:
    good = {"max_tokens": 5, "messages": [{"role": "user", "content": "go"}]}
    with pytest.raises(RequestRefused) as refused:
        anthropic_api.read_request(json.dumps({**good, **changed}).encode())
    assert (refused.value.param or "").startswith(field)


def test_a_null_of_a_tool_or_a_result_asks_for_nothing() -> None:
    schema: Any = {"input_schema": {"type": "object"}}
    result: dict[str, Any] = {
        "type": "function_call_output",
        "call_id": "c",
        "output": "page",
        "caller": None,
    }
    asked: list[tuple[Api, dict[str, Any]]] = [
        (RESPONSES, {"input": [result], "tools": [{"type": "function", **SEARCH, "allowed_callers": None}]}),
        (ANTHROPIC, {"messages": GO, "max_tokens": 5, "tools": [{"name": "f", **schema, "new": None}]}),
    ]
    for api, body in asked:
        assert len(api.read(json.dumps(body).encode()).tools) == 1
    result["caller"] = {"type": "program", "caller_id": "p"}
    with pytest.raises(RequestRefused, match="caller is not supported"):
        RESPONSES.read(json.dumps({"input": [result]}).encode())


@pytest.mark.parametrize(
    ("api", "asked", "wished"),
    [
        (CHAT, {"messages": GO}, {"parallel_tool_calls": False}),
        (RESPONSES, {"input": "go"}, {"parallel_tool_calls": False}),
        (
            ANTHROPIC,
            {"max_tokens": 5, "messages": GO},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
    ],
)
def test_each_api_can_ask_for_one_call_only(api: Api, asked: dict[str, Any], wished: dict[str, Any]) -> None:
    assert api.read(json.dumps({**asked, **wished}).encode()).one_call
    assert not api.read(json.dumps(asked).encode()).one_call


@pytest.mark.parametrize("one_call", [False, True])
def test_an_answer_of_the_responses_api_says_whether_it_could_call_several_tools(one_call: bool) -> None:
    answer = Answer(AssistantTurn("done"), tokens=1, cut_off=False)
    completion = ChatCompletion("call", "policy", [Choice(answer, 0.0)], 3, one_call=one_call)
    assert RESPONSES.answer(completion)["parallel_tool_calls"] is not one_call


def is_refused(task: AgentTask) -> dict[str, Any]:
    with pytest.raises(anthropic.PermissionDeniedError, match="ended"):
        anthropic.Anthropic(base_url=task.anthropic_url, api_key="guessed").messages.create(
            model="any", max_tokens=1, messages=[{"role": "user", "content": "go"}]
        )
    with pytest.raises(openai.BadRequestError, match="background"):
        client(task).responses.create(model="any", input="go", background=True)
    client(task).responses.create(model="any", input="go")
    return {"reward": 1.0}


def test_clients_read_refusals_as_those_of_their_api() -> None:
    row = only(played(is_refused, lambda prompt: "7"))
    assert (row.reward, json.loads(row.metrics)["refused_calls"]) == (1.0, 1.0)
