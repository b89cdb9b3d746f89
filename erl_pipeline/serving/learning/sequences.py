"""The token sequences of a served episode: chains of turns, each sampled token once, behind exactly the
tokens that it was sampled after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from erl_pipeline.config.rollouts import LEAST_TEMPERATURE
from erl_pipeline.environments.messages import THOUGHTS
from storage.serving.traffic import ServedTurn
from storage.tables.trajectories import are_logprobs

LOST = "the turn before it is not in the log"
UNEVEN = "its log-probabilities do not fit its tokens"


class AnswerPlace(NamedTuple):
    """How many messages and response tokens of a sequence stand before an answer."""

    messages: int
    tokens: int


@dataclass
class TurnSequence:
    """Turns that were sampled one after the other, by one policy at one temperature.

    A turn that cannot be trained is context: its mask is 0. `not_trainable` says why there is nothing else;
    it is empty where something can be trained.
    """

    prompt: tuple[int, ...]
    turns: list[ServedTurn] = field(default_factory=list)
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    """What was said from the beginning of the conversation to the last turn."""
    is_lost: bool = False
    answers: list[AnswerPlace] = field(default_factory=list)
    """Where the answer of each turn begins."""

    @property
    def not_trainable(self) -> str:
        if self.is_lost:
            return LOST
        if any(self.mask):
            return ""
        return next(filter(None, map(_why_not, self.turns)))

    def continues(self, turn: ServedTurn) -> bool:
        """Whether a turn was sampled after the last one, in the same way."""
        last = self.turns[-1]
        return turn.after == last.turn_id and _sampler(turn) == _sampler(last)

    def add(self, turn: ServedTurn) -> None:
        """Take the sampled tokens of a turn, whose context stands before."""
        trained = not _why_not(turn) and not self.is_lost
        self.turns.append(turn)
        self.answers.append(AnswerPlace(len(self.messages) + len(turn.messages), len(self.response)))
        self.response += turn.sampled_token_ids
        self.mask += [int(trained)] * len(turn.sampled_token_ids)
        self.logprobs += turn.logprobs if trained else [0.0] * len(turn.sampled_token_ids)
        self.messages += [*turn.messages, _with_thoughts(turn.answer)]

    def add_context(self, tokens: Sequence[int]) -> None:
        self.response += tokens
        self.mask += [0] * len(tokens)
        self.logprobs += [0.0] * len(tokens)


def _with_thoughts(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """An answer as rows have it: its thoughts, which clients are told apart, stand in its content."""
    thoughts = answer.get("reasoning_content")
    if not thoughts:
        return answer
    said = {key: value for key, value in answer.items() if key != "reasoning_content"}
    return {**said, "content": "\n".join((THOUGHTS[0], thoughts, THOUGHTS[1], answer["content"]))}


def turn_sequences(turns: Sequence[ServedTurn]) -> list[TurnSequence]:
    """Each turn in exactly one sequence, in the order in which they were asked for; `turns` are in that of
    the log.

    A turn goes on with the sequence of the turn before it, unless another turn has done so or the sampler is
    another one: then it begins a sequence, whose prompt is everything before it.
    """
    sequences: list[TurnSequence] = []
    sequence_of: dict[str | None, TurnSequence] = {}
    for turn in _as_asked_for(turns):
        if turn.turn_id in sequence_of:
            continue
        sequence = sequence_of.get(turn.after)
        if sequence is not None and sequence.continues(turn):
            sequence.add_context(turn.context_token_ids)
        else:
            sequence = _begun(turn, sequence)
            sequences.append(sequence)
        sequence.add(turn)
        sequence_of[turn.turn_id] = sequence
    return sequences


def _as_asked_for(turns: Sequence[ServedTurn]) -> list[ServedTurn]:
    """By time, but each turn behind the one before it: a clock may have been set back in between."""
    asked: dict[str | None, float] = {}
    for turn in turns:
        arrived = turn.arrived.timestamp()  # Times with a zone are slow to compare.
        asked[turn.turn_id] = max(arrived, asked.get(turn.after, arrived))
    return sorted(turns, key=lambda each: asked[each.turn_id])


def _begun(turn: ServedTurn, parent: TurnSequence | None) -> TurnSequence:
    """A sequence that begins with a turn, behind the part of its `parent` that ends with the turn before."""
    if parent is None:
        # The first sampled token needs something before it, too.
        lost = turn.after is not None or not turn.context_token_ids
        return TurnSequence(turn.context_token_ids, is_lost=lost)
    number = next(number for number, each in enumerate(parent.turns) if each.turn_id == turn.after)
    answer, sampled = parent.answers[number], parent.turns[number].sampled_token_ids
    return TurnSequence(
        prompt=(*parent.prompt, *parent.response[: answer.tokens + len(sampled)], *turn.context_token_ids),
        messages=parent.messages[: answer.messages + 1],
        is_lost=parent.is_lost,
    )


def _sampler(turn: ServedTurn) -> tuple[str, str, float]:
    return turn.policy_version, turn.tokenizer_digest, turn.temperature


def _why_not(turn: ServedTurn) -> str:
    """Why the tokens of a turn cannot be trained; empty if they can."""
    if turn.not_trainable:
        return turn.not_trainable
    logprobs = turn.logprobs
    if not logprobs or len(logprobs) != len(turn.sampled_token_ids):
        return UNEVEN
    if not are_logprobs(logprobs):
        return "its log-probabilities are none"
    if turn.temperature >= LEAST_TEMPERATURE:
        return ""
    return f"it was sampled at temperature {turn.temperature:g}"
