from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Literal

import pytest
from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Metaspace, Split
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.messages import (
    Message,
    ToolSchema,
    assistant_message,
    tool_message,
    user_message,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.policies.chat_templates import with_arguments
from erl_pipeline.policies.tiny.model import build_tokenizer
from storage.errors import InputError

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


@pytest.mark.parametrize(
    ("ends", "end"),
    [
        (["<|im_end|>", "<eos>"], "<|im_end|>"),
        # Sampling would not end at what the template writes.
        (["<eos>"], "<eos>"),
    ],
)
def test_a_given_turn_ends_as_the_chat_template_ends_turns_if_sampling_ends_there(
    ends: list[str], end: str
) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_special_tokens({"eos_token": "<eos>"})
    turns: list[Message] = [
        {"role": "assistant", "content": "up"},
        user_message("more"),
        {"role": "assistant", "content": "no"},
    ]

    ids, mask = ChatTokenizer(tokenizer).completion(turns, frozenset(tokenizer.convert_tokens_to_ids(ends)))

    left = "" if end == "<|im_end|>" else "<|im_end|>"
    between = f"{left}\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == f"up{end}{between}no{end}"
    untrained = len(tokenizer(between)["input_ids"])
    assert mask == [1, 1, 1, *[0] * untrained, 1, 1, 1]


@pytest.mark.parametrize("own", ["<eos>", None])
def test_a_given_turn_ends_with_a_token_that_the_tokenizer_has(own: str | None) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<eos>"})
    eos = tokenizer.convert_tokens_to_ids("<eos>")
    tokenizer.eos_token = own
    # The vocabulary of a model is often padded, and its configuration names an id of the padding.
    ids, _ = ChatTokenizer(tokenizer).completion(
        [{"role": "assistant", "content": "up"}], frozenset({eos, len(tokenizer) + 5})
    )
    assert ids[-1] == eos


THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set thought, said = '', m.content %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.last or thought %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ said }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""A chat template that opens the thoughts itself, as Qwen3-Thinking-2507's does."""


@pytest.mark.parametrize(
    ("content", "taught"),
    [
        ("The answer is 4.", "\n</think>\n\nThe answer is 4.<|im_end|>"),
        ("<think>\n2+2\n</think>\n\nIt is 4.", "2+2\n</think>\n\nIt is 4.<|im_end|>"),
        ("2+2\n</think>\n\nIt is 4.", "2+2\n</think>\n\nIt is 4.<|im_end|>"),
    ],
)
def test_a_given_turn_ends_the_thoughts_that_the_chat_template_opens(content: str, taught: str) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = THINKS
    chat = ChatTokenizer(tokenizer)
    opening: list[Message] = [{"role": "user", "content": "2+2?"}]
    turn: Message = {"role": "assistant", "content": content}
    ids, mask = chat.completion([turn], end_ids(tokenizer))
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == taught
    assert mask == [1] * len(ids)
    shown = "".join(tokenizer.convert_ids_to_tokens([*chat.prompt(opening), *ids]))
    assert shown + "\n" == tokenizer.apply_chat_template([*opening, turn], tokenize=False)


def test_a_template_that_opens_given_turns_otherwise_is_refused() -> None:
    """As R1-Distill's does: it opens the thoughts, and writes given turns without any."""
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%")
    with pytest.raises(InputError, match=r"assistant's turn with '.*<think>\\n', which it does not"):
        ChatTokenizer(tokenizer).completion([{"role": "assistant", "content": "up"}], end_ids(tokenizer))


def spaced(where: str) -> PreTrainedTokenizerFast:
    """A tokenizer that puts a space before each text between special tokens, or only before the first."""
    characters = ["\u2581", "\n", *sorted(set(map(chr, range(33, 127))))]
    backend = Tokenizer(BPE({c: i for i, c in enumerate([*characters, "\u2581h"])}, [("\u2581", "h")]))
    if where == "each":
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        backend.pre_tokenizer = Metaspace(prepend_scheme="first", split=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("takes_white_space", [False, True])
@pytest.mark.parametrize("where", ["each", "first"])
@pytest.mark.parametrize(
    "template",
    [
        # Zephyr's and TinyLlama's: the words that open a turn are no special token.
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        # Mistral's: a space before what the assistant says.
        "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
    ],
)
def test_given_turns_have_the_tokens_of_the_whole_conversation(
    template: str, where: str, takes_white_space: bool
) -> None:
    """With tokenizers that put a space before texts, and with an end that takes what follows, as Phi-3's."""
    tokenizer = spaced(where)
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"eos_token": AddedToken("</s>", special=True, rstrip=takes_white_space)})
    opening: list[Message] = [{"role": "user", "content": "hello"}]
    turns: list[Message] = [
        {"role": "assistant", "content": "he"},
        user_message("again"),
        {"role": "assistant", "content": "ho ho"},
    ]
    chat = ChatTokenizer(tokenizer)
    ids, mask = chat.completion(turns, end_ids(tokenizer))
    whole = tokenizer.apply_chat_template([*opening, *turns], tokenize=True, return_dict=False)
    last = len(whole) - whole[::-1].index(tokenizer.eos_token_id)
    assert [*chat.prompt(opening), *ids] == whole[:last]
    assert len(mask) == len(ids)


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


HYBRID = CHATML.replace(
    WITH_CALLS,
    "{% if loop.last and message['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}" + WITH_CALLS,
).replace(
    "assistant\n{%",
    "assistant\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{%",
)
"""A chat template of Qwen3's form: with `enable_thinking` false it opens turns with empty thoughts, which it
writes before the last given turn alone."""
OFF = str(with_arguments(HYBRID, {"enable_thinking": False}))


def test_given_turns_are_taught_as_they_are_sampled_with_thinking_switched_off() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = OFF
    chat, ends = ChatTokenizer(tokenizer), end_ids(tokenizer)
    dialogue = Dialogue(chat, [user_message("2+2?")], ends)
    for answer, asked in (("4.", "3+3?"), ("6.", None)):
        dialogue.add_turn(said(tokenizer, f"{answer}<|im_end|>"))
        if asked is not None:
            dialogue.add_messages([user_message(asked)])
    given: list[Message] = [
        {"role": "assistant", "content": "4."},
        user_message("3+3?"),
        {"role": "assistant", "content": "6."},
    ]
    ids, mask = chat.completion(given, ends)
    assert chat.prompt([user_message("2+2?")]) == dialogue.prompt_token_ids
    assert (ids, mask) == (dialogue.response_token_ids, dialogue.response_mask)
    assert "".join(tokenizer.convert_ids_to_tokens(dialogue.token_ids)) == (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n4.<|im_end|>\n"
        "<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n6.<|im_end|>"
    )
    trained = [token for token, bit in zip(ids, mask, strict=True) if bit]
    assert "".join(tokenizer.convert_ids_to_tokens(trained)) == "4.<|im_end|>6.<|im_end|>"


def test_tools_are_known_also_where_the_template_ends_thoughts_before_the_policy_speaks() -> None:
    tokenizer = chatml_tokenizer()
    for template in (HYBRID, OFF):
        tokenizer.chat_template = template
        assert ChatTokenizer(tokenizer).knows_tools


@pytest.mark.parametrize(
    ("template", "opens"), [(CHATML, False), (HYBRID, False), (OFF, False), (THINKS, True)]
)
def test_whether_thoughts_are_opened_is_what_stands_before_the_policy_speaks(
    template: str, opens: bool
) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = template
    chat = ChatTokenizer(tokenizer)
    assert chat.thinks_after(chat.prompt([user_message("<think>")])) == opens


def test_a_turn_that_ends_within_thoughts_that_the_template_opens_has_no_answer() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = THINKS
    dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("2+2?")], end_ids(tokenizer))
    cut_off = dialogue.add_turn(said(tokenizer, "2+2 is 4, so", "length"))
    dialogue.add_messages([user_message("and?")])
    whole = dialogue.add_turn(said(tokenizer, "4\n</think>\n\nIt is 4.<|im_end|>"))
    assert (cut_off.text, whole.text) == ("", "It is 4.")
    assert [each["content"] for each in dialogue.messages] == [
        "2+2?",
        "<think>2+2 is 4, so",  # Else a reader of messages would take it for an answer.
        "and?",
        "4\n</think>\n\nIt is 4.",
    ]
    # All that was sampled is trained, thoughts too: 12 characters, then 20 and the end.
    assert sum(dialogue.response_mask) == 12 + 20 + 1


def test_the_end_of_a_given_turn_is_what_the_template_writes_before_what_follows() -> None:
    """As GLM's, whose turns end with the beginning of the next: of a tool's result another than of a user."""
    tokenizer = chatml_tokenizer()
    marks = ["<|user|>", "<|tool|>", "<|assistant|>"]
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    ends = frozenset(tokenizer.convert_tokens_to_ids(marks[:2]))
    result: Message = {"role": "tool", "content": "7"}
    turns = [assistant_message("look"), result, assistant_message("7.")]
    ids, mask = ChatTokenizer(tokenizer).completion(turns, ends)
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == "look<|tool|>7<|assistant|>7.<|user|>"
    trained = [token for token, bit in zip(ids, mask, strict=True) if bit]
    assert "".join(tokenizer.convert_ids_to_tokens(trained)) == "look<|tool|>7.<|user|>"


def test_a_template_may_open_thoughts_by_what_a_message_says() -> None:
    """As Nemotron-Nano-v2's does: `/no_think` ends them before the policy speaks."""
    tokenizer = chatml_tokenizer()
    opening = "<think>\n{% if '/no_think' in messages[-1].content %}</think>\n{% endif %}"
    tokenizer.chat_template = CHATML.replace("assistant\n{% endif %}", f"assistant\n{opening}{{% endif %}}")
    dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("2+2? /no_think")], end_ids(tokenizer))
    first = dialogue.add_turn(said(tokenizer, "4<|im_end|>"))
    dialogue.add_messages([user_message("and?")])
    second = dialogue.add_turn(said(tokenizer, "4</think>5<|im_end|>"))
    assert [(turn.thoughts, turn.text) for turn in (first, second)] == [("", "4"), ("4</think>", "5")]


@pytest.mark.parametrize("tools", [(), (SEARCH,)])
def test_thoughts_are_told_from_the_answer_also_where_their_marks_are_special_tokens(
    tools: tuple[ToolSchema, ...],
) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in ("<think>", "</think>", "<pad>")])
    dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("2+2?")], end_ids(tokenizer), tools)
    turn = dialogue.add_turn(said(tokenizer, "<think>3?</think><pad>4<|im_end|>"))
    assert (turn.thoughts, turn.text) == ("<think>3?</think>", "4")
