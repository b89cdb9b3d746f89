"""Cutting sequences into microbatches, in which responses to one prompt share that prompt, and how the
processes that train one policy ("ranks") share an optimizer batch.

Every rank knows the lengths of the whole batch, and so the same weights of tokens, which are normalised over
all of it. A rank builds and computes some of the microbatches, each just before its pass; gradients, and what
is observed, are added up over the ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.local.attention import PreparedSegments, SegmentAttention, prepare_segments
from erl_pipeline.trainers.local.block_attention import Segment, Segments, moved
from erl_pipeline.trainers.sequences import TrainingSequence


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
    segments: PreparedSegments | None
    sources: torch.Tensor
    targets: torch.Tensor
    tokens: torch.Tensor


@dataclass(frozen=True)
class PlannedMicrobatch:
    """A microbatch whose place and size are known. `input_tokens` has padding in it; `build` puts the
    microbatch, and what its attention needs, on the device."""

    input_tokens: int
    build: Callable[[], Microbatch]


@dataclass(frozen=True)
class _Family:
    """Indices of sequences that share a prompt. A single sequence is one segment, prompt and response
    together."""

    members: tuple[int, ...]
    tokens: int


def plan_segments(
    sequences: Sequence[TrainingSequence],
    microbatch_tokens: int,
    device: torch.device,
    attention: SegmentAttention = "blocks",
) -> list[PlannedMicrobatch]:
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
    return [
        PlannedMicrobatch(
            sum(family.tokens for family in batch),
            partial(_stream, sequences, firsts, batch, device, attention),
        )
        for batch in batches
    ]


def plan_rows(
    sequences: Sequence[TrainingSequence], microbatch_tokens: int, device: torch.device
) -> list[PlannedMicrobatch]:
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
    return [
        PlannedMicrobatch(
            len(batch) * _input_length(sequences[batch[0]]), partial(_rows, sequences, firsts, batch, device)
        )
        for batch in batches
    ]


def _input_length(sequence: TrainingSequence) -> int:
    """Tokens that are needed to predict the last trained one."""
    return len(sequence.prompt_token_ids) + int(sequence.trained_offsets[-1])


def _first_tokens(sequences: Sequence[TrainingSequence]) -> list[int]:
    """Index of each sequence's first trained token among those of all sequences."""
    return list(accumulate((each.trained_tokens for each in sequences), initial=0))[: len(sequences)]


def by_prompt(sequences: Sequence[TrainingSequence]) -> dict[tuple[int, ...], list[int]]:
    """Prompt -> indices of the sequences that begin with it."""
    found: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, sequence in enumerate(sequences):
        found[sequence.prompt_token_ids].append(index)
    return found


def _families(sequences: Sequence[TrainingSequence], budget: int) -> Iterable[_Family]:
    for prompt, members in by_prompt(sequences).items():
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


_Numbers = npt.NDArray[np.int64]


def _stream(
    sequences: Sequence[TrainingSequence],
    firsts: Sequence[int],
    families: Sequence[_Family],
    device: torch.device,
    attention: SegmentAttention,
) -> Microbatch:
    segments: list[Segment] = []
    parts: list[tuple[int, int, int]] = []  # of each sequence: the place of its first token, prompt, begin
    place = 0
    for family in families:
        start, length = place, len(sequences[family.members[0]].prompt_token_ids)
        shared = len(family.members) > 1
        if shared:
            segments.append(Segment(start, length))
        for number, index in enumerate(family.members):
            end = _input_length(sequences[index])
            begin = 0 if number == 0 else length  # the prompt stands before the first of its responses
            if not shared:
                segments.append(Segment(start, end))
            elif end > length:
                segments.append(Segment(place + length - begin, end - length, start, length))
            parts.append((place, start, begin))
            place += end - begin
    members = [sequences[index] for family in families for index in family.members]
    places, starts, begins = np.array(parts).T
    prompts = np.array([len(sequence.prompt_token_ids) for sequence in members])
    trained = _trained(members, prompts, [firsts[i] for family in families for i in family.members])
    # A token's predecessor is the one before it, or for the first of a response the last of the prompt.
    sources = trained.offsets + np.repeat(places + prompts - begins - 1, trained.counts)
    leading = trained.begins[trained.offsets[trained.begins] == 0]
    sources[leading] = (starts + prompts - 1)[trained.offsets[trained.begins] == 0]
    inputs = [
        sequence.token_ids[begin : _input_length(sequence)]
        for sequence, begin in zip(members, begins.tolist(), strict=True)
    ]
    positions = np.arange(place) - np.repeat(places - begins, [len(part) for part in inputs])
    return Microbatch(
        token_ids=moved(np.concatenate(inputs)[None], device),
        positions=moved(positions[None], device),
        segments=prepare_segments(Segments.of(segments), attention, device),
        sources=moved(sources, device),
        targets=moved(trained.targets, device),
        tokens=moved(trained.tokens, device),
    )


def _rows(
    sequences: Sequence[TrainingSequence], firsts: Sequence[int], members: Sequence[int], device: torch.device
) -> Microbatch:
    rows = [sequences[index] for index in members]
    width = _input_length(rows[0])
    token_ids = np.zeros((len(rows), width), dtype=np.int64)
    for row, sequence in enumerate(rows):
        length = _input_length(sequence)
        token_ids[row, :length] = sequence.token_ids[:length]
    prompts = np.array([len(sequence.prompt_token_ids) for sequence in rows])
    trained = _trained(rows, prompts, [firsts[index] for index in members])
    sources = trained.offsets + np.repeat(np.arange(len(rows)) * width + prompts - 1, trained.counts)
    return Microbatch(
        token_ids=moved(token_ids, device),
        positions=torch.arange(width, device=device).expand(len(rows), -1),
        segments=None,
        sources=moved(sources, device),
        targets=moved(trained.targets, device),
        tokens=moved(trained.tokens, device),
    )


class _Trained(NamedTuple):
    """The trained tokens of some sequences, one sequence after the other; `offsets`, `targets`, `tokens`:
    `[trained]`; `counts`, `begins`: `[sequences]`, how many there are of each, and where they begin."""

    offsets: _Numbers
    targets: _Numbers
    tokens: _Numbers
    counts: _Numbers
    begins: _Numbers


def _trained(sequences: Sequence[TrainingSequence], prompts: _Numbers, firsts: Sequence[int]) -> _Trained:
    """`prompts`: the lengths of the prompts; `firsts`: the numbers of the first trained tokens."""
    offsets = np.concatenate([sequence.trained_offsets for sequence in sequences])
    counts = np.array([sequence.trained_tokens for sequence in sequences])
    begins = np.cumsum(counts) - counts
    whole = np.concatenate([sequence.token_ids for sequence in sequences])
    lengths = np.array([len(sequence.token_ids) for sequence in sequences])
    return _Trained(
        offsets=offsets,
        targets=whole[offsets + np.repeat(np.cumsum(lengths) - lengths + prompts, counts)],
        tokens=np.arange(len(offsets)) + np.repeat(np.array(firsts) - begins, counts),
        counts=counts,
        begins=begins,
    )


_ROOM = 1.1  # evenly filled microbatches may exceed their share by this, since prompts are not cut


class Ranks(Protocol):
    """The ranks, as one of them sees them. All call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def count(self) -> int: ...

    @property
    def sums_now(self) -> bool:
        """What `sum_gradients` was told last; True before."""

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor, which has one shape on all ranks, by its sum over them."""

    def exchange(self, text: str) -> list[str]:
        """The texts of all ranks, in their order."""

    def gather_weights(self, model: PreTrainedModel) -> None:
        """Gather all weights that the model's blocks do not gather themselves in a pass."""

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        """Keep only this rank's part of the weights."""

    def sum_gradients(self, model: PreTrainedModel, now: bool) -> None:
        """Whether backward passes add up the gradients of the model's blocks over the ranks, with those of
        earlier passes; until then each rank keeps its own, in fp32."""


class _Alone:
    rank, count, sums_now = 0, 1, True

    def add_up(self, tensor: torch.Tensor) -> None:
        pass

    def exchange(self, text: str) -> list[str]:
        return [text]

    def gather_weights(self, model: PreTrainedModel) -> None:
        pass

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        pass

    def sum_gradients(self, model: PreTrainedModel, now: bool) -> None:
        pass


ALONE: Ranks = _Alone()
"""One process, with all weights."""


@dataclass(frozen=True)
class Dealt:
    """The microbatches of this rank, and how many there are on all, with how many input tokens. None is a
    pass without a token: the ranks exchange their weights in every pass, so all must make the same number of
    passes."""

    own: Sequence[PlannedMicrobatch | None]
    microbatches: int
    input_tokens: int


def deal(plan: Callable[[int], list[PlannedMicrobatch]], microbatch_tokens: int, ranks: Ranks) -> Dealt:
    """Plan the microbatches of a batch, and deal them out in turn.

    Where several ranks share them, microbatches are made smaller if that takes no more turns, so that the
    ranks have similar numbers of tokens in a turn, and none is idle because everything fits into one
    microbatch.
    """
    microbatches = plan(microbatch_tokens)
    turns = -(-len(microbatches) // ranks.count)
    if ranks.count > 1 and microbatches:
        total = sum(microbatch.input_tokens for microbatch in microbatches)
        share = max(1, int(_ROOM * total / (turns * ranks.count)))
        if share < microbatch_tokens:
            even = plan(share)
            if len(even) <= turns * ranks.count:
                microbatches = even
    own: list[PlannedMicrobatch | None] = list(microbatches[ranks.rank :: ranks.count])
    return Dealt(
        own + [None] * (turns - len(own)),
        len(microbatches),
        sum(microbatch.input_tokens for microbatch in microbatches),
    )
