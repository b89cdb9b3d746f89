"""A conversation as token ids: sampled tokens stay as they were sampled, and are never tokenized again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError, TemplateRuntimeError

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.messages import (
    THOUGHTS,
    AssistantTurn,
    CalledTool,
    Message,
    ToolSchema,
    read_turn,
    turn_message,
)
from erl_pipeline.environments.tool_calls.form import CallForm
from erl_pipeline.environments.tool_calls.forms import FORMS
from erl_pipeline.environments.tool_calls.hermes import HERMES
from storage.errors import InputError
from storage.texts import StorableTexts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONG_TEXT = 16_384
"""Characters from which on messages are long: they take longer to become tokens than others may wait for,
and hold more memory than the cache of a tokenizer may keep."""

_OPENING_TOKENS = 16
"""Tokens at the end of a prompt, among which the beginning of thoughts is, whatever the tokenizer."""

_MOST_SHOWN = 256
"""Most lists of tools of which is known whether the chat template shows them."""

_TODAY = datetime(2024, 7, 26)
"""The day of templates that print today's, as Llama 3.2's: a prompt must not depend on when it is made. This
is the day that Llama's template itself has where it is told none."""

_Frozen = tuple[str, ...]
_SOME_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {}},  # Some templates ask for it.
    },
}
_SOME_CALL: CalledTool = {
    "id": "call00000",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "the pond"}},
}
_RESULT = "@@result@@"
_ASSISTANT_TURN = "@@assistant-turn@@"
_OPENING: tuple[_Frozen, ...] = (("user", "."), ("assistant", _ASSISTANT_TURN))
_USER_TURN = "@@user-turn@@"
_ASKED: _Frozen = ("user", _USER_TURN)


class ChatTokenizer:
    """The tokenizer with its chat template: messages to prompt ids, and to the ids between turns.

    `texts` makes what models say storable.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.texts = StorableTexts()
        self._tokenizer = tokenizer
        self._shown: dict[bytes, bool] = {}
        # The text between two turns depends only on the messages there, and observations repeat; the first
        # attempts of a group have the same prompt. Only of what is not long, so that they stay small.
        self._between_turns_of = lru_cache(maxsize=4096)(self._between_turns)
        self._prompt_of = lru_cache(maxsize=1024)(self._prompt)

    def prompt(self, messages: Sequence[Message], tools: str = "[]") -> tuple[int, ...]:
        """Token ids of the messages up to where the assistant begins to speak; `tools` as JSON."""
        frozen = tuple(map(self._frozen, messages))
        return (self._prompt if _are_long(frozen, tools) else self._prompt_of)(frozen, tools)

    def between_turns(
        self, messages: Sequence[Message], after_end_token: int | None, tools: str = "[]"
    ) -> tuple[int, ...]:
        """Ids that follow an assistant's turn: its end, the messages, and the opening of the next turn.

        `after_end_token` is the end token that was sampled, which is then left out; None when the turn was
        cut off before its end.
        """
        frozen = tuple(map(self._frozen, messages))
        between = self._between_turns if _are_long(frozen, tools) else self._between_turns_of
        return between(frozen, after_end_token, tools)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: no text of more than n times as many becomes n tokens."""
        return max(map(len, self._tokenizer.get_vocab()))

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template shows tools and results, and writes calls in a form that is read."""
        return self._known_form is not None

    @property
    def call_form(self) -> CallForm:
        """How calls of tools are written: as the chat template writes them, and as Hermes does where it
        writes none that can be read."""
        return self._known_form or HERMES

    @cached_property
    def _known_form(self) -> CallForm | None:
        """The form in which a call that the chat template writes is read."""
        try:
            return self._form_of_template()
        except TemplateError:  # It cannot render a call, or a tool.
            return None

    def _form_of_template(self) -> CallForm | None:
        tools, asked = json.dumps([_SOME_TOOL]), _OPENING[:1]
        if self._render(asked, tools) == self._render(asked, "[]"):
            return None
        # No call begins as the stand-in, so it shows where turns begin. What the template opens a turn with
        # does not: `<think>` has the first characters of `<tool_call>`.
        spoken = self._render(_OPENING, tools, opens_turn=False)
        written = self._render((*asked, _calling(_SOME_CALL)), tools, opens_turn=False)
        pairs = enumerate(zip(spoken, written, strict=False))
        turn = written[next((place for place, (a, b) in pairs if a != b), len(written)) :]
        result = _frozen({"role": "tool", "content": _RESULT, "tool_call_id": "call00000", "name": "look"})
        if _RESULT not in self._render((*_OPENING, result), tools):
            return None
        for form in FORMS:
            read = turn_message(read_turn(turn, 0, StorableTexts(), form, [_SOME_TOOL]))
            if read.get("tool_calls") == [_SOME_CALL]:
                return form
        return None

    @cached_property
    def shows_several_calls(self) -> bool:
        """Whether the chat template shows a turn with several calls. Llama 3's refuses such a history."""
        called = _calling(_SOME_CALL, {**_SOME_CALL, "id": "call00001"})
        try:
            self._render((_OPENING[0], called), json.dumps([_SOME_TOOL]), opens_turn=False)
        except TemplateError:
            return False
        return True

    def thinks_after(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether what is said after a prompt begins within thoughts, since the chat template has opened them
        at its end, as DeepSeek-R1's does."""
        last = str(self._tokenizer.decode(list(prompt_token_ids[-_OPENING_TOKENS:])))
        return last.rstrip().endswith(THOUGHTS[0])

    def completion(
        self, turns: Sequence[Message], end_token_ids: frozenset[int], tools: str = "[]"
    ) -> tuple[list[int], list[int]]:
        """Ids and mask of what follows a prompt, from the assistant's first turn to its last.

        Each turn of the assistant ends with that of `end_token_ids`, the tokens that end sampling, with which
        the chat template ends it, else with the tokenizer's own, or the first of them. It is trained with it
        (mask 1); what others say in between is not. What they say after the last turn is left out. `tools` as
        JSON.

        Raises InputError where the chat template opens a turn to be sampled otherwise than a given one.
        """
        said: list[tuple[Message, list[Message]]] = []
        for message in turns:
            if message["role"] == "assistant":
                said.append((message, []))
            else:
                said[-1][1].append(message)
        ids: list[int] = []
        mask: list[int] = []
        for number, (message, others) in enumerate(said, start=1):
            is_last = number == len(said)
            end = self._end_of_turn(end_token_ids, () if is_last else others, tools)
            turn = [*self._given_turn(message), end]
            between = () if is_last else self.between_turns(others, end, tools)
            ids += [*turn, *between]
            mask += [1] * len(turn) + [0] * len(between)
        return ids, mask

    def can_offer(self, tools: Sequence[ToolSchema]) -> bool:
        """Whether the policy is told of these tools, and its calls can be read."""
        return self.shows(tools) and self.knows_tools

    def shows(self, tools: Sequence[ToolSchema]) -> bool:
        """Whether the chat template tells the policy of these tools."""
        text = json.dumps(list(tools))
        # Agents send the same tools with each call, and long ones are not in the cache of prompts.
        key = hashlib.sha256(text.encode()).digest()
        if key not in self._shown:
            asked: Sequence[Message] = [{"role": "user", "content": "."}]
            if len(self._shown) >= _MOST_SHOWN:
                self._shown.clear()
            self._shown[key] = self.prompt(asked, text) != self.prompt(asked)
        return self._shown[key]

    def text(self, token_ids: Sequence[int], *, keep_tool_calls: bool = False, strip: bool = True) -> str:
        """What the ids say, without special tokens but those around thoughts; those around tool calls can be
        kept. `strip`: without white space around it."""
        keeps = keep_tool_calls or bool(self._special_thoughts)
        unspoken = self._unspoken if keep_tool_calls else self._special - self._special_thoughts
        ids = [token for token in token_ids if not (keeps and token in unspoken)]
        text = str(self._tokenizer.decode(ids, skip_special_tokens=not keeps))
        return text.strip() if strip else text

    def _end_of_turn(self, end_token_ids: frozenset[int], after: Sequence[Message], tools: str) -> int:
        # Many models end their turns with another token than the tokenizer's, such as Gemma and Phi; GLM's
        # end is the beginning of what follows.
        following = tuple(map(self._frozen, after)) or _OPENING[:1]
        written = self._render((*_OPENING, *following), tools if after else "[]")
        written = written.partition(_ASSISTANT_TURN)[2].lstrip()
        named = zip(
            sorted(end_token_ids), self._tokenizer.convert_ids_to_tokens(sorted(end_token_ids)), strict=True
        )
        # A model may name ends that its tokenizer does not have, and a tokenizer no end of its own.
        ends = [(token, text) for token, text in named if text]
        own = self._tokenizer.eos_token_id
        return next(
            (token for token, text in ends if written.startswith(text)), ends[0][0] if own is None else own
        )

    def _given_turn(self, message: Message) -> tuple[int, ...]:
        """Ids of a turn that was not sampled, without its end: all that the chat template writes behind what
        opens the assistant's turn, such as the end of thoughts that it opens."""
        opened, before = self._render((_ASKED,), "[]"), self._turn_opening
        written = self._render((_ASKED, self._frozen(message)), "[]", opens_turn=False)
        if not written.startswith(opened):
            raise InputError(
                f"the chat template opens the assistant's turn with {before!r}, which it does not write "
                "before a given turn, so the policy cannot be shown what to say there. Choose another "
                "policy.model, or change its chat template"
            )
        end = self._render((_ASKED, ("assistant", _ASSISTANT_TURN)), "[]", opens_turn=False)
        end = end.partition(_ASSISTANT_TURN)[2]
        turn = written.removeprefix(opened)
        if "tool_calls" in message and not turn.endswith(end):
            raise InputError(
                f"the chat template does not end a turn that calls a tool with {end!r}, as it ends others, "
                "so the policy cannot be shown what to say there"
            )
        said = turn.removesuffix(end) if turn.endswith(end) else message["content"]
        # Behind the opening words may have other tokens than alone: some tokenizers put a space before a
        # text.
        ids, known = self._ids(before + said), self._ids(before)
        return ids[len(known) :] if ids[: len(known)] == known else self._ids(said)

    @cached_property
    def _turn_opening(self) -> str:
        """What the chat template writes between a user's words and the assistant's."""
        return self._render((_ASKED,), "[]").rpartition(_USER_TURN)[2]

    def _prompt(self, messages: tuple[_Frozen, ...], tools: str) -> tuple[int, ...]:
        return self._ids(self._render(messages, tools))

    def _between_turns(
        self, messages: tuple[_Frozen, ...], after_end_token: int | None, tools: str
    ) -> tuple[int, ...]:
        """The chat template is rendered around a stand-in for the assistant's words and cut after it, so
        that the words themselves need not be rendered."""
        # The first stand-in: the messages may repeat what the policy said, and it may have said this.
        suffix = self._render((*_OPENING, *messages), tools).partition(_ASSISTANT_TURN)[2]
        if after_end_token is None:
            return self._ids(suffix)
        end = self._tokenizer.convert_ids_to_tokens(after_end_token)
        # Some templates write a line feed before the end, which the policy did not say.
        before, found, rest = suffix.partition(end)
        suffix = rest if found and not before.strip() else suffix.lstrip(" ")
        # Behind the end a text may have other tokens than alone: some tokenizers put a space before a text,
        # and some ends take the white space that follows.
        ids = self._ids(end + suffix)
        return ids[1:] if ids[:1] == (after_end_token,) else self._ids(suffix)

    def _render(self, messages: Sequence[_Frozen], tools: str, *, opens_turn: bool = True) -> str:
        offered: list[dict[str, Any]] = json.loads(tools)
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                [_thawed(message) for message in messages],
                tools=offered or None,
                tokenize=False,
                add_generation_prompt=opens_turn,
                strftime_now=_TODAY.strftime,
            )
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            # Messages that a template does not expect, such as one that adds a null to a text.
            raise TemplateRuntimeError(f"{type(error).__name__}: {error}") from error
        return rendered

    def _frozen(self, message: Message) -> _Frozen:
        """A message as the key of a cache, with its ids of calls as the chat template takes them."""
        if len(message) == 2 or self.call_form.shown_id is None:
            return _frozen(message)
        return _frozen(_with_ids(message, self.call_form.shown_id))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def _special(self) -> frozenset[int]:
        """Special tokens, also those that have no name."""
        added = self._tokenizer.added_tokens_decoder
        unnamed = [token_id for token_id, token in added.items() if token.special]
        return frozenset([*self._tokenizer.all_special_ids, *unnamed])

    @cached_property
    def _unspoken(self) -> frozenset[int]:
        """Special tokens that are not part of what is said."""
        markers = self._tokenizer.convert_tokens_to_ids(list(self.call_form.markers))
        return self._special - set(markers) - self._special_thoughts

    @cached_property
    def _special_thoughts(self) -> frozenset[int]:
        """The tokens around thoughts, where they are special ones."""
        added = self._tokenizer.added_tokens_decoder
        return frozenset(
            token_id for token_id, token in added.items() if token.special and token.content in THOUGHTS
        )


def without_end(token_ids: tuple[int, ...], end_token_ids: frozenset[int]) -> tuple[int, ...]:
    """What was sampled, without the end token, which need not be a special one of the tokenizer."""
    return token_ids[:-1] if token_ids and token_ids[-1] in end_token_ids else token_ids


def _frozen(message: Message) -> _Frozen:
    """A message as the key of a cache."""
    if len(message) == 2:
        return message["role"], message["content"]
    return message["role"], message["content"], json.dumps(message)


def _calling(*calls: CalledTool) -> _Frozen:
    """A turn that calls tools and says nothing."""
    return _frozen({"role": "assistant", "content": "", "tool_calls": list(calls)})


def _with_ids(message: Message, shown: Callable[[str], str]) -> Message:
    """The message with other ids of calls."""
    changed: Message = {**message}
    if "tool_call_id" in message:
        changed["tool_call_id"] = shown(message["tool_call_id"])
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": shown(call["id"])} for call in message["tool_calls"]]
    return changed


def _are_long(messages: tuple[_Frozen, ...], tools: str) -> bool:
    return len(tools) + sum(len(text) for message in messages for text in message) > LONG_TEXT


def _thawed(frozen: _Frozen) -> Mapping[str, Any]:
    """The message of a key."""
    if len(frozen) == 2:
        return {"role": frozen[0], "content": frozen[1]}
    message: dict[str, Any] = json.loads(frozen[2])
    return message


class DialogueTurn(NamedTuple):
    """A turn of the policy, and the environment's answer; empty behind the last turn."""

    said: Generation
    answer: tuple[Message, ...] = ()


class Dialogue:
    """One growing conversation: prompt, then turns of the policy and the environment's messages in between.

    Without `messages` it has no tokens at all: an attempt whose environment did not begin. `turns` are what
    the policy said, and what the environment answered to all but the last.
    """

    def __init__(
        self,
        chat: ChatTokenizer,
        messages: Sequence[Message],
        end_token_ids: frozenset[int],
        tools: Sequence[ToolSchema] = (),
    ) -> None:
        self._chat = chat
        self._end_token_ids = end_token_ids
        self._offered = tuple(tools)
        self._tools = json.dumps(list(tools)) if tools else "[]"
        self.turns: list[DialogueTurn] = []
        self.opening: tuple[Message, ...] = tuple(messages)
        self.messages: list[Message] = list(messages)
        self.prompt_token_ids = chat.prompt(messages, self._tools) if messages else ()
        self.response_token_ids: list[int] = []
        self.response_mask: list[int] = []
        self.behaviour_logprobs: list[float] = []
        self.truncated = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Everything so far: the prompt of the next turn."""
        return self.prompt_token_ids + tuple(self.response_token_ids)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return len(self.prompt_token_ids) + len(self.response_token_ids)

    def add_turn(self, generation: Generation, *, is_trained: bool = True) -> AssistantTurn:
        """Append what the policy said; tool calls are read only where tools are offered. What is not trained
        has mask 0 and log-probability 0. The turn's `text` is the answer; tokens and messages have its
        thoughts too."""
        thinks = self._chat.thinks_after(self.response_token_ids or self.prompt_token_ids)
        self.response_token_ids.extend(generation.token_ids)
        self.response_mask.extend([int(is_trained)] * len(generation.token_ids))
        self.behaviour_logprobs.extend(
            generation.logprobs if is_trained else [0.0] * len(generation.token_ids)
        )
        self.truncated = self.truncated or generation.finish_reason == "length"
        form = self._chat.call_form if self._offered else None
        spoken = without_end(generation.token_ids, self._end_token_ids)
        text = self._chat.text(spoken, keep_tool_calls=form is not None)
        turn = read_turn(text, len(self.turns), self._chat.texts, form, self._offered, thinks=thinks)
        self.turns.append(DialogueTurn(generation))
        self.messages.append(turn_message(turn))
        return turn

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Append what the environment said; its tokens are never trained (mask 0, log-probability 0)."""
        last = self.response_token_ids[-1] if self.response_token_ids else None
        ended = last if last is not None and last in self._end_token_ids else None
        token_ids = self._chat.between_turns(messages, ended, self._tools)
        self.response_token_ids.extend(token_ids)
        self.response_mask.extend([0] * len(token_ids))
        self.behaviour_logprobs.extend([0.0] * len(token_ids))
        self.messages.extend(messages)
        self.turns[-1] = DialogueTurn(self.turns[-1].said, tuple(messages))
