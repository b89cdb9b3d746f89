"""Calls of an agent as token sequences: one character a token, so that tokens can be read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.environments.messages import (
    FunctionCall,
    Message,
    ToolSchema,
    assistant_message,
    user_message,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.episodes.gateway.sequences import Answer, AttemptSequences, Call, SampledSequence
from tests.erl_pipeline.episodes.test_dialogue import SEARCH, chatml_tokenizer, end_ids, said

TOKENIZER = chatml_tokenizer()
CHAT = ChatTokenizer(TOKENIZER)
END = "<|im_end|>"


def attempt() -> AttemptSequences:
    return AttemptSequences(CHAT, end_ids(TOKENIZER))


def place(sequences: AttemptSequences, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> Call:
    return sequences.place(messages, messages, tools)


def answered(sequences: AttemptSequences, call: Call, text: str, stop: Sequence[str] = ()) -> Answer:
    return sequences.answer(call, said(TOKENIZER, text), seed=0, stop=stop)


def read(sequence: SampledSequence) -> tuple[str, str]:
    """Its prompt, and its response with what is not trained in brackets."""
    prompt = "".join(TOKENIZER.convert_ids_to_tokens(sequence.prompt_token_ids))
    response, inside = "", False
    for token, trained in zip(
        TOKENIZER.convert_ids_to_tokens(sequence.response_token_ids), sequence.response_mask, strict=True
    ):
        if inside == bool(trained):
            response += "]" if trained else "["
            inside = not inside
        response += token
    return prompt, response + "]" * inside


def test_a_conversation_is_one_sequence_with_the_tokens_of_a_dialogue() -> None:
    dialogue = Dialogue(CHAT, [user_message("go")], end_ids(TOKENIZER))
    dialogue.add_turn(said(TOKENIZER, f"up{END}"))
    dialogue.add_messages([user_message("more")])
    dialogue.add_turn(said(TOKENIZER, f"down{END}"))

    sequences = attempt()
    history: list[Message] = [user_message("go")]
    answered(sequences, place(sequences, history), f"up{END}")
    history += [assistant_message("up"), user_message("more")]
    answered(sequences, place(sequences, history), f"down{END}")

    (only,) = sequences.sequences
    assert only.prompt_token_ids == dialogue.prompt_token_ids
    assert only.response_token_ids == dialogue.response_token_ids
    assert only.response_mask == dialogue.response_mask
    assert only.behaviour_logprobs == dialogue.behaviour_logprobs
    assert only.messages == dialogue.messages


def test_sampled_tokens_stay_though_their_text_would_be_tokenized_otherwise() -> None:
    """The tokenizer writes the space at the end of an answer nowhere; it was sampled, so it is kept."""
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")]), f"up {END}")
    call = place(sequences, [user_message("go"), assistant_message("up"), user_message("more")])
    answered(sequences, call, f"down{END}")
    (only,) = sequences.sequences
    assert read(only)[1] == (f"up {END}[\n<|im_start|>user\nmore{END}\n<|im_start|>assistant\n]down{END}")


def test_two_calls_at_the_same_time_branch_and_each_answer_is_trained_once() -> None:
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")]), f"up{END}")
    history = [user_message("go"), assistant_message("up")]
    left = place(sequences, [*history, user_message("left?")])
    right = place(sequences, [*history, user_message("right?")])
    answered(sequences, right, f"no{END}")
    answered(sequences, left, f"yes{END}")

    first, branch = sequences.sequences
    assert read(first)[1] == (f"up{END}[\n<|im_start|>user\nleft?{END}\n<|im_start|>assistant\n]yes{END}")
    prompt, response = read(branch)
    assert prompt.endswith(f"assistant\nup{END}\n<|im_start|>user\nright?{END}\n<|im_start|>assistant\n")
    assert response == f"no{END}"

    # Each branch goes on by itself.
    longer = place(sequences, [*history, user_message("right?"), assistant_message("no"), user_message("ok")])
    answered(sequences, longer, f"bye{END}")
    assert len(sequences.sequences) == 2
    assert read(branch)[1].endswith(f"]bye{END}")


def test_of_equal_answers_the_one_that_was_asked_for_first_is_continued_whichever_came_first() -> None:
    """Their thoughts differ, which an agent need not send back."""
    opening = [user_message("go")]
    prompts = set()
    for order in ((0, 1), (1, 0)):
        sequences = attempt()
        calls = [place(sequences, opening), place(sequences, opening)]
        for number in order:
            answered(sequences, calls[number], f"<think>{number}</think>up{END}")
        call = place(sequences, [*opening, assistant_message("up"), user_message("more")])
        prompts.add("".join(TOKENIZER.convert_ids_to_tokens(call.prompt_token_ids)))
    (prompt,) = prompts
    assert "<think>0</think>up" in prompt


def test_an_edited_history_begins_a_sequence_and_what_was_said_is_context_there() -> None:
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")]), f"up{END}")
    call = place(sequences, [user_message("summary: up"), assistant_message("fine"), user_message("more")])
    answered(sequences, call, f"down{END}")
    _, second = sequences.sequences
    assert read(second) == (
        f"<|im_start|>user\nsummary: up{END}\n<|im_start|>assistant\nfine{END}\n"
        f"<|im_start|>user\nmore{END}\n<|im_start|>assistant\n",
        f"down{END}",
    )
    assert second.opening == (user_message("summary: up"),)


def test_a_history_that_is_changed_for_people_alone_is_continued() -> None:
    """The agent has put a space before an answer; the chat template takes it away again."""
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")]), f"up{END}")
    call = place(sequences, [user_message("go"), assistant_message(" up"), user_message("more")])
    answered(sequences, call, f"down{END}")
    assert len(sequences.sequences) == 1


def test_an_agent_with_other_tools_is_another_one() -> None:
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")], [SEARCH]), f"up{END}")
    history = [user_message("go"), assistant_message("up"), user_message("more")]
    answered(sequences, place(sequences, history), f"down{END}")
    assert len(sequences.sequences) == 2


def test_a_tool_call_is_found_again_by_its_name_and_arguments() -> None:
    sequences = attempt()
    written = '<tool_call>{"name": "search", "arguments": {"for": "lakes"}}</tool_call>'
    turn = answered(sequences, place(sequences, [user_message("go")], [SEARCH]), f"{written}{END}").turn
    (called,) = turn.tool_calls
    sent_back: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": called.call_id,
                "type": "function",
                "function": {"name": "search", "arguments": {"for": "lakes"}},
            }
        ],
    }
    tool: Message = {"role": "tool", "content": "page 7", "tool_call_id": called.call_id}
    answered(sequences, place(sequences, [user_message("go"), sent_back, tool], [SEARCH]), f"7{END}")
    (only,) = sequences.sequences
    assert read(only)[1] == (
        f"{written}{END}[\n<|im_start|>user\n<tool_response>page 7</tool_response>{END}\n"
        f"<|im_start|>assistant\n]7{END}"
    )


@pytest.mark.parametrize(
    ("said", "sent"),
    [("10.0", 10), ('[{"a": -2.0}, 1e16, 0.5]', [{"a": -2}, 10**16, 0.5]), ("10.0", 10.0), ("1e21", 1e21)],
)
def test_a_tool_call_is_found_again_as_a_client_in_javascript_sends_it(said: str, sent: object) -> None:
    sequences = attempt()
    answer = answered(sequences, place(sequences, [user_message("go")], [SEARCH]), searched(said))
    (call,) = answer.turn.tool_calls
    history = [user_message("go"), called(call.call_id, sent), result(call.call_id)]
    assert place(sequences, history, [SEARCH]).after is not None


def test_answers_with_a_whole_number_with_a_point_and_without_one_stay_apart() -> None:
    """A client that sends 10.0 means that answer alone, and one that sends 10 the other."""
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")], [SEARCH]), searched("10.0"))
    answered(sequences, place(sequences, [user_message("go")], [SEARCH]), searched("10"))
    for number, sent in enumerate((10.0, 10)):
        call = place(sequences, [user_message("go"), called("c", sent), result("c")], [SEARCH])
        assert call.after is not None
        assert call.after.sequence is sequences.sequences[number]
    alone = attempt()
    answered(alone, place(alone, [user_message("go")], [SEARCH]), searched("10"))
    assert place(alone, [user_message("go"), called("c", 10.0), result("c")], [SEARCH]).known is None


def searched(what: str) -> str:
    return f'<tool_call>{{"name": "search", "arguments": {{"for": {what}}}}}</tool_call>{END}'


def called(call_id: str, what: object) -> Message:
    function: FunctionCall = {"name": "search", "arguments": {"for": what}}
    return {
        **assistant_message(""),
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str) -> Message:
    return {"role": "tool", "content": "page", "tool_call_id": call_id}


def test_the_id_of_a_tool_call_is_new_in_its_conversation_whoever_answered_before() -> None:
    """As where a server of before, or an earlier checkpoint, has given the ids that a client sends back."""
    written = f'<tool_call>{{"name": "search"}}</tool_call>{END}'
    history: list[Message] = [user_message("go")]
    ids = []
    for _ in range(3):
        sequences = attempt()
        (called,) = answered(sequences, place(sequences, history, [SEARCH]), written).turn.tool_calls
        ids.append(called.call_id)
        function: FunctionCall = {"name": "search", "arguments": {}}
        history += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": called.call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "content": "page 7", "tool_call_id": called.call_id},
        ]
    assert ids == ["call00000", "call00100", "call00200"]


def test_an_answer_is_cut_at_the_token_that_completes_a_stop_text() -> None:
    sequences = attempt()
    call = place(sequences, [user_message("go")])
    answer = answered(sequences, call, f"look Observation: none{END}", stop=["Observation:", "none"])
    assert (answer.turn.text, answer.tokens, answer.cut_off) == ("look ", len("look Observation:"), False)
    assert read(sequences.sequences[0])[1] == "look Observation:"

    history = [user_message("go"), assistant_message("look "), user_message("Observation: ice")]
    answered(sequences, place(sequences, history), f"up{END}")
    assert read(sequences.sequences[0])[1] == (
        f"look Observation:[{END}\n<|im_start|>user\nObservation: ice{END}\n<|im_start|>assistant\n]up{END}"
    )


GOOD = '<tool_call>{"name": "search"}</tool_call>'
BAD = "<tool_call>search</tool_call>"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (f"look {GOOD} {GOOD}{END}", f"look {GOOD}"),
        (f"{BAD}{GOOD}{BAD}{END}", f"{BAD}{GOOD}"),
        (f"{GOOD}<tool_call>", GOOD),
        # Nothing follows, so it ends as the policy has ended it.
        (f"{BAD}{GOOD} so{END}", f"{BAD}{GOOD} so{END}"),
    ],
)
def test_an_answer_with_one_call_ends_behind_its_first_well_formed_one(written: str, kept: str) -> None:
    sequences = attempt()
    call = place(sequences, [user_message("go")], [SEARCH])
    answer = sequences.answer(call, said(TOKENIZER, written), seed=0, one_call=True)
    assert [call.problem is None for call in answer.turn.tool_calls].count(True) == 1
    assert (answer.turn.text, answer.cut_off, answer.stopped_by) == (kept.removesuffix(END), False, None)
    assert read(sequences.sequences[0])[1] == kept

    several = answered(attempt(), place(attempt(), [user_message("go")], [SEARCH]), f"{GOOD}{GOOD}{END}")
    assert len(several.turn.tool_calls) == 2


@pytest.mark.parametrize(
    ("stop", "said", "told", "kept"),
    [
        ("\n", "a\nb\nc", "a", "a\n"),
        ("\n\n", "up\n\ndown", "up", "up\n\n"),
        ("Observation: ", "x\nObservation: ice", "x\n", "x\nObservation: "),
        ("\n", "a\n", "a", "a\n"),
    ],
)
def test_a_stop_text_may_end_in_white_space(stop: str, said: str, told: str, kept: str) -> None:
    sequences = attempt()
    answer = answered(sequences, place(sequences, [user_message("go")]), f"{said}{END}", stop=[stop])
    assert (answer.turn.text, answer.stopped_by) == (told, stop)
    assert read(sequences.sequences[0])[1] == kept


def test_tools_are_shown_as_they_were_sent() -> None:
    properties = {"reasoning": {"type": "string"}, "answer": {"type": "string"}}
    tool: ToolSchema = {"type": "function", "function": {"name": "end", "parameters": properties}}
    call = place(attempt(), [user_message("go")], [tool])
    assert call.prompt_token_ids == Dialogue(CHAT, [user_message("go")], end_ids(TOKENIZER), [tool]).token_ids


def test_equal_calls_are_counted_so_that_each_has_a_seed_of_its_own() -> None:
    sequences = attempt()
    calls = [place(sequences, [user_message("go")]) for _ in range(3)]
    assert [call.repeat for call in calls] == [0, 1, 2]
    assert [call.number for call in calls] == [1, 2, 3]


def test_after_a_call_that_was_given_up_the_turn_is_continued() -> None:
    sequences = attempt()
    answered(sequences, place(sequences, [user_message("go")]), f"up{END}")
    history = [user_message("go"), assistant_message("up"), user_message("more")]
    sequences.give_up(place(sequences, history))
    answered(sequences, place(sequences, history), f"down{END}")
    assert len(sequences.sequences) == 1


TURNS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.sampled_from("xyz")), max_size=12)


@given(TURNS)
def test_each_sampled_token_is_trained_once_behind_what_it_was_sampled_after(
    turns: list[tuple[int, str, str]],
) -> None:
    """Calls go on from any earlier history, in any order: a random tree of conversations."""
    sequences = attempt()
    histories: list[list[Message]] = [[user_message("go")]]
    sampled: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for number, (where, text, asked) in enumerate(turns):
        history = histories[where % len(histories)]
        call = place(sequences, history)
        generation = said(TOKENIZER, f"{text}{number}{END}")
        sequences.answer(call, generation, seed=0)
        sampled.append((call.prompt_token_ids, generation.token_ids))
        histories.append([*history, assistant_message(f"{text}{number}"), user_message(asked)])

    trained = []
    for sequence in sequences.sequences:
        tokens, begun = list(sequence.prompt_token_ids), 0
        for token, mask in zip(sequence.response_token_ids, sequence.response_mask, strict=True):
            if mask and not begun:
                before = tuple(tokens)
                begun = 1
                trained.append((before, [token]))
            elif mask:
                trained[-1][1].append(token)
            else:
                begun = 0
            tokens.append(token)
    assert sorted((before, tuple(tokens)) for before, tokens in trained) == sorted(sampled)


@pytest.mark.parametrize("turns", [200])
def test_a_long_history_is_found_by_its_messages(turns: int) -> None:
    sequences = attempt()
    history: list[Message] = [user_message("go")]
    for number in range(turns):
        answered(sequences, place(sequences, history), f"a{number}{END}")
        history += [assistant_message(f"a{number}"), user_message("more")]
    assert len(sequences.sequences) == 1
    assert sum(sequences.sequences[0].response_mask) == sum(len(f"a{n}") + 1 for n in range(turns))
