from __future__ import annotations

import torch

from erl_pipeline.trainers.local.observations import Statistics


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
    assert Statistics().group_mean("kl", 0) == 0.0


def test_only_chosen_values_are_observed() -> None:
    statistics = Statistics()
    statistics.observe("ratio", torch.tensor([9.0, -2.0, -6.0]), torch.tensor([False, True, True]))
    statistics.observe("ratio", torch.tensor([-1.0]), torch.tensor([True]))
    statistics.observe("weight", torch.tensor([5.0]), torch.tensor([False]))
    assert (statistics.mean("ratio"), statistics.maximum("ratio"), statistics.total("ratio")) == (-3, -1, -9)
    assert (statistics.mean("weight"), statistics.maximum("weight"), statistics.total("weight")) == (0, 0, 0)


def test_groups_have_means_of_their_own() -> None:
    statistics = Statistics()
    statistics.observe_groups("entropy", torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0, 2, 0]), 3)
    statistics.observe_groups("entropy", torch.tensor([5.0]), torch.tensor([0]), 3)
    assert [statistics.group_mean("entropy", group) for group in range(3)] == [4.0, 0.0, 2.0]


def test_quantiles_are_those_of_the_values_that_were_kept() -> None:
    statistics = Statistics()
    statistics.keep("weight", torch.tensor([4.0, 9.0, 1.0]), torch.tensor([True, False, True]))
    statistics.keep("weight", torch.tensor([7.0]), torch.tensor([False]))
    statistics.keep("weight", torch.tensor([2.0]), torch.tensor([True]))
    assert statistics.quantiles("weight", (0.0, 0.25, 0.5, 1.0)) == [1.0, 1.5, 2.0, 4.0]
    assert statistics.quantiles("ratio", (0.5,)) == [0.0]
    statistics.observe("weight", torch.tensor([4.0, 1.0]))
    assert (statistics.total("weight"), statistics.total("ratio")) == (5.0, 0.0)
