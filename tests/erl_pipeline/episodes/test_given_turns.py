"""Turns of the policy that were not sampled, as tokens that teach it what to say."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace
from transformers import PreTrainedTokenizerFast

from erl_pipeline.environments.messages import (
    Message,
    assistant_message,
    user_message,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from storage.errors import InputError
from tests.erl_pipeline.episodes.test_dialogue import (
    CHATML,
    chatml_tokenizer,
    end_ids,
    said,
)
from tests.erl_pipeline.episodes.thinking_templates import OFF, THINKS


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
