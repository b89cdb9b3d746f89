"""Files of conversations, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.environments.messages import Message, read_turn
from erl_pipeline.stages.training.conversations import (
    Conversation,
    as_conversation,
    conversation_sequences,
    read_conversations,
    write_conversations,
)
from storage.errors import InputError
from storage.texts import StorableTexts
from tests.erl_pipeline.episodes.call_templates import FAMILIES
from tests.random_models import byte_tokenizer, save_byte_llama

ASKED: Message = {"role": "user", "content": "a b"}
SAID: Message = {"role": "assistant", "content": "a"}


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_conversations_are_read_from_both_kinds_of_files(tmp_path: Path) -> None:
    path = lines(tmp_path, {"messages": [ASKED, SAID, ASKED, SAID], "more": 1}, {"messages": [ASKED, SAID]})
    read = read_conversations(path, StorableTexts())
    assert [each.messages for each in read] == [[ASKED, SAID, ASKED, SAID], [ASKED, SAID]]
    pl.DataFrame({"messages": [[ASKED, SAID]]}).write_parquet(tmp_path / "rows.parquet")
    assert read_conversations(tmp_path / "rows.parquet", StorableTexts()) == [as_conversation([ASKED, SAID])]
    # A path is no pattern: this one would match another file.
    pl.DataFrame({"messages": [[ASKED, SAID]] * 2}).write_parquet(tmp_path / "data[1].parquet")
    pl.DataFrame({"messages": [[ASKED, SAID]]}).write_parquet(tmp_path / "data1.parquet")
    assert len(read_conversations(tmp_path / "data[1].parquet", StorableTexts())) == 2


def test_a_file_may_have_a_mark_of_its_order_and_blank_lines_but_no_other_encoding(tmp_path: Path) -> None:
    path = lines(tmp_path, {"messages": [ASKED, SAID]})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\n\n" + path.read_bytes())
    assert len(read_conversations(path, StorableTexts())) == 2
    path.write_bytes(path.read_bytes() + b'{"messages": "\xe9"}')
    with pytest.raises(InputError, match="row 5: is not JSON"):
        read_conversations(path, StorableTexts())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [SAID]}, "a user's message and an assistant's after it"),
        ({"messages": [ASKED]}, "a user's message and an assistant's after it"),
        ({"messages": [SAID, ASKED, SAID]}, "a user's message and an assistant's after it"),
        ({"messages": [{"role": "u"}]}, "messages with `role` and `content`"),
        ({"prompt": "a"}, "messages with `role` and `content`"),
        ([1], "must be an object"),
        ({"prompt": [SAID], "completion": [SAID]}, "a prompt begins with another's message"),
        ({"prompt": [ASKED], "completion": [ASKED]}, "a completion with the assistant's"),
        ({"prompt": [ASKED], "completion": [SAID], "tools": "{}"}, "tools: allowed is a list"),
        ({"prompt": [ASKED], "completion": [SAID], "tools": "["}, "is not JSON"),
    ],
)
def test_a_wrong_row_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 1") as error:
        read_conversations(lines(tmp_path, row), StorableTexts())
    assert said in str(error.value)


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it holds no rows"):
        read_conversations(lines(tmp_path), StorableTexts())


def test_a_prompt_and_a_completion_stay_apart_in_a_file(tmp_path: Path) -> None:
    """What was answered before is not taught again, and tools are kept."""
    rows = [
        Conversation([ASKED, SAID, ASKED], [SAID]),
        Conversation([ASKED], [SAID], '[{"type": "function"}]'),
        as_conversation([ASKED, SAID]),
    ]
    write_conversations(tmp_path / "rows.jsonl", rows)
    assert read_conversations(tmp_path / "rows.jsonl", StorableTexts()) == rows
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[2]) == {"messages": [ASKED, SAID]}


WITH_TOOLS = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% for c in m['tool_calls'] or [] %}"
    "<tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}assistant: "
)


def test_tools_are_shown_and_what_was_answered_before_is_not_taught(tmp_path: Path) -> None:
    model = save_byte_llama(tmp_path, positions=192)
    looks = Conversation([ASKED, SAID, ASKED], [{"role": "assistant", "content": "b"}], '[{"name": "look"}]')
    with pytest.raises(InputError, match="row 1: it has tools, and the model's chat template does not"):
        conversation_sequences(model, [looks], "row")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = WITH_TOOLS
    tokenizer.save_pretrained(model)
    [sequence] = conversation_sequences(model, [looks], "row")
    shown = 'tools: [{"name": "look"}]\nuser: a b\nassistant: a\nuser: a b\nassistant: '
    assert tokenizer.decode(list(sequence.prompt_token_ids)) == shown
    assert tokenizer.decode(list(sequence.response_token_ids)) == "b<end>"
    assert sequence.response_mask == (1, 1)


@pytest.mark.parametrize("name", ["hermes", "llama", "mistral, in a list", "qwen3-coder"])
def test_calls_are_taught_as_the_template_writes_them(name: str, tmp_path: Path) -> None:
    """They are text in Hermes' form in the row; in the prompt they are context, and not taught again."""
    model = save_byte_llama(tmp_path, positions=2048)
    tokenizer, family = byte_tokenizer(), FAMILIES[name]
    tokenizer.chat_template = family.template.replace("<|im_end|>", "<end>")
    tokenizer.save_pretrained(model)
    first, second = (FAMILIES["hermes"].call("look", {"at": what}) for what in ("ice", "lakes"))
    results: list[Message] = [{"role": "tool", "content": each} for each in ("page 1", "page 2")]
    said: list[Message] = [{"role": "assistant", "content": each} for each in (first, second, "7")]
    row = Conversation(
        [ASKED, said[0], results[0]], [said[1], results[1], said[2]], '[{"function": {"name": "look"}}]'
    )

    [sequence] = conversation_sequences(model, [row], "row")

    prompt = tokenizer.decode(list(sequence.prompt_token_ids))
    assert ('"at": "ice"' if name != "qwen3-coder" else "<parameter=at>\nice\n") in prompt
    assert ("<tool_call>" in prompt) == (family.form.markers[0] == "<tool_call>")
    taught = [
        token for token, mask in zip(sequence.response_token_ids, sequence.response_mask, strict=True) if mask
    ]
    call, answer, nothing = tokenizer.decode(taught).split("<end>")
    assert (answer, nothing) == ("7", "")
    turn = read_turn(call, 0, StorableTexts(), family.form, json.loads(row.tools))
    assert [(each.name, each.arguments, each.problem) for each in turn.tool_calls] == [
        ("look", {"at": "lakes"}, None)
    ]


def test_a_turn_that_the_template_cannot_write_is_named(tmp_path: Path) -> None:
    """Llama's writes one call in a turn."""
    model = save_byte_llama(tmp_path, positions=2048)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = FAMILIES["llama"].template
    tokenizer.save_pretrained(model)
    call = FAMILIES["hermes"].call("look", {})
    twice: Message = {"role": "assistant", "content": f"{call}{call}"}
    row = Conversation([ASKED], [twice], '[{"function": {"name": "look"}}]')
    with pytest.raises(InputError, match="row 1: the model's chat template refuses it: one call at a time"):
        conversation_sequences(model, [row], "row")


def test_a_conversation_that_the_chat_template_refuses_is_named(tmp_path: Path) -> None:
    model = save_byte_llama(tmp_path, positions=192)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no tools here') }}"
    tokenizer.save_pretrained(model)
    with pytest.raises(InputError, match="row 1: the model's chat template refuses it: no tools here"):
        conversation_sequences(model, [as_conversation([ASKED, SAID])], "row")


def test_a_conversation_whose_turn_the_chat_template_opens_otherwise_is_named(tmp_path: Path) -> None:
    model = save_byte_llama(tmp_path, positions=192)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: <think>{% endif %}"
    )
    tokenizer.save_pretrained(model)
    thought: Message = {"role": "assistant", "content": "<think></think>a"}
    assert len(conversation_sequences(model, [as_conversation([ASKED, thought])], "row")) == 1
    with pytest.raises(
        InputError, match=r"row 2: the chat template opens the assistant's turn with '.*<think>"
    ):
        conversation_sequences(
            model, [as_conversation([ASKED, thought]), as_conversation([ASKED, SAID])], "row"
        )
