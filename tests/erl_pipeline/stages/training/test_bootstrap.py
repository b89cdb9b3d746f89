"""What a cold start says while it trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.policies.tiny import cold_start
from erl_pipeline.stages.training.bootstrap import cold_start_with


def test_the_goal_of_a_cold_start_moves_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(*_given: object, on_step: Callable[[int, int, float], None], **_more: object) -> Any:
        for step, steps in ((1, 400), (2, 400), (3, 450), (4, 500)):
            on_step(step, steps, 0.5)
        return SimpleNamespace(steps=4, trained_tokens=9, loss=0.5, share_right=None)

    monkeypatch.setattr(cold_start, "cold_start", train)
    told = list[tuple[int, str]]()
    call: Any = SimpleNamespace(
        settings=SimpleNamespace(policy=SimpleNamespace(cold_start=ColdStartConfig())),
        seed=0,
        folder=tmp_path,
        progress=SimpleNamespace(
            raise_if_stopped=lambda: None,
            begin=lambda total, unit: told.append((total, unit)),
            advance=lambda *_amount, **_numbers: None,
        ),
    )
    parts: Any = SimpleNamespace(examination=None)
    assert cold_start_with(call, parts).counters == {"optimizer_steps": 4, "trained_tokens": 9}
    assert told == [
        (400, "steps"),
        (450, "steps, more since the gate was missed"),
        (500, "steps, more since the gate was missed"),
    ]
