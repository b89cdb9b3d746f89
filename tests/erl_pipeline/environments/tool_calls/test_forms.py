"""What each form reads, and what it says of calls that cannot be read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.environments.messages import read_turn, turn_message
from erl_pipeline.environments.tool_calls.form import CallForm
from erl_pipeline.environments.tool_calls.forms import FORMS
from erl_pipeline.environments.tool_calls.hermes import HERMES
from erl_pipeline.environments.tool_calls.llama import LLAMA
from erl_pipeline.environments.tool_calls.mistral import MISTRAL
from erl_pipeline.environments.tool_calls.tagged import GLM, QWEN3_CODER
from storage.texts import StorableTexts, storable

PROPERTIES = {"a": {"type": "string"}, "n": {"type": "integer"}}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": PROPERTIES}}}
    for name in ("add", "stop")
]
ADD = ("add", {"a": "x", "n": 1})
STOP: tuple[str, dict[str, Any]] = ("stop", {})
LLAMA_ADD = '{"name": "add", "parameters": {"a": "x", "n": 1}}'
MISTRAL_ADD = '{"name": "add", "arguments": {"a": "x", "n": 1}}'
CODER_ADD = (
    "<tool_call>\n<function=add>\n<parameter=a>\nx\n</parameter>\n<parameter=n>\n1\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM_ADD = (
    "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>n</arg_key>\n"
    "<arg_value>1</arg_value>\n</tool_call>"
)


@pytest.mark.parametrize(
    ("form", "text", "calls", "beside"),
    [
        (LLAMA, LLAMA_ADD, [ADD], ""),
        (LLAMA, f" <|python_tag|>{LLAMA_ADD}", [ADD], ""),
        (LLAMA, f'{LLAMA_ADD}; {{"name": "stop", "parameters": {{}}}}', [ADD, STOP], ""),
        (LLAMA, f'{LLAMA_ADD};{{"name": "other", "parameters": {{}}}}', [ADD, ("other", {})], ""),
        (LLAMA, '{"type": "function", "name": "add", "parameters": {"a": "{}"}}', [("add", {"a": "{}"})], ""),
        (LLAMA, MISTRAL_ADD, [ADD], ""),
        (LLAMA, f"{LLAMA_ADD} is what I call;", [ADD], "is what I call;"),
        (LLAMA, f"<think>Hm.</think>\n{LLAMA_ADD}", [ADD], "<think>Hm.</think>"),
        # Answers, and calls in words.
        (LLAMA, '{"name": "Ann", "parameters": {}}', [], '{"name": "Ann", "parameters": {}}'),
        (LLAMA, '{"names": ["add"]}', [], '{"names": ["add"]}'),
        (LLAMA, '[{"name": "add"}]', [], '[{"name": "add"}]'),
        (LLAMA, f"I call {LLAMA_ADD}", [], f"I call {LLAMA_ADD}"),
        # With the tag an object is a call whatever its name.
        (LLAMA, '<|python_tag|>{"name": "Ann", "parameters": {}}', [("Ann", {})], ""),
        (MISTRAL, f"[TOOL_CALLS] [{MISTRAL_ADD}]", [ADD], ""),
        (MISTRAL, f'Well.[TOOL_CALLS][{MISTRAL_ADD}, {{"name": "stop"}}] So.', [ADD, STOP], "Well. So."),
        (MISTRAL, f"[TOOL_CALLS][TOOL_CALLS] [{MISTRAL_ADD}]", [ADD], ""),
        (MISTRAL, f'[TOOL_CALLS][{MISTRAL_ADD[:-1]}, "id": "abcdefghi"}}]', [ADD], ""),
        (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": "x", "n": 1}', [ADD], ""),
        (MISTRAL, '[TOOL_CALLS]add{"a": "x", "n": 1}[TOOL_CALLS]stop{}', [ADD, STOP], ""),
        (MISTRAL, '[TOOL_CALLS] add[CALL_ID]abcdefghi[ARGS] {"a": "x", "n": 1}', [ADD], ""),
        (MISTRAL, "[TOOL_CALLS]stop{}[TOOL_CALLS]stop{}", [STOP, STOP], ""),
        (MISTRAL, '[TOOL_CALLS]add{"a": "[TOOL_CALLS]x{}"}', [("add", {"a": "[TOOL_CALLS]x{}"})], ""),
        (QWEN3_CODER, f"I add. {CODER_ADD}\n{CODER_ADD}", [ADD, ADD], "I add."),
        (QWEN3_CODER, "<tool_call><function=stop></function></tool_call>", [STOP], ""),
        (
            QWEN3_CODER,
            "<tool_call>\n<function=add>\n<parameter=a>\n\n  <b>\nc\n\n</parameter>\n</function></tool_call>",
            [("add", {"a": "\n  <b>\nc\n"})],
            "",
        ),
        (
            QWEN3_CODER,
            "<tool_call><function=add><parameter=n>x</parameter><parameter=m>1</parameter></function></tool_call>",
            [("add", {"n": "x", "m": "1"})],
            "",
        ),
        (GLM, f"I add.\n{GLM_ADD}", [ADD], "I add."),
        (GLM, GLM_ADD.replace("\n", ""), [ADD], ""),
        (GLM, "<tool_call>stop</tool_call>", [STOP], ""),
    ],
)
def test_calls_are_read(form: CallForm, text: str, calls: Any, beside: str) -> None:
    turn = read_turn(text, 0, StorableTexts(), form, TOOLS)
    assert [each.problem for each in turn.tool_calls] == [None] * len(calls)
    assert [(each.name, each.arguments) for each in turn.tool_calls] == calls
    assert turn_message(turn)["content"] == beside


@pytest.mark.parametrize(
    ("form", "text", "problems"),
    [
        (LLAMA, LLAMA_ADD[:-2], ["the call is not JSON: Expecting ',' delimiter"]),
        (LLAMA, '{"name": "add"}', ['the call has no "parameters"']),
        (LLAMA, '{"name": "add", "parameters": "x"}', ['"parameters" is no JSON object']),
        (LLAMA, '{"name": "add", "parameters": {"n": NaN}}', ["the call is not JSON: NaN is no number"]),
        (LLAMA, '{"name": "add", "parameters": {"n": 1e999}}', ["the call has a number that is too large"]),
        (LLAMA, '{"name": "add", "a": ' + "[" * 100_000, ["the call is nested deeper than 64 levels"]),
        (LLAMA, "<|python_tag|>print(1)", ["the call is not JSON: Expecting value"]),
        (LLAMA, "<|python_tag|>[1]", ['the call is no JSON object with a "name"']),
        (LLAMA, f'{LLAMA_ADD}; {{"a": 1}}; {{', [None, 'no JSON object with a "name"', "is not JSON"]),
        (MISTRAL, "[TOOL_CALLS]", ["the call is no name with a JSON object behind it"]),
        (MISTRAL, "[TOOL_CALLS][]", ["the call is not JSON: Expecting value"]),
        (MISTRAL, f"[TOOL_CALLS][{MISTRAL_ADD}, 7]", [None, 'no JSON object with a "name"']),
        (MISTRAL, f"[TOOL_CALLS][{MISTRAL_ADD}, {{", [None, "the call is not JSON"]),
        (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": [TOOL_CALLS]stop{}', ["the call is not JSON", None]),
        (MISTRAL, "[TOOL_CALLS]add[ARGS][1]", ["the call is no name with a JSON object behind it"]),
        (MISTRAL, '[TOOL_CALLS]{"name": "add"}', ["the call is no name with a JSON object behind it"]),
        (QWEN3_CODER, CODER_ADD.removesuffix("\n</tool_call>"), ["the call has no </tool_call>"]),
        (QWEN3_CODER, CODER_ADD.replace("</function>", ""), ["no <function=name>...</function>"]),
        (QWEN3_CODER, CODER_ADD.replace("</parameter>\n<p", "<p"), ["else in it than <parameter=name>"]),
        (QWEN3_CODER, CODER_ADD.replace("</parameter>\n</", "</"), ["else in it than <parameter=name>"]),
        (QWEN3_CODER, f"<tool_call>{MISTRAL_ADD}</tool_call>", ["no <function=name>...</function>"]),
        (GLM, GLM_ADD.replace("</arg_value>\n</", "</"), ["something else in it than <arg_key>"]),
        (GLM, "<tool_call>\n</tool_call>", ["the call has no name"]),
    ],
)
def test_an_ill_formed_call_stays_text_and_says_what_is_wrong(
    form: CallForm, text: str, problems: list[str | None]
) -> None:
    turn = read_turn(text, 0, StorableTexts(), form, TOOLS)
    assert len(turn.tool_calls) == len(problems)
    for call, problem in zip(turn.tool_calls, problems, strict=True):
        assert (call.problem is None) == (problem is None)
        assert problem is None or problem in (call.problem or "")
    if None not in problems:
        assert turn_message(turn) == {"role": "assistant", "content": text}


def test_halves_of_characters_in_values_are_replaced_and_counted() -> None:
    properties = {"a": {"type": "array"}}
    tools: Any = [{"function": {"name": "add", "parameters": {"properties": properties}}}]
    texts = StorableTexts()
    text = CODER_ADD.replace("\nx\n", '\n["\\ud83d"]\n')
    (call,) = read_turn(text, 0, texts, QWEN3_CODER, tools).tool_calls
    assert call.arguments == {"a": ["\ufffd"], "n": "1"}
    assert texts.replaced == 1


PIECES = [
    *("<tool_call>", "</tool_call>", "<function=add>", "</function>", "<parameter=a>", "</parameter>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "; ", ", ", "[", "]", "{", "}", "add", "\n"),
    *(LLAMA_ADD, MISTRAL_ADD, CODER_ADD, GLM_ADD, '"\\ud83d"', "\ud83d", "1e999", '{"n": NaN}', '"', "\\"),
]


@pytest.mark.parametrize("form", FORMS)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_whatever_is_said_is_read_and_can_be_stored(form: CallForm, text: str) -> None:
    turn = read_turn(text, 0, StorableTexts(), form, TOOLS)
    written = json.dumps([turn_message(turn), [each.problem for each in turn.tool_calls]])
    assert storable(text) == turn.thoughts + turn.text
    assert json.loads(written)[0] == turn_message(turn)
    assert "\\ud83d" not in written.replace("\\\\ud83d", "")


@pytest.mark.parametrize("form", FORMS)
@given(st.lists(st.sampled_from([each for each in PIECES if "think" not in each]), max_size=8).map("".join))
def test_a_call_stays_found_whatever_is_said_behind_it(form: CallForm, text: str) -> None:
    """So the tokens up to the first call can be searched for."""
    found: list[tuple[int, str]] = []
    for end in range(len(text) + 1):
        calls = form.find(text[:end], 0, TOOLS, StorableTexts())
        good = [(each.begin, each.called.name) for each in calls if each.called.problem is None]
        assert good[: len(found)] == found
        found = good


def test_the_calls_of_hermes_form_are_what_they_were() -> None:
    """Word for word what was read before other forms were."""
    text = f"<think>{MISTRAL_ADD}</think> a <tool_call>{MISTRAL_ADD}</tool_call> b <tool_call>[</tool_call> "
    turn = read_turn(text, 3, StorableTexts(), HERMES, TOOLS)
    assert [(each.call_id, each.name) for each in turn.tool_calls] == [
        ("call00300", "add"),
        ("call00301", ""),
    ]
    assert turn_message(turn)["content"] == f"<think>{MISTRAL_ADD}</think> a  b <tool_call>[</tool_call>"
