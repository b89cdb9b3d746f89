"""What is observed in the steps of an update: means and maxima of token-wise numbers, gathered without
waiting for the device, and what was measured of each sequence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from erl_pipeline.trainers.local.packing import Ranks
from erl_pipeline.trainers.metrics import SequenceRecord
from erl_pipeline.trainers.sequences import TrainingSequence


@dataclass
class Statistics:
    """Sums, counts and maxima by name. Names that were never observed have mean and maximum 0."""

    _sums: dict[str, torch.Tensor] = field(default_factory=dict)
    _counts: dict[str, int | torch.Tensor] = field(default_factory=dict)
    _maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    _kept: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)
    _group_sums: dict[str, torch.Tensor] = field(default_factory=dict)
    _group_counts: dict[str, torch.Tensor] = field(default_factory=dict)

    def observe(self, name: str, values: torch.Tensor, chosen: torch.Tensor | None = None) -> None:
        """Add the values of a tensor of any shape with at least one element; only those for which `chosen`,
        of its shape, is true."""
        values = values.detach().double()
        count: int | torch.Tensor = values.numel()
        total, largest = values.sum(), values.max()
        if chosen is not None:
            # Taking them out of the tensor would wait for the device, to know how many there are.
            count, total = chosen.sum(), values.masked_fill(~chosen, 0.0).sum()
            largest = values.masked_fill(~chosen, -torch.inf).max()
        if name in self._sums:
            total, largest = total + self._sums[name], torch.maximum(largest, self._maxima[name])
        self._sums[name], self._maxima[name] = total, largest
        self._counts[name] = self._counts.get(name, 0) + count

    def keep(self, name: str, values: torch.Tensor, chosen: torch.Tensor) -> None:
        """Keep the values for which `chosen` is true, for their quantiles. Both: `[tokens]`."""
        self._kept.setdefault(name, []).append((values.detach(), chosen))

    def observe_groups(self, name: str, values: torch.Tensor, groups: torch.Tensor, count: int) -> None:
        """Add `values` by group. `values`, `groups` (int64, below `count`): `[tokens]`."""
        values = values.detach().double()
        none = torch.zeros(count, dtype=torch.double, device=values.device)
        sums, counts = self._group_sums.get(name, none), self._group_counts.get(name, none)
        self._group_sums[name] = sums.index_add(0, groups, values)
        self._group_counts[name] = counts.index_add(0, groups, torch.ones_like(values))

    def over(self, ranks: Ranks) -> Statistics:
        """The statistics of all ranks together."""
        if ranks.count == 1:
            return self
        whole = Statistics()
        for text in ranks.exchange(json.dumps(self._plain())):
            whole._take_in(json.loads(text))
        return whole

    def _plain(self) -> dict[str, dict[str, Any]]:
        def lists(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
            return {name: tensor.tolist() for name, tensor in tensors.items()}

        return {
            "sums": lists(self._sums),
            "counts": {name: int(count) for name, count in self._counts.items()},
            "maxima": lists(self._maxima),
            "kept": lists({name: self._kept_values(name) for name in self._kept}),
            "group_sums": lists(self._group_sums),
            "group_counts": lists(self._group_counts),
        }

    def _take_in(self, plain: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the statistics of another, as its `_plain` gives them."""

        def number(value: Any) -> torch.Tensor:
            return torch.tensor(value, dtype=torch.double)

        for name, count in plain["counts"].items():
            total, largest = number(plain["sums"][name]), number(plain["maxima"][name])
            self._sums[name] = self._sums.get(name, torch.zeros_like(total)) + total
            self._maxima[name] = torch.maximum(self._maxima.get(name, largest), largest)
            self._counts[name] = self._counts.get(name, 0) + count
        for name, values in plain["kept"].items():
            self.keep(name, number(values), torch.ones(len(values), dtype=torch.bool))
        for own, others in (
            (self._group_sums, plain["group_sums"]),
            (self._group_counts, plain["group_counts"]),
        ):
            for name, values in others.items():
                own[name] = own.get(name, torch.zeros_like(number(values))) + number(values)

    def mean(self, name: str) -> float:
        count = int(self._counts.get(name, 0))
        return float(self._sums[name]) / count if count else 0.0

    def total(self, name: str) -> float:
        return float(self._sums[name]) if name in self._sums else 0.0

    def quantiles(self, name: str, shares: Sequence[float]) -> list[float]:
        """Quantiles of the values that were kept, with linear interpolation; 0 where there are none."""
        values = self._kept_values(name)
        if not len(values):
            return [0.0] * len(shares)
        # `torch.quantile` takes no more than 2^24 values.
        ordered = values.sort().values
        places = torch.tensor(shares, dtype=torch.double) * (len(ordered) - 1)
        below = ordered[places.floor().long()]
        above = ordered[places.ceil().long()]
        return [
            float(value) for value in below + (above - below) * (places - places.floor()).to(below.device)
        ]

    def _kept_values(self, name: str) -> torch.Tensor:
        """`[kept]`, fp64."""
        parts = [values[chosen].double() for values, chosen in self._kept.get(name, [])]
        return torch.cat(parts) if parts else torch.empty(0)

    def maximum(self, name: str) -> float:
        return float(self._maxima[name]) if int(self._counts.get(name, 0)) else 0.0

    def group_mean(self, name: str, group: int) -> float:
        """The mean of a group; 0 where it has no values."""
        count = float(self._group_counts[name][group]) if name in self._group_counts else 0.0
        return float(self._group_sums[name][group]) / count if count else 0.0


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
        self._counts = np.array([sequence.trained_tokens for sequence in sequences], dtype=np.int64)
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
        if not self._record_tokens:
            return
        for number, start in zip(members, starts.tolist(), strict=True):
            if number in self._tokens:
                continue
            sequence = self._sequences[number]
            kept = {}
            for name in ("logprob", "entropy"):
                values = np.zeros(len(sequence.response_token_ids), dtype=np.float32)
                values[sequence.trained_offsets] = columns[name][start : start + sequence.trained_tokens]
                kept[name] = tuple(values.tolist())
            self._tokens[number] = kept

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
