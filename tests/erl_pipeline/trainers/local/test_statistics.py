from __future__ import annotations

import torch

from erl_pipeline.trainers.local.statistics import Statistics


def test_means_and_maxima_run_over_all_observed_values() -> None:
    statistics = Statistics()
    statistics.observe("ratio", torch.tensor([1.0, 2.0, 6.0]))
    statistics.observe("ratio", torch.tensor([3.0]))
    statistics.observe("clipped", torch.tensor([True, False]))
    assert statistics.mean("ratio") == 3.0
    assert statistics.maximum("ratio") == 6.0
    assert statistics.mean("clipped") == 0.5


def test_what_was_never_observed_is_zero() -> None:
    assert (Statistics().mean("kl"), Statistics().maximum("kl")) == (0.0, 0.0)
