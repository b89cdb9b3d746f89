"""What was measured of each sequence in the steps of an update, gathered from its tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from erl_pipeline.trainers.local.ranks import Ranks
from erl_pipeline.trainers.record import SequenceRecord
from erl_pipeline.trainers.sequences import TrainingSequence

Numbers = npt.NDArray[np.float64]


class BatchLog:
    """What is measured of the trained tokens of one optimizer batch; columns `[trained]` on the model's
    device.

    Every token has its own place in a column, so the order of microbatches changes no bit.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._tokens = tokens
        self._device = device
        self.columns: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, tokens: torch.Tensor) -> None:
        """Add to a column, which begins with zeros. `values`, `tokens` (indices of different tokens):
        `[chunk]`."""
        if name not in self.columns:
            self.columns[name] = torch.zeros(self._tokens, device=self._device)
        self.columns[name].index_add_(0, tokens, values.detach().float())

    def add_up(self, ranks: Ranks) -> None:
        """Collect what all ranks have measured. Each token is measured by one of them, so no sum is
        rounded."""
        if ranks.count == 1:
            return
        for name in sorted(
            {name for text in ranks.exchange(json.dumps(list(self.columns))) for name in json.loads(text)}
        ):
            column = self.columns.setdefault(name, torch.zeros(self._tokens, device=self._device))
            ranks.add_up(column)


class SequenceLog:
    """Means by sequence over all steps of an update.

    Args:
        sequences: all that may take part in a step, each with a trained token.
        record_tokens: also keep the log-probability and entropy of each token from its first step.
    """

    def __init__(self, sequences: Sequence[TrainingSequence], record_tokens: bool = False) -> None:
        self._sequences = sequences
        self._record_tokens = record_tokens
        self._counts = np.array([len(sequence.trained_offsets) for sequence in sequences], dtype=np.int64)
        self._steps = np.zeros(len(sequences), dtype=np.int64)
        self._sums: dict[str, Numbers] = {}
        self._seen: dict[str, npt.NDArray[np.int64]] = {}
        self._tokens: dict[int, dict[str, tuple[float, ...]]] = {}

    def take(self, members: Sequence[int], batch: BatchLog) -> None:
        """Add a step on these sequences; the batch has its tokens in their order."""
        if not members:
            return
        columns = {name: column.cpu().numpy() for name, column in batch.columns.items()}
        numbers = np.asarray(members)
        counts = self._counts[numbers]
        starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        for name, column in columns.items():
            sums = self._sums.setdefault(name, np.zeros(len(self._sequences)))
            seen = self._seen.setdefault(name, np.zeros(len(self._sequences), dtype=np.int64))
            sums[numbers] += np.add.reduceat(column.astype(np.float64), starts)
            seen[numbers] += counts
        self._steps[numbers] += 1
        if self._record_tokens:
            self._keep_tokens(members, starts, columns)

    def record(self, number: int, weight: float) -> SequenceRecord:
        """What is known of a sequence that took part in a step."""
        steps, tokens = int(self._steps[number]), self._tokens.get(number, {})
        return SequenceRecord(
            weight=weight,
            not_trained=None if steps else "not_drawn",
            steps=steps,
            trained_tokens=steps * int(self._counts[number]),
            mean_ratio=self._mean("ratio", number),
            clipped_share=self._mean("clipped", number),
            entropy=self._mean("entropy", number),
            mismatch=self._mean("mismatch", number),
            loss=float(self._sums["loss"][number]) / steps if steps else None,
            token_logprobs=tokens.get("logprob"),
            token_entropies=tokens.get("entropy"),
        )

    def _mean(self, name: str, number: int) -> float | None:
        """The mean over the tokens of the steps that measured it; None where none did."""
        if name not in self._seen or not self._seen[name][number]:
            return None
        return float(self._sums[name][number]) / int(self._seen[name][number])

    def _keep_tokens(
        self,
        members: Sequence[int],
        starts: npt.NDArray[np.int64],
        columns: dict[str, npt.NDArray[np.float32]],
    ) -> None:
        for number, start in zip(members, starts.tolist(), strict=True):
            if number in self._tokens:
                continue
            sequence = self._sequences[number]
            kept = {}
            for name in ("logprob", "entropy"):
                values = np.zeros(len(sequence.response_token_ids), dtype=np.float32)
                offsets = list(sequence.trained_offsets)
                values[offsets] = columns[name][start : start + len(offsets)]
                kept[name] = tuple(values.tolist())
            self._tokens[number] = kept
