"""A call between its arrival and its answer, and the record that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from erl_pipeline.engines.interface import GenerationRequest
from erl_pipeline.episodes.gateway.api import ChatCompletion, Choice
from erl_pipeline.episodes.gateway.chat_api import CHAT
from erl_pipeline.episodes.gateway.sequences import AttemptSequences, RecordedTurn
from erl_pipeline.episodes.gateway.sequences import Call as Place
from erl_pipeline.serving.episodes import Episode
from erl_pipeline.serving.notes import Notes
from erl_pipeline.serving.policies import OpenedPolicy
from erl_pipeline.serving.requests import ServedRequest
from storage.serving.traffic import ServedTurn


@dataclass(frozen=True)
class PlacedCall:
    """A call that is about to be answered. `choices` are its places in the sequences of its episode, one for
    each answer. `held`: what is released when it has ended."""

    call_id: str
    tenant: str
    request: ServedRequest
    policy: OpenedPolicy
    episode: Episode
    sequences: AttemptSequences
    notes: Notes
    choices: Sequence[Place]
    arrived: datetime
    began: float
    held: AsyncExitStack

    @property
    def headers(self) -> dict[str, str]:
        """What the client is told beside the answer. A call that is not stored belongs to no episode."""
        told = {"x-erl-call-id": self.call_id, "x-erl-checkpoint": self.policy.checkpoint_id}
        if self.request.is_stored:
            told["x-erl-episode-id"] = self.episode.known.episode_id
        return told

    @property
    def prompt_tokens(self) -> int:
        return len(self.choices[0].prompt_token_ids)

    @property
    def room(self) -> int:
        """How many tokens an answer may have."""
        return self.policy.context_length - self.prompt_tokens

    async def give_up(self) -> None:
        """Release the call's places, for it is not answered."""
        for choice in self.choices:
            self.sequences.give_up(choice)
        await self.held.aclose()


def served_turn(
    placed: PlacedCall,
    number: int,
    asked: GenerationRequest,
    choice: Choice,
    logprobs: Sequence[float],
    seconds: float,
) -> ServedTurn:
    """The record of one answer of a call; `logprobs` may be those of more tokens than were kept."""
    place, episode, policy = placed.choices[number], placed.episode, placed.policy
    assert place.answered is not None
    sampled = place.answered.token_ids[len(place.prompt_token_ids) :]
    # A turn without an id is not in the log.
    after = place.after if place.after in episode.turn_ids else None
    return ServedTurn(
        turn_id=f"{placed.call_id}-{number}",
        call_id=placed.call_id,
        episode_id=episode.known.episode_id,
        tenant=placed.tenant,
        user=episode.known.user,
        task_type=episode.task_type,
        alias=policy.change.alias,
        policy_version=policy.checkpoint_id,
        tokenizer_digest=policy.tokenizer_digest,
        temperature=asked.temperature,
        after=None if after is None else episode.turn_ids[after],
        context_token_ids=place.prompt_token_ids[0 if after is None else len(after.token_ids) :],
        sampled_token_ids=sampled,
        logprobs=tuple(logprobs[: len(sampled)]),
        seed=asked.seed,
        finish_reason="length" if choice.answer.cut_off else "stop",
        not_trainable="" if asked.temperature > 0 else "temperature 0",
        messages=tuple(_messages_since(after, placed.request.messages)),
        answer=CHAT.answer(ChatCompletion("", "", [choice], 0))["choices"][0]["message"],
        notes=placed.notes.text,
        memory_version=placed.notes.memory_version,
        memory_entry_ids=placed.notes.entry_ids,
        arrived=placed.arrived,
        seconds=seconds,
    )


def _messages_since(
    after: RecordedTurn | None, messages: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """What the client wrote after the messages of a turn."""
    if after is None:
        return messages
    answers = sum(each["role"] == "assistant" for each in after.messages)
    ends = [place for place, each in enumerate(messages, start=1) if each.get("role") == "assistant"]
    return messages[max(ends[:answers], default=0) :]
