from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Literal

import pytest
from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.messages import (
    Message,
    ToolSchema,
    tool_message,
    user_message,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.policies.tiny.model import build_tokenizer

WORDS = ["@", "#", "notes", "?", "up", "left", "a", "b", "bump", "c3"]
SEARCH: ToolSchema = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find pages.",
        "parameters": {"type": "object", "properties": {"for": {"type": "string"}}},
    },
}
SAID = "{{ message['content'] | trim }}"
WITH_CALLS = (
    SAID + "{% for call in message['tool_calls'] or [] %}<tool_call>"
    "{{ call['function'] | tojson }}</tool_call>{% endfor %}"
)
"""The part of a chat template for an assistant's turn with tool calls."""
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{% if message['role'] == 'tool' %}"
    "user\n<tool_response>{{ message['content'] }}</tool_response>"
    "{% else %}{{ message['role'] }}\n" + WITH_CALLS + "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chatml_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character, and the two markers of the ChatML template."""
    characters = sorted(set(map(chr, range(32, 127))) | {"\n"})
    tokenizer = Tokenizer(WordLevel({c: i for i, c in enumerate(characters)}))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML)
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    return fast


def end_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    return frozenset({tokenizer.eos_token_id})


def said(
    tokenizer: PreTrainedTokenizerFast, text: str, reason: Literal["stop", "length"] = "stop"
) -> Generation:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return Generation(tuple(ids), (-0.5,) * len(ids), reason)


@pytest.mark.parametrize("end", ["<|im_end|>", ""])
def test_a_dialogue_in_ids_reads_as_its_chat_template(end: str) -> None:
    """Also when a turn was cut off: then the environment's tokens contain its end."""
    tokenizer = chatml_tokenizer()
    dialogue = Dialogue(ChatTokenizer(tokenizer), [{"role": "user", "content": "board"}], end_ids(tokenizer))
    assert dialogue.add_turn(said(tokenizer, f"go up{end}", "stop" if end else "length")).text == "go up"
    dialogue.add_messages([user_message("you moved")])

    expected = tokenizer.apply_chat_template(dialogue.messages, tokenize=False, add_generation_prompt=True)
    assert [m["content"] for m in dialogue.messages] == ["board", "go up", "you moved"]
    assert "".join(tokenizer.convert_ids_to_tokens(dialogue.token_ids)) == expected
    assert dialogue.truncated == (end == "")


def test_only_sampled_tokens_are_trained() -> None:
    tokenizer = build_tokenizer(WORDS, 128)
    dialogue = Dialogue(
        ChatTokenizer(tokenizer), [{"role": "user", "content": "@ # notes ? ?"}], end_ids(tokenizer)
    )
    dialogue.add_turn(said(tokenizer, "up a <end>"))
    dialogue.add_messages([user_message("bump c3")])
    dialogue.add_turn(said(tokenizer, "left b <end>"))

    words = tokenizer.convert_ids_to_tokens(dialogue.token_ids)
    assert " ".join(words) == (
        "<bos> <user> @ # notes ? ? <assistant> up a <end> <user> bump c3 <assistant> left b <end>"
    )
    assert dialogue.response_mask == [1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert dialogue.behaviour_logprobs == [-0.5] * 3 + [0.0] * 4 + [-0.5] * 3


def test_sampled_ids_are_kept_even_where_their_text_would_tokenize_otherwise() -> None:
    """Special tokens in the middle of an answer vanish from its text, not from its ids."""
    tokenizer = build_tokenizer(WORDS, 128)
    dialogue = Dialogue(ChatTokenizer(tokenizer), [{"role": "user", "content": "@"}], end_ids(tokenizer))
    ids = tokenizer.convert_tokens_to_ids(["<user>", "up", "<pad>", "a", "<end>"])

    assert dialogue.add_turn(Generation(tuple(ids), (-1.0,) * 5, "stop")).text == "up a"
    assert dialogue.response_token_ids == ids


def test_tools_stand_in_the_prompt_and_their_answers_between_the_turns() -> None:
    """In ids, a conversation with tool calls reads as its chat template, token for token."""
    tokenizer = chatml_tokenizer()
    opening: list[Message] = [{"role": "user", "content": "which page"}]
    dialogue = Dialogue(ChatTokenizer(tokenizer), opening, end_ids(tokenizer), [SEARCH])
    call = '<tool_call>{"name": "search", "arguments": {"for": "lakes"}}</tool_call>'
    turn = dialogue.add_turn(said(tokenizer, f"i look {call}<|im_end|>"))
    (called,) = turn.tool_calls
    assert (called.name, dict(called.arguments), called.problem) == ("search", {"for": "lakes"}, None)
    dialogue.add_messages([tool_message(called, "page 7")])

    expected = tokenizer.apply_chat_template(
        [
            *opening,
            {"role": "assistant", "content": f"i look {call}"},
            {"role": "tool", "content": "page 7", "tool_call_id": called.call_id, "name": "search"},
        ],
        tools=[SEARCH],
        tokenize=False,
        add_generation_prompt=True,
    )
    shown = "".join(tokenizer.convert_ids_to_tokens(dialogue.token_ids))
    assert shown == expected
    assert '"name": "search"' in shown.split("<|im_start|>user")[0]
    assert "<tool_response>page 7</tool_response>" in shown
    assert dialogue.messages[1:] == [
        {
            "role": "assistant",
            "content": "i look",
            "tool_calls": [
                {
                    "id": called.call_id,
                    "type": "function",
                    "function": {"name": "search", "arguments": {"for": "lakes"}},
                }
            ],
        },
        {"role": "tool", "content": "page 7", "tool_call_id": called.call_id, "name": "search"},
    ]


def test_tool_calls_are_read_also_where_their_markers_are_special_tokens() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", "<tool_call>", "</tool_call>"]}
    )
    opening: list[Message] = [{"role": "user", "content": "which page"}]
    dialogue = Dialogue(ChatTokenizer(tokenizer), opening, end_ids(tokenizer), [SEARCH])
    turn = dialogue.add_turn(said(tokenizer, '<tool_call>{"name": "search"}</tool_call><|im_end|>'))
    assert [call.name for call in turn.tool_calls] == ["search"]
    without_tools = Dialogue(ChatTokenizer(tokenizer), opening, end_ids(tokenizer))
    assert without_tools.add_turn(said(tokenizer, "ok<|im_end|>")).tool_calls == ()


def test_without_an_opening_there_are_no_tokens() -> None:
    tokenizer = build_tokenizer(WORDS, 128)
    assert Dialogue(ChatTokenizer(tokenizer), (), end_ids(tokenizer)).token_ids == ()


def test_a_template_knows_tools_that_shows_them_and_writes_calls_as_they_are_read() -> None:
    tokenizer = chatml_tokenizer()

    def knows(template: str) -> bool:
        tokenizer.chat_template = template
        return ChatTokenizer(tokenizer).knows_tools

    with_calls = CHATML
    assert knows(with_calls)
    assert not knows(with_calls.replace(WITH_CALLS, SAID))  # a call would be written as nothing
    assert not knows(with_calls.replace("if tools", "if false"))
    assert not knows(with_calls.replace("<tool_call>", "[TOOL_CALLS]"))
    in_xml = "<function={{ call['function']['name'] }}></function>"
    assert not knows(with_calls.replace("{{ call['function'] | tojson }}", in_xml))
    # As in Hermes' own template, and in one that cannot be rendered.
    assert knows(with_calls.replace("if tools", "if tools and tools[0].function.parameters.properties.items"))
    assert not knows(with_calls.replace("call['function']", "call['function'].parameters.properties"))


def test_a_special_token_without_a_name_and_the_end_are_not_said() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_tokens([AddedToken("<file_sep>", special=True), AddedToken("<stop>", special=False)])
    sep, stop = tokenizer.convert_tokens_to_ids(["<file_sep>", "<stop>"])
    ends = frozenset({tokenizer.eos_token_id, stop})
    for tools in ([], [SEARCH]):
        dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("hi")], ends, tools)
        answer = (*tokenizer("Paris", add_special_tokens=False)["input_ids"], sep, stop)
        assert dialogue.add_turn(Generation(answer, (-0.5,) * len(answer), "stop")).text == "Paris"


def test_what_a_template_cannot_compute_is_an_error_of_the_template() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = "{{ messages[-1]['content'] + 1 }}"
    with pytest.raises(TemplateError, match="TypeError"):
        ChatTokenizer(tokenizer).prompt([user_message("hi")])


def test_a_date_in_the_prompt_is_the_same_on_all_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of Llama 3.2's chat template, on two days."""
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = (
        "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
        '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}'
        '{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}'
        '{{- "Today Date: " + date_string + "\n\n" }}' + CHATML
    )

    class Clock(datetime):
        day = 28

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Clock:
            return cls(2026, 11, cls.day, tzinfo=tz)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    opening: list[Message] = [{"role": "user", "content": "2+2?"}]
    before = ChatTokenizer(tokenizer).prompt(opening)
    Clock.day = 29
    assert ChatTokenizer(tokenizer).prompt(opening) == before
    shown = "".join(tokenizer.convert_ids_to_tokens(before))
    assert shown.startswith("Today Date: 26 Jul 2024\n\n<|im_start|>user")
    assert "29 Nov 2026" in str(tokenizer.apply_chat_template(opening, tokenize=False))


def test_what_the_environment_repeats_of_the_policy_does_not_cut_the_prompt() -> None:
    """The text between two turns is rendered around a stand-in for the policy's words, which it may say."""
    tokenizer = chatml_tokenizer()
    chat = ChatTokenizer(tokenizer)
    said_so = [user_message("there is no tool @@assistant-turn@@ here")]
    between = chat.between_turns(said_so, tokenizer.eos_token_id)
    assert chat.text(between) == "user\nthere is no tool @@assistant-turn@@ here\nassistant"


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that were made tokens of, in thousands of characters."""
    made: list[int] = []
    ids = ChatTokenizer._ids

    def noted(chat: ChatTokenizer, text: str) -> tuple[int, ...]:
        made.append(len(text) // 1000)
        return ids(chat, text)

    monkeypatch.setattr(ChatTokenizer, "_ids", noted)
    return made


def test_a_tokenizer_keeps_the_tokens_of_short_messages_only(tokenized: list[int]) -> None:
    chat = ChatTokenizer(chatml_tokenizer())
    for size in (1000, 1000, 20_000, 20_000):
        messages = [user_message("x" * size)]
        assert chat.prompt(messages)
        assert chat.between_turns(messages, None)

    assert tokenized == [1, 1, 20, 20, 20, 20]


def test_whether_long_tools_are_shown_is_found_out_once(tokenized: list[int]) -> None:
    chat = ChatTokenizer(chatml_tokenizer())
    tools: list[ToolSchema] = [
        {"type": "function", "function": {"name": "look", "description": "x" * 20_000}}
    ]
    for shown in (tools, tools, []):
        assert chat.shows(shown) == bool(shown)
    assert tokenized == [20, 0]


@pytest.mark.parametrize("before", ["", " ", "\n"])
def test_white_space_that_the_template_writes_before_the_end_gives_no_second_end(before: str) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
        + before
        + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    between = ChatTokenizer(tokenizer).between_turns([user_message("more")], tokenizer.eos_token_id)
    written = "".join(tokenizer.convert_ids_to_tokens(between))
    assert written == f"\nuser: more{before}<|im_end|>\nassistant: "
