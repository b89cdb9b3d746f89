"""What an agent asked and the policy answered in one attempt, as token sequences that can be trained on.

An agent sends its whole history with each call, as texts. Texts are never tokenized again where their tokens
are known: a history that ends in an answer which was sampled here goes on from that answer's tokens. Any
other history (a compacted or edited one, a sub-agent's) is rendered by the chat template, and begins a new
sequence. So each sampled token is trained once, behind exactly the tokens that it was sampled after.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import takewhile
from typing import NamedTuple

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.messages import (
    AssistantTurn,
    Message,
    ToolSchema,
    answer_message,
    answer_start,
    read_turn,
    turn_message,
)
from erl_pipeline.environments.tool_calls.form import FoundCall
from erl_pipeline.episodes.dialogue import ChatTokenizer, without_end
from storage.texts import StorableTexts

_Key = tuple[str, ...]
History = tuple[str, tuple[_Key, ...]]
"""The tools, as JSON, and the keys of the messages."""


@dataclass
class SampledSequence:
    """One token sequence of an attempt; the fields are those of a trajectory.

    `opening` is what the policy was told before it first spoke in this sequence. In a branch the prompt also
    has turns of the policy: they are trained in the sequence that they were sampled in.
    """

    opening: tuple[Message, ...]
    prompt_token_ids: tuple[int, ...]
    seed: int
    number: int
    messages: list[Message] = field(default_factory=list)
    response_token_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    behaviour_logprobs: list[float] = field(default_factory=list)
    truncated: bool = False


@dataclass(eq=False)
class RecordedTurn:
    """An answer of the policy: where it is, and all tokens up to its end. Its own begin at `start` of the
    sequence's response; `repeat` is that of its call."""

    sequence: SampledSequence
    start: int
    token_ids: tuple[int, ...]
    end_token: int | None
    """The end token that was sampled; None where the turn was cut off before it."""
    messages: tuple[Message, ...]
    repeat: int
    followed: bool = False
    """Whether a call goes on from it in the same sequence; another one branches off."""


class Tokenized(NamedTuple):
    """What a call is sampled after, where its history ends with `turn`; None for none that is known."""

    turn: RecordedTurn | None
    prompt_token_ids: tuple[int, ...]


@dataclass
class Call:
    """A call that has its place: what to sample after, and where the answer belongs.

    `repeat` counts the earlier calls of the attempt with the same tokens, so that each has a seed of its own.
    `number` is that of its sequence, by the order in which calls began them.
    """

    history: History
    messages: tuple[Message, ...]
    prompt_token_ids: tuple[int, ...]
    repeat: int
    number: int
    after: RecordedTurn | None
    """The turn whose sequence this call continues; None where it begins a sequence."""
    known: RecordedTurn | None
    """The turn with which its history ends, also where another call continues that; None if there is none."""
    answered: RecordedTurn | None = None
    """Its own turn, once it is answered."""


@dataclass(frozen=True)
class Answer:
    """What the agent is told: the turn, its number of sampled tokens, whether a limit cut it off, and the
    stop text that ended it, if one did. It is kept for clients that ask again, so it holds no sequence."""

    turn: AssistantTurn
    tokens: int
    cut_off: bool
    stopped_by: str | None = None


class AttemptSequences:
    """The sequences of one attempt, in the order in which their first answers came.

    A turn is found by its history: the tools and all messages up to it, by role, text, and name and arguments
    of tool calls. Thoughts are left out, since agents need not send them back. Those in JavaScript send 10
    where the policy said 10.0, which is found too, unless it said 10 as well.
    """

    def __init__(self, chat: ChatTokenizer, end_token_ids: frozenset[int]) -> None:
        self._chat = chat
        self._end_token_ids = end_token_ids
        self._turns: dict[History, RecordedTurn] = {}
        self._from_javascript: dict[History, RecordedTurn] = {}
        self._asked: Counter[tuple[int, ...]] = Counter()
        self._answered = 0
        self._begun = 0
        self.sequences: list[SampledSequence] = []

    def tokenized(
        self, messages: Sequence[Message], shown: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> Tokenized:
        """The tokens of a call, for `place`, which has the same arguments. Changes nothing, so that it may
        run in another thread where it takes long."""
        history = history_of(messages, tools)
        return self._tokenized(history[0], self._turn_before(history, messages), messages, shown)

    def place(
        self,
        messages: Sequence[Message],
        shown: Sequence[Message],
        tools: Sequence[ToolSchema],
        tokenized: Tokenized | None = None,
    ) -> Call:
        """Where a call belongs. `shown` are the messages as the policy is to be shown them, where the call
        begins a conversation: with what was inserted for this attempt. `tokenized`: its tokens, if they were
        made before.

        Another call on the same turn branches off until this one is answered or `give_up` is called.
        """
        history = history_of(messages, tools)
        turn = self._turn_before(history, messages)
        # The turn may have been answered since.
        if tokenized is None or tokenized.turn is not turn:
            tokenized = self._tokenized(history[0], turn, messages, shown)
        prompt = tokenized.prompt_token_ids
        if turn is not None:
            known = (*turn.messages, *messages[last_answer(messages) + 1 :])
        else:
            known = tuple(shown)
            turn = self._ends_with(prompt)
        repeat = self._asked[prompt]
        self._asked[prompt] += 1
        after = turn if turn is not None and not turn.followed else None
        if after is not None:
            after.followed = True
            number = after.sequence.number
        else:
            number = self._begun = self._begun + 1
        return Call(history, known, prompt, repeat, number, after, turn)

    def turn_of(self, history: History) -> RecordedTurn | None:
        """The turn with which a history ends, if it was answered here."""
        return self._turns.get(history) or self._from_javascript.get(history)

    def give_up(self, call: Call) -> None:
        """Forget a call that was not answered: a later one may go on from the same turn."""
        if call.after is not None:
            call.after.followed = False

    def answer(
        self,
        call: Call,
        generation: Generation,
        seed: int,
        stop: Sequence[str] = (),
        *,
        one_call: bool = False,
    ) -> Answer:
        """Record what was sampled after the call's tokens, which the agent is told as this turn.

        Of an answer that holds one of the `stop` texts, the tokens up to the one that completes it are kept,
        and the agent is told what is before it. So a long answer is cut as if sampling had ended there. With
        `one_call` the same holds for the end of the first tool call, which the agent is told.
        """
        tools: Sequence[ToolSchema] = json.loads(call.history[0])
        has_tools = bool(tools)
        spoken = without_end(generation.token_ids, self._end_token_ids)
        text = self._chat.text(spoken, keep_tool_calls=has_tools, strip=False)
        stopped_by = None
        if any(each in text for each in stop):
            generation, text, stopped_by = self._cut(generation, stop, has_tools)
        thinks = self._chat.thinks_after(call.prompt_token_ids)
        one_call = has_tools and (one_call or not self._chat.shows_several_calls)
        if one_call and any(map(_is_well_formed, self._calls(text, tools, thinks)[:-1])):
            generation, text, stopped_by = self._cut_behind_call(generation, tools, thinks)
        text = text.strip() if stopped_by is None else text.lstrip()
        sequence = self._sequence_of(call, seed)
        start = len(sequence.response_token_ids)
        sequence.response_token_ids.extend(generation.token_ids)
        sequence.response_mask.extend([1] * len(generation.token_ids))
        sequence.behaviour_logprobs.extend(generation.logprobs)
        sequence.truncated = sequence.truncated or generation.finish_reason == "length"
        offered, keys = call.history
        turn = self._turn(text, tools, thinks)
        # An earlier checkpoint or server may have answered in this history, and counted from 0 as well.
        known = _ids_of_calls(call.messages)
        while any(each.call_id in known for each in turn.tool_calls):
            turn = self._turn(text, tools, thinks)
        sequence.messages = [*call.messages, turn_message(turn)]
        last = generation.token_ids[-1] if generation.token_ids else None
        recorded = call.answered = RecordedTurn(
            sequence,
            start,
            call.prompt_token_ids + generation.token_ids,
            last if last in self._end_token_ids else None,
            tuple(sequence.messages),
            call.repeat,
        )
        ended = (*keys, _key(answer_message(turn)))
        _keep(self._turns, (offered, ended), recorded)
        if (sent := tuple(map(_from_javascript, ended))) != ended:
            _keep(self._from_javascript, (offered, sent), recorded)
        cut_off = generation.finish_reason == "length"
        return Answer(turn, len(generation.token_ids), cut_off, stopped_by)

    def _turn(self, text: str, tools: Sequence[ToolSchema], thinks: bool) -> AssistantTurn:
        """An answer as the next turn; the ids of its tool calls derive from its number."""
        form = self._chat.call_form if tools else None
        turn = read_turn(text, self._answered, self._chat.texts, form, tools, thinks=thinks)
        self._answered += 1
        return turn

    def _calls(self, text: str, tools: Sequence[ToolSchema], thinks: bool) -> Sequence[FoundCall]:
        """The tool calls in a text."""
        start = answer_start(text, thinks=thinks)
        return self._chat.call_form.find(text, start, tools, StorableTexts())

    def _cut(
        self, generation: Generation, stop: Sequence[str], has_tools: bool
    ) -> tuple[Generation, str, str]:
        """The answer up to the token that completes a stop text, what it says before that text, and the
        text."""

        kept, text = self._until(generation, lambda text: any(each in text for each in stop), has_tools)
        place, found = min((text.find(each), each) for each in stop if each in text)
        return kept, text[:place], found

    def _cut_behind_call(
        self, generation: Generation, tools: Sequence[ToolSchema], thinks: bool
    ) -> tuple[Generation, str, None]:
        """The same for the end of the first well-formed tool call, which is said too."""

        def has_call(text: str) -> bool:
            return any(map(_is_well_formed, self._calls(text, tools, thinks)))

        kept, text = self._until(generation, has_call, has_tools=True)
        return kept, text[: next(filter(_is_well_formed, self._calls(text, tools, thinks))).end], None

    def _until(
        self, generation: Generation, is_said: Callable[[str], bool], has_tools: bool
    ) -> tuple[Generation, str]:
        """The fewest tokens with which something is said, and their text."""

        def said(tokens: int) -> str:
            return self._chat.text(generation.token_ids[:tokens], keep_tool_calls=has_tools, strip=False)

        tokens = bisect_left(range(len(generation.token_ids)), True, key=lambda count: is_said(said(count)))
        kept = Generation(generation.token_ids[:tokens], generation.logprobs[:tokens], "stop")
        return kept, said(tokens)

    def _sequence_of(self, call: Call, seed: int) -> SampledSequence:
        """The sequence that the answer belongs to, with all tokens of the call."""
        if call.after is None:
            opening = tuple(takewhile(lambda each: each["role"] != "assistant", call.messages))
            begun = SampledSequence(opening, call.prompt_token_ids, seed, call.number)
            self.sequences.append(begun)
            return begun
        sequence = call.after.sequence
        between = call.prompt_token_ids[len(call.after.token_ids) :]
        sequence.response_token_ids.extend(between)
        sequence.response_mask.extend([0] * len(between))
        sequence.behaviour_logprobs.extend([0.0] * len(between))
        return sequence

    def _turn_before(self, history: History, messages: Sequence[Message]) -> RecordedTurn | None:
        last = last_answer(messages)
        return self.turn_of((history[0], history[1][: last + 1])) if last >= 0 else None

    def _tokenized(
        self, offered: str, turn: RecordedTurn | None, messages: Sequence[Message], shown: Sequence[Message]
    ) -> Tokenized:
        if turn is None:
            return Tokenized(None, self._chat.prompt(shown, offered))
        since = messages[last_answer(messages) + 1 :]
        return Tokenized(turn, turn.token_ids + self._chat.between_turns(since, turn.end_token, offered))

    def _ends_with(self, prompt: tuple[int, ...]) -> RecordedTurn | None:
        """A turn that ends a sequence, and whose tokens are the beginning of these: a history that the agent
        has changed, but not for the tokenizer."""
        for turn in self._turns.values():
            if not turn.followed and prompt[: len(turn.token_ids)] == turn.token_ids:
                return turn
        return None


def history_of(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> History:
    """What tells one beginning of a conversation from another. Tools are rendered from it, so that their keys
    keep the order in which they were sent."""
    return json.dumps(list(tools)) if tools else "[]", tuple(map(_key, messages))


def _keep(turns: dict[History, RecordedTurn], history: History, turn: RecordedTurn) -> None:
    """Of equal answers to equal histories, which may have other thoughts, the one that was asked for first is
    continued, whichever came first."""
    known = turns.get(history)
    if known is None or (turn.repeat < known.repeat and not known.followed):
        turns[history] = turn


def _is_well_formed(found: FoundCall) -> bool:
    return found.called.problem is None


def _ids_of_calls(messages: Sequence[Message]) -> set[str]:
    return {call["id"] for message in messages for call in message.get("tool_calls", ())}


def last_answer(messages: Sequence[Message]) -> int:
    """The place of the last message of an assistant; -1 if there is none."""
    return max((place for place, each in enumerate(messages) if each["role"] == "assistant"), default=-1)


def _key(message: Message) -> _Key:
    """What tells a message from others."""
    said = message["role"], message["content"], message.get("tool_call_id", "")
    calls = message.get("tool_calls")
    if not calls:
        return said
    asked = ([call["function"]["name"], call["function"]["arguments"]] for call in calls)
    return (*said, *(json.dumps(each, sort_keys=True) for each in asked))


def _from_javascript(key: _Key) -> _Key:
    """The key of a message whose tool calls a program in JavaScript has read and written again: it knows no
    whole number with a point."""
    calls = key[3:]
    if not any(".0" in call or "e+" in call for call in calls):
        return key
    return (*key[:3], *(json.dumps(json.loads(call, parse_float=_number), sort_keys=True) for call in calls))


def _number(text: str) -> float:
    value = float(text)
    # From here on it writes an exponent, which is read as a float.
    return int(Decimal(text)) if value.is_integer() and abs(value) < 1e21 else value
