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
