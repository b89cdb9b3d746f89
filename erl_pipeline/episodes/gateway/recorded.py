"""What the policy answered in an attempt that was recorded, given once more to the same questions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from erl_pipeline.engines.interface import Generation, GenerationRequest
from storage.errors import NotRepeated
from storage.tables.agent_calls import AgentCall
from storage.tables.trajectories import Trajectory

_SHOWN_TOKENS = 24
"""Tokens before a difference, and after it, that are shown."""


@dataclass(frozen=True)
class RecordedAnswer:
    """The tokens that were sent, and what was sampled after them."""

    prompt_token_ids: tuple[int, ...]
    generation: Generation


def recorded_answers(sequences: Sequence[Trajectory], calls: Iterable[AgentCall]) -> list[RecordedAnswer]:
    """The answers of an attempt, in the order in which they were asked for. `sequences` are its first one and
    its further ones."""
    answers = []
    for call in sorted(calls, key=lambda each: (each.arrived_ms, each.choice)):
        if call.sequence_index is None or call.start is None or call.end is None:
            continue
        row = sequences[call.sequence_index]
        generation = Generation(
            row.response_token_ids[call.start : call.end],
            row.behaviour_logprobs[call.start : call.end],
            "length" if call.finish == "length" else "stop",
        )
        prompt = (*row.prompt_token_ids, *row.response_token_ids[: call.start])
        answers.append(RecordedAnswer(prompt, generation))
    return answers


class RecordedPolicy:
    """Answers a prompt as it was answered before; several equal prompts in their order. `text` decodes."""

    def __init__(self, answers: Sequence[RecordedAnswer], text: Callable[[Sequence[int]], str]) -> None:
        self._text = text
        self._waiting: dict[tuple[int, ...], deque[Generation]] = {}
        for each in answers:
            self._waiting.setdefault(each.prompt_token_ids, deque()).append(each.generation)

    @property
    def left(self) -> int:
        """Answers that nobody has asked for yet."""
        return sum(map(len, self._waiting.values()))

    async def ask(self, request: GenerationRequest) -> Generation:
        """The answer. Raises `NotRepeated`, saying where it differs, for a prompt that was not recorded."""
        waiting = self._waiting.get(request.prompt_token_ids)
        if not waiting:
            raise NotRepeated(self._difference(request.prompt_token_ids))
        return waiting.popleft()

    def _difference(self, prompt: tuple[int, ...]) -> str:
        if prompt in self._waiting:
            end = self._shown(prompt[-_SHOWN_TOKENS:])
            return f"the agent asks once more than it did what ends in {end}"
        nearest = max(self._waiting, key=lambda each: _common(each, prompt), default=())
        same = _common(nearest, prompt)
        last = self._shown(prompt[max(0, same - _SHOWN_TOKENS) : same])
        place = f"after {last}" if same else "at its beginning"
        before, now = (self._shown(each[same : same + _SHOWN_TOKENS]) for each in (nearest, prompt))
        return f"the agent asks something else than it did: {place} it said {before}, and now it says {now}"

    def _shown(self, token_ids: Sequence[int]) -> str:
        return repr(self._text(token_ids)) if token_ids else "nothing more"


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens are the same, from the beginning."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
