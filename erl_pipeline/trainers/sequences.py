"""What a trainer is given: one token sequence with what is known about it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from erl_pipeline.config.distillation import DISTILLED
from erl_pipeline.config.objective import OBSERVED

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage.tables.training import SftRow
    from storage.tables.trajectories import Trajectory


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What a policy says at the trained tokens of a sequence, in nats after temperature, fp32. `logprobs` of
    these tokens and `entropies`: `[trained]`. `ids`, int32, and `id_logprobs`, of the tokens that are
    compared at each place: `[trained, chosen]`. `tail_logprobs`, of all other tokens together: `[trained]`,
    -inf where there are none."""

    logprobs: npt.NDArray[np.float32]
    entropies: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int32]
    id_logprobs: npt.NDArray[np.float32]
    tail_logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True)
class TrainingSequence:
    """A prompt and the response to train on.

    `response_mask` is 1 on tokens of the policy and 0 on those of the environment; log-probabilities
    (nats, after temperature) are those of the sampler, 0.0 where the mask is 0, and empty for
    supervised rows. `weight` multiplies the sequence's losses. `token_advantages` are added to the
    `advantage`, one for each response token; empty for none. `teacher`: what a teacher says at the trained
    tokens, for a loss of self-distillation; None for none. `apart`: for each response token, 0 where its
    policy loss is averaged with those of all others, and else the weight of the mean over such tokens alone;
    empty for all others.
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
    token_advantages: tuple[float, ...] = ()
    teacher: TokenScores | None = None
    apart: tuple[float, ...] = ()

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
        if self.token_advantages and len(self.token_advantages) != len(self.response_token_ids):
            raise ValueError(
                f"trajectory {self.trajectory_id} has {len(self.response_token_ids)} response tokens and "
                f"{len(self.token_advantages)} advantages of tokens"
            )

    @cached_property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """Prompt and response, `[tokens]`."""
        return np.frombuffer(_packed("q", self.prompt_token_ids + self.response_token_ids), dtype=np.int64)

    @cached_property
    def trained_offsets(self) -> npt.NDArray[np.int64]:
        """Positions in the response of the tokens that are trained, `[trained]`."""
        return np.frombuffer(bytes(self.response_mask), dtype=np.uint8).nonzero()[0]

    @cached_property
    def trained_behaviour_logprobs(self) -> npt.NDArray[np.float64]:
        """The sampler's log-probabilities of the tokens that are trained, `[trained]`; 0.0 without any."""
        if not self.behaviour_logprobs:
            return np.zeros(self.trained_tokens)
        stored = np.frombuffer(_packed("d", self.behaviour_logprobs), dtype=np.float64)
        return stored[self.trained_offsets]

    @property
    def trained_tokens(self) -> int:
        return len(self.trained_offsets)

    @cached_property
    def trained_advantages(self) -> npt.NDArray[np.float64]:
        """The advantages of the tokens that are trained, `[trained]`."""
        if not self.token_advantages:
            return np.full(self.trained_tokens, self.advantage)
        added = np.frombuffer(_packed("d", self.token_advantages), dtype=np.float64)
        return self.advantage + added[self.trained_offsets]

    @cached_property
    def trained_apart(self) -> npt.NDArray[np.float64]:
        """`apart` of the tokens that are trained, `[trained]`."""
        return np.array(self.apart)[self.trained_offsets] if self.apart else np.zeros(self.trained_tokens)

    @property
    def has_advantage(self) -> bool:
        """Whether any of its tokens can have a policy loss."""
        return self.advantage != 0.0 or any(self.token_advantages)


def _packed(format_: str, numbers: Sequence[float]) -> bytes:
    """Numbers as bytes. numpy needs four times as long to read a tuple."""
    return struct.pack(f"{len(numbers)}{format_}", *numbers)


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


def observed_sequence(row: Trajectory, weight: float) -> TrainingSequence | None:
    """What the environment said between a trajectory's turns, to be predicted; None for one of a single
    turn."""
    mask = tuple(1 - said for said in row.response_mask)
    if not any(mask):
        return None
    return TrainingSequence(
        trajectory_id=row.trajectory_id,
        role=OBSERVED,
        prompt_token_ids=row.prompt_token_ids,
        response_token_ids=row.response_token_ids,
        response_mask=mask,
        behaviour_logprobs=(),
        advantage=1.0,
        weight=weight,
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
