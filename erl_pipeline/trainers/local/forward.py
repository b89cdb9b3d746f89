"""Forward and backward passes of a transformers model over microbatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from erl_pipeline.trainers.local.packing import (
    ALONE,
    Dealt,
    Microbatch,
    Ranks,
    deal,
    pack_rows,
    pack_segments,
)
from erl_pipeline.trainers.local.segment_attention import SEGMENTS
from erl_pipeline.trainers.local.tokens import (
    HEAD_CHUNK_TOKENS,
    TokenLoss,
    backward_through_head,
    token_logprobs,
)
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import InputError

_TAKES_SEGMENTS: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
"""Results of `_takes_segments`, while the model lives: its weights change from update to update, its layers
do not."""


@dataclass(frozen=True)
class PassCounts:
    """Forward and backward passes, and the tokens that went through the model in them."""

    microbatches: int = 0
    input_tokens: int = 0

    def __add__(self, other: PassCounts) -> PassCounts:
        return PassCounts(self.microbatches + other.microbatches, self.input_tokens + other.input_tokens)


@dataclass(frozen=True)
class PolicyForward:
    """A model made ready by `ready_for_training`. `shares_prompts` says whether its attention takes segments;
    `ranks` are the processes that share batches."""

    model: PreTrainedModel
    shares_prompts: bool
    ranks: Ranks = ALONE

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def head(self) -> torch.nn.Module:
        head: torch.nn.Module | None = self.model.get_output_embeddings()
        assert head is not None
        return head

    def pack(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[Microbatch]:
        """Microbatches of at most `microbatch_tokens` input tokens, in a fixed order."""
        pack = pack_segments if self.shares_prompts else pack_rows
        return pack(sequences, microbatch_tokens, self.device)

    def hidden(self, microbatch: Microbatch) -> torch.Tensor:
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
        microbatch: Microbatch,
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
        loss_of: Callable[[Microbatch], TokenLoss],
        after_backward: Callable[[], None],
    ) -> PassCounts:
        """`backward` of a whole optimizer batch, microbatch by microbatch. `temperatures`: `[trained]`.

        Gradients and counts are those of all ranks together.
        """
        dealt = self._deal(sequences, microbatch_tokens)
        for microbatch in dealt.own:
            if microbatch is None:
                self.backward(self._empty(), temperatures[:0], _no_loss, after_backward)
            else:
                self.backward(
                    microbatch, temperatures[microbatch.tokens], loss_of(microbatch), after_backward
                )
        return PassCounts(len(dealt.all), sum(microbatch.token_ids.numel() for microbatch in dealt.all))

    @torch.no_grad()
    def scores(
        self, sequences: Sequence[TrainingSequence], temperatures: torch.Tensor, microbatch_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies (nats) of all trained tokens, sequence by sequence. All tensors are
        `[trained]`."""
        logprobs, entropies = torch.zeros_like(temperatures), torch.zeros_like(temperatures)
        for dealt in self._deal(sequences, microbatch_tokens).own:
            microbatch = self._empty() if dealt is None else dealt
            hidden = self.hidden(microbatch)
            for states, targets, tokens in zip(
                hidden.split(HEAD_CHUNK_TOKENS),
                microbatch.targets.split(HEAD_CHUNK_TOKENS),
                microbatch.tokens.split(HEAD_CHUNK_TOKENS),
                strict=True,
            ):
                logprobs[tokens], entropies[tokens] = token_logprobs(
                    self.head, states, targets, temperatures[tokens]
                )
        self.ranks.add_up(logprobs)
        self.ranks.add_up(entropies)
        return logprobs, entropies

    def logprobs(
        self, sequences: Sequence[TrainingSequence], temperatures: torch.Tensor, microbatch_tokens: int
    ) -> torch.Tensor:
        """The log-probabilities of `scores`."""
        return self.scores(sequences, temperatures, microbatch_tokens)[0]

    def sequence_logprobs(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int
    ) -> list[torch.Tensor]:
        """Log-probabilities (nats) of each sequence's trained tokens, at its temperature."""
        return self._sequence_scores(sequences, microbatch_tokens)[0]

    def sequence_entropies(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int
    ) -> list[torch.Tensor]:
        """Entropies (nats) at each sequence's trained tokens, at its temperature."""
        return self._sequence_scores(sequences, microbatch_tokens)[1]

    def _deal(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> Dealt:
        return deal(lambda tokens: self.pack(sequences, tokens), microbatch_tokens, self.ranks)

    def _empty(self) -> Microbatch:
        """A microbatch for the shortest pass, in which no token is trained."""
        (shortest,) = self.pack([_sequence((0,), (0,))], 1)
        return replace(
            shortest, sources=shortest.sources[:0], targets=shortest.targets[:0], tokens=shortest.tokens[:0]
        )

    def _sequence_scores(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        counts = [len(sequence.trained_offsets) for sequence in sequences]
        temperatures = torch.tensor([sequence.temperature for sequence in sequences], device=self.device)
        repeats = torch.tensor(counts, dtype=torch.long, device=self.device)
        # A known size spares waiting for the device, which would have to add the counts up.
        by_token = temperatures.repeat_interleave(repeats, output_size=sum(counts))
        trained = [sequence for sequence in sequences if sequence.trained_offsets]
        logprobs, entropies = self.scores(trained, by_token, microbatch_tokens)
        return list(logprobs.split(counts)), list(entropies.split(counts))


@contextmanager
def ready_for_training(
    model: PreTrainedModel, gradient_checkpointing: bool, ranks: Ranks = ALONE
) -> Iterator[PolicyForward]:
    """Set a model up for training passes and leave it as it was, in evaluation mode.

    Dropout stays off: the policy that is trained must be the one that sampled. Whether its attention takes
    segments is tested on a few tokens, once for each model.

    Raises `InputError` when logits are not simply the output layer of the last hidden state.
    """
    attention = model.config._attn_implementation
    model.eval()
    try:
        if model not in _TAKES_SEGMENTS:
            _TAKES_SEGMENTS[model] = _takes_segments(model, ranks)
        shares_prompts = _TAKES_SEGMENTS[model]
        model.set_attn_implementation(SEGMENTS if shares_prompts else attention)
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            for block in model.modules():
                if isinstance(block, GradientCheckpointingLayer):
                    block.training = True  # only the block itself: its dropout layers stay off
        yield PolicyForward(model, shares_prompts, ranks)
    finally:
        ranks.let_go_of_weights(model)
        if gradient_checkpointing:
            model.gradient_checkpointing_disable()
        model.set_attn_implementation(attention)
        model.eval()


@torch.no_grad()
def _takes_segments(model: PreTrainedModel, ranks: Ranks) -> bool:
    """Whether segments give the same as rows, on two responses that share a prompt and a sequence that shares
    none.

    Leaves the attention on segments when the answer is true.
    """
    sequences = _trial_sequences(model.config.get_text_config().vocab_size)
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    (rows,) = pack_rows(sequences, 10_000, model.device)
    expected = PolicyForward(model, shares_prompts=False, ranks=ranks).hidden(rows)
    _refuse_other_heads(model, rows, expected, tolerance)
    # A sliding window is longer than these few tokens, so the comparison below would not show its effect.
    if model.config.get_text_config().to_dict().get("sliding_window") is not None:
        return False
    model.set_attn_implementation(SEGMENTS)
    if model.config._attn_implementation != SEGMENTS:
        return False
    (stream,) = pack_segments(sequences, 10_000, model.device)
    actual = PolicyForward(model, shares_prompts=True, ranks=ranks).hidden(stream)
    return _close(actual[stream.tokens.argsort()], expected[rows.tokens.argsort()], tolerance)


def _refuse_other_heads(
    model: PreTrainedModel, rows: Microbatch, hidden: torch.Tensor, tolerance: float
) -> None:
    head = model.get_output_embeddings()
    logits = (
        model(input_ids=rows.token_ids, use_cache=False).logits.flatten(0, 1).index_select(0, rows.sources)
    )
    if head is None or not _close(head(hidden), logits, tolerance):
        raise InputError(
            f"{type(model).__name__} cannot be trained: its logits are not the output layer applied to the "
            "last hidden state (they are scaled or capped afterwards). Choose another policy.model."
        )


def _close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    # Numbers that are not finite pass here: the update reports them better.
    return not bool((actual - expected).abs().max() > tolerance * expected.abs().max())


def _trial_sequences(vocabulary: int) -> list[TrainingSequence]:
    def ids(first: int, count: int) -> tuple[int, ...]:
        return tuple((first + 7 * place) % vocabulary for place in range(count))

    return [
        _sequence(ids(prompt, length), ids(response, count))
        for prompt, length, response, count in ((3, 5, 1, 4), (3, 5, 2, 3), (4, 3, 5, 2))
    ]


def _sequence(prompt: tuple[int, ...], response: tuple[int, ...]) -> TrainingSequence:
    return TrainingSequence(
        trajectory_id="trial",
        role="trial",
        prompt_token_ids=prompt,
        response_token_ids=response,
        response_mask=(1,) * len(response),
        behaviour_logprobs=(),
        advantage=0.0,
    )


def _no_loss(logprobs: torch.Tensor, entropies: torch.Tensor, place: slice) -> torch.Tensor:
    return logprobs.sum()
