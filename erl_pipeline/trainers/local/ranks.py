"""How the processes that train one policy ("ranks") share an optimizer batch.

Every rank has the whole batch, and so the same weights of tokens, which are normalised over all of it. A
rank computes some of the microbatches; gradients, and what is observed, are added up over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.local.packing import Microbatch

_ROOM = 1.1  # what evenly filled microbatches may be longer than their share, since prompts are not cut


class Ranks(Protocol):
    """The ranks, as one of them sees them. All call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """The number of this one, from 0."""
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
        """Have all weights here that the passes of the model's own blocks do not gather themselves."""
        ...

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        """Keep no more than this rank's part of the weights."""
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
    """The microbatches of a batch, and those of this rank. None stands for a pass without a token: in
    every pass the ranks give each other their weights, so all take part in equally many."""

    all: Sequence[Microbatch]
    own: Sequence[Microbatch | None]


def deal(pack: Callable[[int], list[Microbatch]], microbatch_tokens: int, ranks: Ranks) -> Dealt:
    """Pack a batch, and deal out its microbatches in turn.

    Where several ranks share them, microbatches are made smaller as long as that takes no more turns, so
    that the ranks have like numbers of tokens in a turn, and none is idle because all fits into one.
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
