"""Cutting sequences into microbatches, in which responses to one prompt share that prompt, and how the
processes that train one policy ("ranks") share an optimizer batch.

Every rank has the whole batch, and so the same weights of tokens, which are normalised over all of it. A
rank computes some of the microbatches; gradients, and what is observed, are added up over the ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.local.segment_attention import AttentionBlock
from erl_pipeline.trainers.sequences import TrainingSequence

_BLOCK_PAIRS = 2**18  # query-key pairs of one batch of products: its scores stay in the CPU's cache
_SHORTEST_SHARE = 0.75  # of the longest segment of a block; below it padding costs more than another block


@dataclass(frozen=True)
class Microbatch:
    """The input of one forward and backward pass.

    `token_ids`, `positions`: `[rows, time]`. Stream layout: one row without padding and `segments` for
    attention. Row layout: one sequence in each row, padded on the right, and `segments` None. `sources`:
    `[trained]`, positions in the flattened input whose next token is trained; `targets`: `[trained]`, those
    tokens; `tokens`: `[trained]`, their numbers among all trained tokens of the sequences that were packed,
    counted sequence by sequence.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    segments: tuple[AttentionBlock, ...] | None
    sources: torch.Tensor
    targets: torch.Tensor
    tokens: torch.Tensor


@dataclass(frozen=True)
class _Family:
    """Indices of sequences that share a prompt. A single sequence is one segment, prompt and response
    together."""

    members: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class _Segment:
    """A run of tokens in the stream; `ancestor` is the place and length of the prompt it also sees."""

    start: int
    length: int
    ancestor: tuple[int, int] = (0, 0)


def pack_segments(
    sequences: Sequence[TrainingSequence], microbatch_tokens: int, device: torch.device
) -> list[Microbatch]:
    """Pack without padding, each prompt once for the responses that fit beside it into the budget.

    Tokens after the last trained one of a response are left out. A sequence that is longer than the budget
    makes a microbatch of its own.
    """
    firsts = _first_tokens(sequences)
    batches: list[list[_Family]] = []
    room = 0
    for family in sorted(_families(sequences, microbatch_tokens), key=lambda family: -family.tokens):
        if family.tokens > room:
            batches.append([])
            room = microbatch_tokens
        batches[-1].append(family)
        room -= family.tokens
    return [_stream(sequences, firsts, batch, device) for batch in batches]


def pack_rows(
    sequences: Sequence[TrainingSequence], microbatch_tokens: int, device: torch.device
) -> list[Microbatch]:
    """Pack one sequence into each row, rows of similar length together, padded on the right.

    For models whose attention takes no segments; under causal attention the padding changes nothing.
    """
    firsts = _first_tokens(sequences)
    by_length = sorted(range(len(sequences)), key=lambda i: -_input_length(sequences[i]))
    batches: list[list[int]] = []
    width = 0
    for index in by_length:
        if not batches or (len(batches[-1]) + 1) * width > microbatch_tokens:
            batches.append([])
            width = _input_length(sequences[index])
        batches[-1].append(index)
    return [_rows(sequences, firsts, batch, device) for batch in batches]


def _input_length(sequence: TrainingSequence) -> int:
    """Tokens that are needed to predict the last trained one."""
    return len(sequence.prompt_token_ids) + sequence.trained_offsets[-1]


def _first_tokens(sequences: Sequence[TrainingSequence]) -> list[int]:
    """Index of each sequence's first trained token among those of all sequences."""
    firsts, count = [], 0
    for sequence in sequences:
        firsts.append(count)
        count += len(sequence.trained_offsets)
    return firsts


def _families(sequences: Sequence[TrainingSequence], budget: int) -> Iterable[_Family]:
    by_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, sequence in enumerate(sequences):
        by_prompt[sequence.prompt_token_ids].append(index)
    for prompt, members in by_prompt.items():
        members.sort(key=lambda i: -_input_length(sequences[i]))
        taken: list[int] = []
        tokens = len(prompt)
        for index in members:
            response = _input_length(sequences[index]) - len(prompt)
            if taken and tokens + response > budget:
                yield _Family(tuple(taken), tokens)
                taken, tokens = [], len(prompt)
            taken.append(index)
            tokens += response
        yield _Family(tuple(taken), tokens)


def _stream(
    sequences: Sequence[TrainingSequence],
    firsts: Sequence[int],
    families: Sequence[_Family],
    device: torch.device,
) -> Microbatch:
    token_ids: list[int] = []
    positions: list[int] = []
    segments: list[_Segment] = []
    sources: list[int] = []
    targets: list[int] = []
    tokens: list[int] = []
    for family in families:
        prompt = sequences[family.members[0]].prompt_token_ids
        start = len(token_ids)
        token_ids += prompt
        positions += range(len(prompt))
        shared = len(family.members) > 1
        if shared:
            segments.append(_Segment(start, len(prompt)))
        for index in family.members:
            sequence = sequences[index]
            offsets = sequence.trained_offsets
            response_start = len(token_ids)
            # A response token's predecessor is the one before it, or the prompt's last.
            sources += [
                response_start + offset - 1 if offset else start + len(prompt) - 1 for offset in offsets
            ]
            targets += [sequence.response_token_ids[offset] for offset in offsets]
            tokens += range(firsts[index], firsts[index] + len(offsets))
            token_ids += sequence.response_token_ids[: offsets[-1]]
            positions += range(len(prompt), len(prompt) + offsets[-1])
            if not shared:
                segments.append(_Segment(start, len(prompt) + offsets[-1]))
            elif offsets[-1]:
                segments.append(_Segment(response_start, offsets[-1], (start, len(prompt))))

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Microbatch(
        token_ids=tensor(token_ids)[None],
        positions=tensor(positions)[None],
        segments=tuple(_block(group, device) for group in _similar(segments)),
        sources=tensor(sources),
        targets=tensor(targets),
        tokens=tensor(tokens),
    )


def _similar(segments: Iterable[_Segment]) -> list[list[_Segment]]:
    """Group segments of similar length, those with an ancestor apart from those without."""
    groups: list[list[_Segment]] = []
    for segment in sorted(segments, key=lambda s: (s.ancestor[1] > 0, -s.length, -s.ancestor[1])):
        first = groups[-1][0] if groups else None
        if (
            first is None
            or (first.ancestor[1] > 0) != (segment.ancestor[1] > 0)
            or segment.length < _SHORTEST_SHARE * first.length
            or (len(groups[-1]) + 1) * first.length * (first.length + first.ancestor[1]) > _BLOCK_PAIRS
        ):
            groups.append([])
        groups[-1].append(segment)
    return groups


def _block(segments: Sequence[_Segment], device: torch.device) -> AttentionBlock:
    starts = torch.tensor([segment.start for segment in segments], device=device)[:, None]
    lengths = torch.tensor([segment.length for segment in segments], device=device)[:, None]
    prompt_starts = torch.tensor([segment.ancestor[0] for segment in segments], device=device)[:, None]
    prompt_lengths = torch.tensor([segment.ancestor[1] for segment in segments], device=device)[:, None]
    width = max(segment.length for segment in segments)
    own = torch.arange(width, device=device)
    prompt = torch.arange(max(segment.ancestor[1] for segment in segments), device=device)
    padding = own >= lengths
    queries = (starts + own).masked_fill(padding, 0)
    keys = torch.cat([(prompt_starts + prompt).masked_fill(prompt >= prompt_lengths, 0), queries], dim=1)
    # Padding is at the end of a segment, where causality hides it from every real query.
    causal = (own[:, None] >= own).expand(len(segments), -1, -1)
    sees_prompt = (prompt < prompt_lengths)[:, None, :].expand(-1, len(own), -1)
    visible = torch.cat([sees_prompt, causal], dim=2)
    if not len(prompt):
        visible = visible[:1]
    mask = torch.zeros(visible.shape, device=device).masked_fill(~visible, -torch.inf)
    real = [row * width + place for row, segment in enumerate(segments) for place in range(segment.length)]
    return AttentionBlock(
        queries=queries, keys=keys, padding=padding, mask=mask, real=torch.tensor(real, device=device)
    )


def _rows(
    sequences: Sequence[TrainingSequence], firsts: Sequence[int], members: Sequence[int], device: torch.device
) -> Microbatch:
    width = _input_length(sequences[members[0]])
    token_ids = torch.zeros(len(members), width, dtype=torch.long)
    sources: list[int] = []
    targets: list[int] = []
    tokens: list[int] = []
    for row, index in enumerate(members):
        sequence = sequences[index]
        length, offsets = _input_length(sequence), sequence.trained_offsets
        token_ids[row, :length] = torch.tensor(
            (sequence.prompt_token_ids + sequence.response_token_ids)[:length]
        )
        first_source = row * width + len(sequence.prompt_token_ids) - 1
        sources += [first_source + offset for offset in offsets]
        targets += [sequence.response_token_ids[offset] for offset in offsets]
        tokens += range(firsts[index], firsts[index] + len(offsets))
    return Microbatch(
        token_ids=token_ids.to(device),
        positions=torch.arange(width, device=device).expand(len(members), -1),
        segments=None,
        sources=torch.tensor(sources, device=device),
        targets=torch.tensor(targets, device=device),
        tokens=torch.tensor(tokens, device=device),
    )


_ROOM = 1.1  # evenly filled microbatches may exceed their share by this, since prompts are not cut


class Ranks(Protocol):
    """The ranks, as one of them sees them. All call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        ...

    @property
    def count(self) -> int: ...

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor, which has one shape on all ranks, by its sum over them."""
        ...

    def exchange(self, text: str) -> list[str]:
        """The texts of all ranks, in their order."""
        ...

    def gather_weights(self, model: PreTrainedModel) -> None:
        """Gather all weights that the model's blocks do not gather themselves in a pass."""
        ...

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        """Keep only this rank's part of the weights."""
        ...


class _Alone:
    rank, count = 0, 1

    def add_up(self, tensor: torch.Tensor) -> None:
        pass

    def exchange(self, text: str) -> list[str]:
        return [text]

    def gather_weights(self, model: PreTrainedModel) -> None:
        pass

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        pass


ALONE: Ranks = _Alone()
"""One process, with all weights."""


@dataclass(frozen=True)
class Dealt:
    """The microbatches of a batch, and those of this rank. None is a pass without a token: the ranks exchange
    their weights in every pass, so all must make the same number of passes."""

    all: Sequence[Microbatch]
    own: Sequence[Microbatch | None]


def deal(pack: Callable[[int], list[Microbatch]], microbatch_tokens: int, ranks: Ranks) -> Dealt:
    """Pack a batch, and deal out its microbatches in turn.

    Where several ranks share them, microbatches are made smaller if that takes no more turns, so that the
    ranks have similar numbers of tokens in a turn, and none is idle because everything fits into one
    microbatch.
    """
    microbatches = pack(microbatch_tokens)
    turns = -(-len(microbatches) // ranks.count)
    if ranks.count > 1 and microbatches:
        total = sum(microbatch.token_ids.numel() for microbatch in microbatches)
        share = max(1, int(_ROOM * total / (turns * ranks.count)))
        if share < microbatch_tokens:
            even = pack(share)
            if len(even) <= turns * ranks.count:
                microbatches = even
    own: list[Microbatch | None] = list(microbatches[ranks.rank :: ranks.count])
    return Dealt(microbatches, own + [None] * (turns - len(own)))
