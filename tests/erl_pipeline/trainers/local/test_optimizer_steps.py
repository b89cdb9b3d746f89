from __future__ import annotations

import math

import pytest

from erl_pipeline.trainers.local.optimizer_steps import raise_if_diverged
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import TrainingDiverged

BATCH = [TrainingSequence(f"t{i}", "first_attempt", (1,), (2,), (1,), (-1.0,), 1.0) for i in range(10)]


def test_finite_numbers_pass() -> None:
    raise_if_diverged(1, {"policy_loss": 1e30, "grad_norm": 0.0}, BATCH)


def test_the_error_names_step_numbers_trajectories_and_remedies() -> None:
    with pytest.raises(TrainingDiverged) as raised:
        raise_if_diverged(3, {"policy_loss": 0.5, "grad_norm": math.inf}, BATCH)
    message = str(raised.value)
    assert "step 3: policy_loss 0.5, grad_norm inf" in message
    assert "t0, t1, t2, t3, t4, t5, t6, t7 and 2 more" in message
    assert "optimizer.learning_rate" in message
