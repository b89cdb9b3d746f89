from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.optimizer import FineTuneConfig, UpdateConfig


def test_optimizer_steps_of_an_update() -> None:
    assert UpdateConfig(epochs=2, minibatches=3).optimizer_steps == 6


def test_supervised_steps_are_as_many_as_are_set() -> None:
    assert [FineTuneConfig().optimizer_steps(rows) for rows in (0, 5, 500)] == [0, 3, 3]


@pytest.mark.parametrize(
    ("epochs", "rows", "steps"),
    [
        (1.0, 0, 0),
        (1.0, 5, 1),
        (1.0, 32, 1),
        (1.0, 33, 2),
        (2.0, 33, 3),  # 66 rows
        (0.1, 320, 1),
        (0.1, 321, 2),
        (1.0, 384, 12),
        (1.0, 5000, 12),  # no more than `steps`
    ],
)
def test_with_epochs_supervised_steps_grow_with_the_rows(epochs: float, rows: int, steps: int) -> None:
    config = FineTuneConfig(steps=12, batch_rows=32, epochs=epochs)
    assert config.optimizer_steps(rows) == steps


def test_epochs_of_steps_that_take_all_rows_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"epochs: 2 with batch_rows: null; .* set batch_rows"):
        FineTuneConfig(epochs=2.0)
