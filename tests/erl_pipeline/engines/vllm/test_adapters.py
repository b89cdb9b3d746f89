"""Tests of adapters without a server; `tests/integration/test_adapters_vllm.py` has those with a server."""

import math

import numpy as np
import pytest

from erl_pipeline.engines.interface import ServedAdapter
from erl_pipeline.engines.vllm.weight_sync import adapter_arguments, applied_share


def test_the_share_is_1_where_the_server_changes_as_the_trainer_does_and_0_where_it_does_not() -> None:
    """Changes of 3 and 4 have a square sum of 25. A server that shows 1.5 and 4 shows (4.5 + 16) / 25.
    Rounding of 0.1 at each token gives a standard error of sqrt(2 * 0.01 / 25)."""
    trainer, rounding = np.array([[3.0, 4.0]]), np.array([[0.1, -0.1]])
    error = math.sqrt(2 * 0.01 / 25)
    assert applied_share(trainer, trainer, rounding) == pytest.approx((1.0, error))
    assert applied_share(trainer, np.zeros((1, 2)), rounding) == pytest.approx((0.0, error))
    assert applied_share(trainer, np.array([[1.5, 4.0]]), rounding) == pytest.approx((0.82, error))


def test_an_adapter_that_changes_nothing_tells_nothing() -> None:
    assert applied_share(np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2))) == (0.0, math.inf)


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (300, 320), (512, 512)])
def test_the_server_makes_room_for_the_next_rank_it_knows(rank: int, room: int) -> None:
    assert adapter_arguments(ServedAdapter(None, rank, ("q_proj", "v_proj"))) == [
        "--enable-lora",
        "--lora-target-modules",
        "q_proj",
        "v_proj",
        "--max-loras=1",
        f"--max-lora-rank={room}",
    ]
