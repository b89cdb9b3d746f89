from __future__ import annotations

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.checkpoint_sizes import estimate_checkpoints, trained_size
from erl_pipeline.runs.run_plans import plan_run
from tests.erl_pipeline.runs.small_runs import small


def test_fp32_weights_have_their_moments_beside_them() -> None:
    size = trained_size(1000, 4, OptimizerConfig())
    assert (size.bytes, size.retained) == (12_000.0, {"checkpoints": 4000.0, "optimizer": 8000.0})


def test_low_precision_weights_have_an_fp32_copy_too() -> None:
    assert trained_size(1000, 2, OptimizerConfig()).bytes == 14_000.0
    assert trained_size(1000, 2, OptimizerConfig(moments="by_use")).bytes == 22_000.0
    assert trained_size(1000, 2, OptimizerConfig(carry_state=False)).bytes == 6_000.0


def test_a_tiny_policy_is_counted_by_its_blocks() -> None:
    """One block of width 64: 12 * 64 * 64 + 13 * 64 = 49,984 weights."""
    config = small()
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert {name: size.bytes for name, size in sizes.items()} == {
        "bootstrap": 199_936.0,
        "update_policy": 599_808.0,
        "fine_tune": 599_808.0,
    }
