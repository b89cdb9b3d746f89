"""Reflections that saw memory are compared only with each other, and so are those that did not."""

from __future__ import annotations

from dataclasses import replace

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.stages.training.update_policy import training_sequences
from storage.tables.trajectories import FREE, GUIDED
from tests.erl_pipeline.episodes.script import play

DRAWN = [(GUIDED, 1.0), (GUIDED, 1.0), (GUIDED, 0.0), (GUIDED, 1.0), (FREE, 0.0), (FREE, 0.0), (FREE, 1.0)]


def advantages(objective: ObjectiveConfig) -> list[float]:
    reflection = play(["down b", "? a b ?", "right a", "right a"])[0][1]
    rows = [replace(reflection, subgroup=subgroup, reward=reward) for subgroup, reward in DRAWN]
    return [sequence.advantage for sequence in training_sequences(rows, objective)]


def test_by_default_seeing_memory_is_no_merit_of_the_reflection() -> None:
    """The means of the halves are .75 and 1/3, so a reward of 1 is compared with its own half."""
    found = advantages(ObjectiveConfig(advantage_normalization="mean"))
    assert [round(each, 4) for each in found] == [0.25, 0.25, -0.75, 0.25, -0.3333, -0.3333, 0.6667]


def test_the_whole_group_can_be_compared() -> None:
    """The mean is 4/7."""
    found = advantages(ObjectiveConfig(advantage_normalization="mean", advantages_per="group"))
    assert [round(each, 4) for each in found] == [0.4286, 0.4286, -0.5714, 0.4286, -0.5714, -0.5714, 0.4286]
