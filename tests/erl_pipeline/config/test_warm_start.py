from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.policy import DemonstrationsWarmStart, MessagesWarmStart


def test_the_learning_rate_rises_stays_and_falls() -> None:
    """One step rises to the peak of 1, which lasts until step 5 of 10; then each step is lower by 0.16, down
    to 0.2."""
    settings = MessagesWarmStart(
        type="messages",
        file="f",
        steps=10,
        learning_rate=1.0,
        warm_up_steps=1,
        decay_from=0.5,
        final_rate=0.2,
    )
    rates = [settings.rate(step) for step in range(1, 11)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 0.84, 0.68, 0.52, 0.36, 0.2])


def test_without_a_fall_the_rate_stays() -> None:
    settings = MessagesWarmStart(
        type="messages", file="f", steps=2, learning_rate=1.0, warm_up_steps=0, decay_from=1.0
    )
    assert [settings.rate(1), settings.rate(2)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"first_attempts": 0, "noted_attempts": 0, "reflections": 0}, "one of them has to be above 0"),
        ({"swapped_notes": 0.8, "reshuffled_notes": 0.3}, "allowed is a sum of at most 1"),
    ],
)
def test_impossible_shares_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DemonstrationsWarmStart.model_validate({"type": "demonstrations", **values})
