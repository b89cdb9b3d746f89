"""Means and maxima of token-wise numbers, gathered without waiting for the device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from erl_pipeline.trainers.local.ranks import Ranks


@dataclass
class Statistics:
    """Sums, counts and maxima by name. Names that were never observed have mean and maximum 0."""

    _sums: dict[str, torch.Tensor] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    _kept: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _group_sums: dict[str, torch.Tensor] = field(default_factory=dict)
    _group_counts: dict[str, torch.Tensor] = field(default_factory=dict)

    def observe(self, name: str, values: torch.Tensor) -> None:
        """Add the values of a tensor of any shape with at least one element."""
        values = values.detach().double()
        total, largest = values.sum(), values.max()
        if name in self._sums:
            total, largest = total + self._sums[name], torch.maximum(largest, self._maxima[name])
        self._sums[name], self._maxima[name] = total, largest
        self._counts[name] = self._counts.get(name, 0) + values.numel()

    def keep(self, name: str, values: torch.Tensor) -> None:
        """Keep any number of values, for their quantiles; meant for what few tokens have."""
        self._kept.setdefault(name, []).append(values.detach().double())

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
            "counts": self._counts,
            "maxima": lists(self._maxima),
            "kept": lists({name: torch.cat(values) for name, values in self._kept.items()}),
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
            self.keep(name, number(values))
        for own, others in (
            (self._group_sums, plain["group_sums"]),
            (self._group_counts, plain["group_counts"]),
        ):
            for name, values in others.items():
                own[name] = own.get(name, torch.zeros_like(number(values))) + number(values)

    def mean(self, name: str) -> float:
        return float(self._sums[name]) / self._counts[name] if name in self._sums else 0.0

    def total(self, name: str) -> float:
        return float(self._sums[name]) if name in self._sums else 0.0

    def quantiles(self, name: str, shares: Sequence[float]) -> list[float]:
        """Quantiles of the values that were kept, with linear interpolation; 0 where there are none."""
        values = torch.cat(self._kept[name]) if name in self._kept else torch.empty(0)
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

    def maximum(self, name: str) -> float:
        return float(self._maxima[name]) if name in self._maxima else 0.0

    def group_mean(self, name: str, group: int) -> float:
        """The mean of a group; 0 where it has no values."""
        count = float(self._group_counts[name][group]) if name in self._group_counts else 0.0
        return float(self._group_sums[name][group]) / count if count else 0.0
