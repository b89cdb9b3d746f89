"""What a trainer is given: one token sequence with what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.tables.training import SftRow
    from storage.tables.trajectories import Trajectory

DISTILLED = "distilled"
"""The role of supervised rows whose response is trained on the prompt that evaluation uses."""


@dataclass(frozen=True)
class TrainingSequence:
    """A prompt and the response to train on.

    `response_mask` is 1 on tokens of the policy and 0 on those of the environment; log-probabilities
    (nats, after temperature) are those of the sampler, 0.0 where the mask is 0, and empty for
    supervised rows. `weight` multiplies the sequence's losses.
    """

    trajectory_id: str
    role: str
    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]
    response_mask: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    advantage: float
    weight: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.response_token_ids and not self.prompt_token_ids:
            raise ValueError(
                f"trajectory {self.trajectory_id} has an empty prompt: its first token has no predecessor"
            )
        lengths = {len(self.response_token_ids), len(self.response_mask)}
        if self.behaviour_logprobs:
            lengths.add(len(self.behaviour_logprobs))
        if len(lengths) > 1:
            raise ValueError(
                f"trajectory {self.trajectory_id} has {len(self.response_token_ids)} response tokens, "
                f"{len(self.response_mask)} mask entries and {len(self.behaviour_logprobs)} log-probabilities"
            )

    @cached_property
    def trained_offsets(self) -> tuple[int, ...]:
        """Positions in the response of the tokens that are trained."""
        return tuple(offset for offset, bit in enumerate(self.response_mask) if bit)


def trajectory_sequence(row: Trajectory, advantage: float = 0.0) -> TrainingSequence:
    """A stored trajectory as a sequence to train on, or to compute log-probabilities of."""
    return TrainingSequence(
        trajectory_id=row.trajectory_id,
        role=row.role,
        prompt_token_ids=row.prompt_token_ids,
        response_token_ids=row.response_token_ids,
        response_mask=row.response_mask,
        behaviour_logprobs=row.behaviour_logprobs,
        advantage=advantage,
        temperature=row.temperature,
    )


def supervised_sequence(row: SftRow) -> TrainingSequence:
    """A row of a distillation dataset; the prompt reaches up to the first token that is trained."""
    start = row.loss_mask.index(1) if 1 in row.loss_mask else len(row.loss_mask)
    return TrainingSequence(
        trajectory_id=row.trajectory_id,
        role=row.role or DISTILLED,
        prompt_token_ids=row.input_token_ids[:start],
        response_token_ids=row.input_token_ids[start:],
        response_mask=row.loss_mask[start:],
        behaviour_logprobs=(),
        advantage=1.0,
        weight=row.weight,
    )
