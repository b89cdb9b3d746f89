from __future__ import annotations

from erl_pipeline.config.optimizer import UpdateConfig


def test_optimizer_steps_of_an_update() -> None:
    assert UpdateConfig(epochs=2, minibatches=3).optimizer_steps == 6
