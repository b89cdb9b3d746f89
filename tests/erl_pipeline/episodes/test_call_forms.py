"""Conversations with tools of policies whose chat templates write calls in different forms: one character a
token."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.messages import (
    CalledTool,
    Message,
    ToolSchema,
    assistant_message,
    tool_message,
    user_message,
    with_structured_calls,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.episodes.gateway.sequences import AttemptSequences
from erl_pipeline.policies.tiny.model import build_tokenizer
from tests.erl_pipeline.episodes.call_templates import FAMILIES, Family
from tests.erl_pipeline.episodes.test_dialogue import SEARCH, chatml_tokenizer, end_ids, said

END = "<|im_end|>"
ASKED: list[Message] = [user_message("go")]
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = family.template
    return tokenizer


def shown(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    return "".join(tokenizer.convert_ids_to_tokens(list(ids)))


def called(call_id: str, what: str = "lakes") -> Message:
    call: CalledTool = {
        "id": call_id,
        "type": "function",
        "function": {"name": "search", "arguments": {"for": what}},
    }
    return {**assistant_message(""), "tool_calls": [call]}


def result(call_id: str) -> Message:
    return {"role": "tool", "content": "page 7", "tool_call_id": call_id}


@each_family
def test_the_form_is_what_the_template_writes(family: Family) -> None:
    chat = ChatTokenizer(tokenizer_of(family))
    assert chat.knows_tools
    assert chat.call_form is family.form


@pytest.mark.parametrize(
    ("written", "other"),
    [
        # Another key for the arguments.
        ('"parameters": {{ f.arguments', '"values": {{ f.arguments'),
        # A call in words.
        ('{"name": "{{ f.name }}"', 'I call {"name": "{{ f.name }}"'),
        # What a tool answers is not shown.
        ("{{ m.content | tojson }}", ""),
        ("{% if m.role == 'tool' %}", "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"),
    ],
)
def test_a_template_that_writes_another_form_or_no_results_knows_no_tools(written: str, other: str) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = FAMILIES["llama"].template
    assert ChatTokenizer(tokenizer).knows_tools
    assert written in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(written, other)
    assert not ChatTokenizer(tokenizer).knows_tools


def test_a_template_may_open_a_turn_as_a_call_begins() -> None:
    """With `<think>`, of which `<tool_call>` has the first two characters."""
    tokenizer = tokenizer_of(FAMILIES["qwen3-coder"])
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n</think>{% endif %}"
    assert ChatTokenizer(tokenizer).knows_tools


def test_a_policy_without_tools_has_a_form_without_any_token_being_asked_for() -> None:
    """The tiny policy's tokenizer has no token for a full stop."""
    chat = ChatTokenizer(build_tokenizer(["a"], 128))
    assert not chat.knows_tools
    assert chat.call_form is FAMILIES["hermes"].form


@each_family
def test_a_dialogue_with_a_call_reads_as_its_chat_template(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, end_ids(tokenizer), [SEARCH])
    written = family.call("search", {"for": "lakes"})
    (call,) = dialogue.add_turn(said(tokenizer, f"{written}{END}")).tool_calls
    assert (call.name, dict(call.arguments), call.problem) == ("search", {"for": "lakes"}, None)
    dialogue.add_messages([tool_message(call, "page 7")])
    assert dialogue.add_turn(said(tokenizer, f"It is 7{END}")).tool_calls == ()

    assert dialogue.messages == [
        *ASKED,
        called(call.call_id),
        {**result(call.call_id), "name": "search"},
        assistant_message("It is 7"),
    ]
    conversation = [ASKED[0], assistant_message(written), result(call.call_id)]
    rendered = tokenizer.apply_chat_template(
        conversation, tools=[SEARCH], tokenize=False, add_generation_prompt=True
    )
    assert shown(tokenizer, dialogue.token_ids) == f"{rendered}It is 7{END}"
    trained = [
        token for token, mask in zip(dialogue.response_token_ids, dialogue.response_mask, strict=True) if mask
    ]
    assert shown(tokenizer, trained) == f"{written}{END}It is 7{END}"


@each_family
def test_without_tools_no_call_is_read(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, end_ids(tokenizer))
    written = family.call("search", {"for": "lakes"})
    turn = dialogue.add_turn(said(tokenizer, f"{written}{END}"))
    assert (turn.text, turn.tool_calls) == (written, ())


@each_family
def test_a_call_in_thoughts_is_none(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, end_ids(tokenizer), [SEARCH])
    thought, meant = (family.call("search", {"for": what}) for what in ("ice", "lakes"))
    turn = dialogue.add_turn(said(tokenizer, f"<think>{thought}</think>\n{meant}{END}"))
    assert [dict(call.arguments) for call in turn.tool_calls] == [{"for": "lakes"}]
    assert dialogue.messages[-1]["content"] == f"<think>{thought}</think>"


@each_family
def test_calls_are_read_where_their_markers_are_special_tokens_and_another_token_ends_the_turn(
    family: Family,
) -> None:
    tokenizer = tokenizer_of(family)
    marks = ["<|im_start|>", "<|eom_id|>", "<|python_tag|>", *family.form.markers]
    tokenizer.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(marks))})
    ends = frozenset(tokenizer.convert_tokens_to_ids([END, "<|eom_id|>"]))
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, ends, [SEARCH])
    turn = dialogue.add_turn(said(tokenizer, f"{family.call('search', {'for': 'lakes'})}<|eom_id|>"))
    assert [(call.name, call.problem) for call in turn.tool_calls] == [("search", None)]
    assert dialogue.messages[-1]["content"] == ""


@each_family
def test_a_conversation_goes_on_from_the_tokens_of_its_calls(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    sequences = AttemptSequences(ChatTokenizer(tokenizer), end_ids(tokenizer))
    asked = ("lakes", "ice")[: family.most]
    written = family.between.join(family.call("search", {"for": what}) for what in asked)
    call = sequences.place(ASKED, ASKED, [SEARCH])
    turn = sequences.answer(call, said(tokenizer, written + END), seed=0).turn
    ids = [each.call_id for each in turn.tool_calls]
    calls = [
        each for call_id, what in zip(ids, asked, strict=True) for each in called(call_id, what)["tool_calls"]
    ]
    sent: Message = {**assistant_message(""), "tool_calls": calls}
    history = [*ASKED, sent, *map(result, ids)]
    again = sequences.place(history, history, [SEARCH])
    sequences.answer(again, said(tokenizer, f"7{END}"), seed=0)
    (only,) = sequences.sequences
    assert shown(tokenizer, only.response_token_ids).startswith(f"{written}{END}\n<|im_start|>tool\n")
    assert sum(only.response_mask) == len(written) + 1 + 2


def test_an_answer_has_no_more_calls_than_the_template_shows() -> None:
    """Otherwise another server, which knows the history by its texts alone, could not render it."""
    family = FAMILIES["llama"]
    tokenizer = tokenizer_of(family)
    sequences = AttemptSequences(ChatTokenizer(tokenizer), end_ids(tokenizer))
    first, second = (family.call("search", {"for": what}) for what in ("lakes", "ice"))
    call = sequences.place(ASKED, ASKED, [SEARCH])
    turn = sequences.answer(call, said(tokenizer, f"{first}; {second}{END}"), seed=0).turn
    assert [dict(each.arguments) for each in turn.tool_calls] == [{"for": "lakes"}]
    call_id = turn.tool_calls[0].call_id
    sent: Message = {**assistant_message(""), "tool_calls": called(call_id)["tool_calls"]}
    history = [*ASKED, sent, result(call_id)]
    elsewhere = AttemptSequences(ChatTokenizer(tokenizer), end_ids(tokenizer))
    assert elsewhere.place(history, history, [SEARCH]).known is None


@each_family
def test_an_answer_with_one_call_ends_behind_its_first(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    sequences = AttemptSequences(ChatTokenizer(tokenizer), end_ids(tokenizer))
    first, second = (family.call("search", {"for": what}) for what in ("lakes", "ice"))
    call = sequences.place(ASKED, ASKED, [SEARCH])
    spoken = said(tokenizer, f"{first}{family.between}{second}{END}")
    turn = sequences.answer(call, spoken, seed=0, one_call=True).turn
    assert [dict(each.arguments) for each in turn.tool_calls] == [{"for": "lakes"}]
    kept = shown(tokenizer, sequences.sequences[0].response_token_ids)
    # A list of Mistral's ends behind its calls.
    assert kept == first.removesuffix("]" if first.endswith("}]") else "")


def test_calls_of_one_list_are_cut_behind_the_first() -> None:
    tokenizer = tokenizer_of(FAMILIES["mistral, in a list"])
    sequences = AttemptSequences(ChatTokenizer(tokenizer), end_ids(tokenizer))
    one = '{"name": "search", "arguments": {"for": "lakes"}}'
    call = sequences.place(ASKED, ASKED, [SEARCH])
    answer = sequences.answer(call, said(tokenizer, f"[TOOL_CALLS][{one}, {one}]{END}"), 0, one_call=True)
    assert len(answer.turn.tool_calls) == 1
    assert shown(tokenizer, sequences.sequences[0].response_token_ids) == f"[TOOL_CALLS][{one}"


@pytest.mark.parametrize("call_id", ["call00000", "call123400", "call_abcdefghijklmnop", "call_x y"])
def test_a_template_is_shown_ids_as_it_takes_them(call_id: str) -> None:
    """Also in what it is given by others, and of the turns from the thousandth on."""
    tokenizer = tokenizer_of(FAMILIES["mistral, in a list"])
    chat = ChatTokenizer(tokenizer)
    told = shown(tokenizer, chat.prompt([*ASKED, called(call_id), result(call_id)], json.dumps([SEARCH])))
    named = told.partition('"id": "')[2][:9]
    assert named.isalnum()
    assert f"[TOOL_RESULTS]{named} page 7" in told
    assert (named == call_id) == (call_id == "call00000")
    between = shown(tokenizer, chat.between_turns([result(call_id)], tokenizer.eos_token_id))
    assert f"[TOOL_RESULTS]{named} page 7" in between


@each_family
def test_a_taught_call_is_written_as_the_template_writes_it(family: Family) -> None:
    """Files of conversations have calls in Hermes' form."""
    tokenizer = tokenizer_of(family)
    chat = ChatTokenizer(tokenizer)
    hermes = FAMILIES["hermes"].call("search", {"for": "lakes"})
    conversation = with_structured_calls(
        [*ASKED, assistant_message(hermes), {"role": "tool", "content": "page 7"}, assistant_message("7")]
    )
    assert conversation[1:3] == [called("call00100"), {**result("call00100"), "name": "search"}]
    tools = json.dumps([SEARCH])
    ids, mask = chat.completion(conversation[1:], end_ids(tokenizer), tools)
    dialogue = Dialogue(chat, ASKED, end_ids(tokenizer), [SEARCH])
    taught = shown(tokenizer, ids).partition(END)[0]
    (call,) = dialogue.add_turn(said(tokenizer, f"{taught}{END}")).tool_calls
    assert (call.name, dict(call.arguments)) == ("search", {"for": "lakes"})
    assert sum(mask) == len(taught) + 1 + 2


def test_an_answer_in_json_is_no_call_of_a_tool_that_is_not_offered() -> None:
    tokenizer = tokenizer_of(FAMILIES["llama"])
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, end_ids(tokenizer), [SEARCH])
    answer = '{"name": "Ice", "parameters": {}}'
    turn = dialogue.add_turn(said(tokenizer, f"{answer}{END}"))
    assert (turn.text, turn.tool_calls) == (answer, ())


def test_values_have_the_types_of_the_tool() -> None:
    tokenizer = tokenizer_of(FAMILIES["qwen3-coder"])
    properties = {"for": {"type": "string"}, "pages": {"type": "integer"}}
    tool: ToolSchema = {
        "type": "function",
        "function": {"name": "search", "parameters": {"type": "object", "properties": properties}},
    }
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, end_ids(tokenizer), [tool])
    written = FAMILIES["qwen3-coder"].call("search", {"for": "7", "pages": "7"})
    (call,) = dialogue.add_turn(said(tokenizer, f"{written}{END}")).tool_calls
    assert dict(call.arguments) == {"for": "7", "pages": 7}


@each_family
def test_an_ill_formed_call_is_told_and_the_conversation_goes_on(family: Family) -> None:
    tokenizer = tokenizer_of(family)
    dialogue = Dialogue(ChatTokenizer(tokenizer), ASKED, end_ids(tokenizer), [SEARCH])
    cut = family.call("search", {"for": "lakes"})[:-14]
    ids = said(tokenizer, cut).token_ids
    (call,) = dialogue.add_turn(Generation(ids, (-0.5,) * len(ids), "length")).tool_calls
    assert call.problem is not None
    assert dialogue.messages[-1] == assistant_message(cut.strip())
    dialogue.add_messages([tool_message(call, f"This could not be done: {call.problem}.")])
    assert call.problem in shown(tokenizer, dialogue.token_ids).replace("\\", "")
