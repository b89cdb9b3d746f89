"""How the losses of single tokens become the loss of an optimizer batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

LossNormalization = Literal["token_mean", "sequence_mean", "sequence_sum"]


def token_weights(token_counts: Sequence[int], normalization: LossNormalization) -> list[float]:
    """The factor of each token's loss, one for each sequence of a whole optimizer batch.

    The loss of the batch is the sum over its tokens of factor times token loss. All sequences of the batch
    count, whatever their role. Since the factors are fixed before the batch is cut, microbatches do not
    change the gradient.

    - `token_mean`: `1 / tokens of the batch` (DAPO, arXiv 2503.14476, eq. 12)
    - `sequence_mean`: `1 / (sequences * tokens of the sequence)` (GRPO, arXiv 2402.03300, eq. 3)
    - `sequence_sum`: `1 / sequences` (Dr. GRPO, arXiv 2503.20783, up to its constant)

    Args:
        token_counts: trained tokens of each sequence, all at least 1.
    """
    if normalization == "token_mean":
        return [1.0 / sum(token_counts)] * len(token_counts)
    if normalization == "sequence_mean":
        return [1.0 / (len(token_counts) * count) for count in token_counts]
    return [1.0 / len(token_counts)] * len(token_counts)
