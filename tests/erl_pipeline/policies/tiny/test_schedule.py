from __future__ import annotations

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.policies.tiny.cold_start import Schedule

SETTINGS = ColdStartConfig(steps=100, most_steps=200, gate=0.9)


def examine(schedule: Schedule, shares: dict[int, float]) -> list[int]:
    """Go through all steps; returns the numbers of steps after which an examination was due."""
    due, done = [], 0
    while done < schedule.steps:
        if schedule.examination_due(done):
            due.append(done)
            schedule.examined(done, shares[done])
        done += 1
    return due


def test_learning_rates_fall_after_sixty_percent_of_the_steps() -> None:
    schedule = Schedule(SETTINGS, gated=False)
    assert examine(schedule, {}) == []
    assert schedule.steps == 100
    assert [schedule.rate(done) for done in (0, 59, 60)] == [1.0, 1.0, 1.0]
    # Half of the 40 falling steps: 1 - 0.95 / 2.
    assert schedule.rate(80) == pytest.approx(0.525)
    assert schedule.rate(100) == pytest.approx(0.05)


def test_a_policy_that_passes_at_once_takes_its_steps() -> None:
    schedule = Schedule(SETTINGS, gated=True)
    assert examine(schedule, {60: 0.9}) == [60]
    assert schedule.steps == 100


def test_learning_rates_stay_high_until_the_gate_is_passed() -> None:
    schedule = Schedule(SETTINGS, gated=True)
    assert examine(schedule, {60: 0.5, 110: 0.95}) == [60, 110]
    assert schedule.steps == 150
    assert schedule.rate(110) == 1.0
    assert schedule.rate(130) == pytest.approx(0.525)


def test_a_policy_that_never_passes_ends_with_the_most_steps() -> None:
    schedule = Schedule(SETTINGS, gated=True)
    assert examine(schedule, {60: 0.5, 110: 0.5, 160: 0.5}) == [60, 110, 160]
    assert schedule.steps == 200
