"""A conversation as token ids: sampled tokens stay as they were sampled, and are never tokenized again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from transformers import PreTrainedTokenizerBase

from erl_pipeline.engines.interface import Generation
from erl_pipeline.episodes.prompts import Message

_ASSISTANT_TURN = "@@assistant-turn@@"


class ChatTokenizer:
    """The tokenizer with its chat template: messages to prompt ids, observations to the ids between turns."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        # The text between two turns depends on the observation alone, and observations repeat.
        self.between_turns = lru_cache(maxsize=4096)(self._between_turns)
        # The first attempts of a group have one prompt.
        self._prompt_of = lru_cache(maxsize=1024)(self._prompt)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of the messages up to where the assistant begins to speak."""
        return self._prompt_of(tuple(tuple(message.items()) for message in messages))

    def _prompt(self, messages: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[int, ...]:
        text = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, token_ids: Sequence[int]) -> str:
        """What the ids say, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()

    def _between_turns(self, observation: str, after_end_token: int | None) -> tuple[int, ...]:
        """Ids that follow an assistant's turn: its end, the observation as a user message, the next opening.

        The chat template is rendered around a stand-in for the assistant's words and cut after it, so
        that the words themselves need not be rendered. `after_end_token` is the end token that was
        sampled, which is then left out; None when the turn was cut off before its end.
        """
        text = self._tokenizer.apply_chat_template(
            [*self._opening, {"role": "user", "content": observation}],
            tokenize=False,
            add_generation_prompt=True,
        )
        suffix = text.rpartition(_ASSISTANT_TURN)[2]
        if after_end_token is not None:
            end = self._tokenizer.convert_ids_to_tokens(after_end_token)
            suffix = suffix.lstrip(" ").removeprefix(end)
        return tuple(self._tokenizer(suffix, add_special_tokens=False)["input_ids"])

    @cached_property
    def _opening(self) -> list[Message]:
        return [{"role": "user", "content": "."}, {"role": "assistant", "content": _ASSISTANT_TURN}]


class Dialogue:
    """One growing conversation: prompt, then turns of the policy and observations in between."""

    def __init__(
        self, chat: ChatTokenizer, messages: Sequence[Message], end_token_ids: frozenset[int]
    ) -> None:
        self._chat = chat
        self._end_token_ids = end_token_ids
        self.messages: list[Message] = list(messages)
        self.prompt_token_ids = chat.prompt(messages)
        self.response_token_ids: list[int] = []
        self.response_mask: list[int] = []
        self.behaviour_logprobs: list[float] = []
        self.truncated = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Everything so far: the prompt of the next turn."""
        return self.prompt_token_ids + tuple(self.response_token_ids)

    def add_turn(self, generation: Generation) -> str:
        """Append what the policy said; returns it as text."""
        self.response_token_ids.extend(generation.token_ids)
        self.response_mask.extend([1] * len(generation.token_ids))
        self.behaviour_logprobs.extend(generation.logprobs)
        self.truncated = self.truncated or generation.finish_reason == "length"
        text = self._chat.text(generation.token_ids)
        self.messages.append({"role": "assistant", "content": text})
        return text

    def add_observation(self, observation: str) -> None:
        """Append what the environment said; its tokens are never trained (mask 0, log-probability 0)."""
        last = self.response_token_ids[-1]
        token_ids = self._chat.between_turns(observation, last if last in self._end_token_ids else None)
        self.response_token_ids.extend(token_ids)
        self.response_mask.extend([0] * len(token_ids))
        self.behaviour_logprobs.extend([0.0] * len(token_ids))
        self.messages.append({"role": "user", "content": observation})
