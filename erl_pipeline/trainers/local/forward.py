"""Forward and backward passes of a transformers model over microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.interface import GradientSums
from erl_pipeline.trainers.local import packing
from erl_pipeline.trainers.local.attention import SegmentAttention
from erl_pipeline.trainers.local.block_attention import moved
from erl_pipeline.trainers.local.tokens import (
    HEAD_CHUNK_TOKENS,
    TokenLoss,
    backward_through_head,
    by_token,
    logit_statistics,
    support_logprobs,
    token_logprobs,
)
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence

PackedAttention = SegmentAttention | Literal["rows"]
"""How attention of packed sequences is computed; `rows`: as the model itself does, on padded rows."""


@dataclass(frozen=True)
class PassCounts:
    """Forward and backward passes, and the tokens that went through the model in them."""

    microbatches: int = 0
    input_tokens: int = 0

    def __add__(self, other: PassCounts) -> PassCounts:
        return PassCounts(self.microbatches + other.microbatches, self.input_tokens + other.input_tokens)


@dataclass(frozen=True)
class PolicyForward:
    """A model made ready by `ready_for_training`. `ranks` are the processes that share batches."""

    model: PreTrainedModel
    attention: PackedAttention
    ranks: packing.Ranks = packing.ALONE
    gradient_sums: GradientSums = "microbatch"

    @property
    def shares_prompts(self) -> bool:
        """Whether a prompt goes through the model once for several responses."""
        return self.attention != "rows"

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def head(self) -> torch.nn.Module:
        head: torch.nn.Module | None = self.model.get_output_embeddings()
        assert head is not None
        return head

    def plan(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int
    ) -> list[packing.PlannedMicrobatch]:
        """Microbatches of at most `microbatch_tokens` input tokens, in a fixed order."""
        if self.attention == "rows":
            return packing.plan_rows(sequences, microbatch_tokens, self.device)
        return packing.plan_segments(sequences, microbatch_tokens, self.device, self.attention)

    def hidden(self, microbatch: packing.Microbatch) -> torch.Tensor:
        """Hidden states `[trained, hidden]` from which the trained tokens are predicted."""
        self.ranks.gather_weights(self.model)
        # Rows need no mask: their padding comes after every token that counts.
        layout = {} if microbatch.segments is None else {"segments": microbatch.segments}
        output = self.model.base_model(
            input_ids=microbatch.token_ids, position_ids=microbatch.positions, use_cache=False, **layout
        )
        hidden: torch.Tensor = output.last_hidden_state.flatten(0, 1)
        return hidden.index_select(0, microbatch.sources)

    def backward(
        self,
        microbatch: packing.Microbatch,
        temperatures: torch.Tensor,
        loss: TokenLoss,
        after_backward: Callable[[], None],
    ) -> None:
        """Add the gradients of a loss that is a sum over the microbatch's trained tokens.

        Args:
            temperatures: `[trained]`.
            loss, after_backward: as in `backward_through_head`; places count the microbatch's trained tokens.
        """
        hidden = self.hidden(microbatch)
        backward_through_head(self.head, hidden, microbatch.targets, temperatures, loss, after_backward)

    def backward_batch(
        self,
        sequences: Sequence[TrainingSequence],
        temperatures: torch.Tensor,
        microbatch_tokens: int,
        loss_of: Callable[[packing.Microbatch], TokenLoss],
        after_backward: Callable[[], None],
    ) -> PassCounts:
        """`backward` of a whole optimizer batch, microbatch by microbatch. `temperatures`: `[trained]`.

        Gradients and counts are those of all ranks together.
        """

        def backward(planned: packing.PlannedMicrobatch | None) -> None:
            if planned is None:
                self.backward(
                    self._empty(), temperatures[:0], lambda logprobs, *_: logprobs.sum(), after_backward
                )
            else:
                microbatch = planned.build()
                self.backward(
                    microbatch, temperatures[microbatch.tokens], loss_of(microbatch), after_backward
                )

        dealt = self._deal(sequences, microbatch_tokens)
        for number, planned in enumerate(dealt.own, start=1):
            if self.gradient_sums == "step":
                self.ranks.sum_gradients(self.model, number == len(dealt.own))
            backward(planned)  # a function, so that nothing of a microbatch is left when the next is built
        return PassCounts(dealt.microbatches, dealt.input_tokens)

    @torch.no_grad()
    def scores(
        self, sequences: Sequence[TrainingSequence], temperatures: torch.Tensor, microbatch_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies (nats) of all trained tokens, sequence by sequence. All tensors are
        `[trained]`."""
        logprobs, entropies = torch.zeros_like(temperatures), torch.zeros_like(temperatures)

        def score(states: torch.Tensor, targets: torch.Tensor, tokens: torch.Tensor) -> None:
            logprobs[tokens], entropies[tokens] = token_logprobs(
                self.head, states, targets, temperatures[tokens]
            )

        self._score(sequences, microbatch_tokens, score)
        self.ranks.add_up(logprobs)
        self.ranks.add_up(entropies)
        return logprobs, entropies

    def logprobs(
        self, sequences: Sequence[TrainingSequence], temperatures: torch.Tensor, microbatch_tokens: int
    ) -> torch.Tensor:
        """The log-probabilities of `scores`."""
        return self.scores(sequences, temperatures, microbatch_tokens)[0]

    @torch.no_grad()
    def token_scores(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int, top_k: int
    ) -> list[TokenScores]:
        """What the policy says at each sequence's trained tokens, each of which has one at least; see
        `Trainer.token_scores`."""
        given = [sequence.teacher.ids for sequence in sequences if sequence.teacher is not None]
        if given and len(given) < len(sequences):
            raise ValueError("either all sequences have tokens to compare, or none")
        wanted = moved(np.concatenate(given), self.device).long() if given else None
        vocabulary: int = self.model.config.get_text_config().vocab_size
        chosen = min(top_k, vocabulary) if wanted is None else wanted.shape[1]
        temperatures = self._temperatures(sequences)
        logprobs, entropies, tails = (torch.zeros_like(temperatures) for _ in range(3))
        id_logprobs = temperatures.new_zeros(len(temperatures), chosen)
        ids = torch.zeros_like(id_logprobs, dtype=torch.int32)

        def score(states: torch.Tensor, targets: torch.Tensor, tokens: torch.Tensor) -> None:
            logits = self.head(states)
            logprobs[tokens], entropies[tokens] = logit_statistics(logits, targets, temperatures[tokens])
            if not chosen:
                return  # All words are the others, and their probability is 1.
            compared = logits.topk(chosen, dim=-1).indices if wanted is None else wanted[tokens]
            ids[tokens] = compared.int()
            id_logprobs[tokens], tails[tokens] = support_logprobs(logits, compared, temperatures[tokens])

        self._score(sequences, microbatch_tokens, score)
        columns = logprobs, entropies, ids, id_logprobs, tails
        for column in columns:
            self.ranks.add_up(column)
        ends = np.cumsum([sequence.trained_tokens for sequence in sequences])[:-1]
        parts = [np.split(column.cpu().numpy(), ends) for column in columns]
        return [TokenScores(*each) for each in zip(*parts, strict=True)]

    def sequence_scores(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Log-probabilities and entropies (nats) of each sequence's trained tokens, at its temperature."""
        counts = [sequence.trained_tokens for sequence in sequences]
        temperatures = self._temperatures(sequences)
        trained = [sequence for sequence in sequences if sequence.trained_tokens]
        logprobs, entropies = self.scores(trained, temperatures, microbatch_tokens)
        return list(logprobs.split(counts)), list(entropies.split(counts))

    def _score(
        self,
        sequences: Sequence[TrainingSequence],
        microbatch_tokens: int,
        score: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
    ) -> None:
        """Call `score` with what each chunk of this rank's trained tokens is scored from: hidden states,
        targets, and the tokens' numbers among all trained ones."""

        def score_microbatch(microbatch: packing.Microbatch) -> None:
            for chunk in zip(
                self.hidden(microbatch).split(HEAD_CHUNK_TOKENS),
                microbatch.targets.split(HEAD_CHUNK_TOKENS),
                microbatch.tokens.split(HEAD_CHUNK_TOKENS),
                strict=True,
            ):
                score(*chunk)

        for planned in self._deal(sequences, microbatch_tokens).own:
            score_microbatch(self._empty() if planned is None else planned.build())

    def _temperatures(self, sequences: Sequence[TrainingSequence]) -> torch.Tensor:
        """`[trained]`, fp32."""
        values = np.array([sequence.temperature for sequence in sequences], dtype=np.float32)
        return by_token(values, [sequence.trained_tokens for sequence in sequences], self.device)

    def _deal(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> packing.Dealt:
        return packing.deal(lambda tokens: self.plan(sequences, tokens), microbatch_tokens, self.ranks)

    def _empty(self) -> packing.Microbatch:
        """A microbatch for the shortest pass, in which no token is trained."""
        (planned,) = self.plan([trial_sequence((0,), (0,))], 1)
        shortest = planned.build()
        return replace(
            shortest, sources=shortest.sources[:0], targets=shortest.targets[:0], tokens=shortest.tokens[:0]
        )


def trial_sequence(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingSequence:
    """A sequence without a reward, to try a model with."""
    return TrainingSequence(
        trajectory_id="trial",
        role="trial",
        prompt_token_ids=prompt,
        response_token_ids=response,
        response_mask=(1,) * len(response),
        behaviour_logprobs=(),
        advantage=0.0,
    )
