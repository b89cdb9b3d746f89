from __future__ import annotations

from pathlib import Path

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.disk_sizes import estimate_checkpoints, trained_size
from erl_pipeline.runs.run_plans import plan_run
from tests.erl_pipeline.runs.small_runs import small
from tests.erl_pipeline.sizing.models import SMOLLM2_135M, write


def test_fp32_weights_have_their_moments_beside_them() -> None:
    size = trained_size(1000, 4, OptimizerConfig())
    assert (size.bytes, size.retained) == (12_000.0, {"checkpoints": 4000.0, "optimizer": 8000.0})


def test_low_precision_weights_have_an_fp32_copy_too() -> None:
    assert trained_size(1000, 2, OptimizerConfig()).bytes == 14_000.0
    assert trained_size(1000, 2, OptimizerConfig(moments="by_use")).bytes == 22_000.0
    assert trained_size(1000, 2, OptimizerConfig(carry_state=False)).bytes == 6_000.0


def test_a_pretrained_policy_is_counted_by_its_config(tmp_path: Path) -> None:
    """SmolLM2-135M has 134,515,008 weights: 2 bytes each, and with an fp32 copy and moments 14."""
    model = write(SMOLLM2_135M, tmp_path)
    config = small(policy={"type": "pretrained", "model": model, "dtype": "bfloat16"})
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert {name: size.bytes for name, size in sizes.items()} == {
        "bootstrap": 269_030_016.0,
        "update_policy": 1_883_210_112.0,
        "fine_tune": 1_883_210_112.0,
    }
    assert sizes["fine_tune"].retained == {"checkpoints": 269_030_016.0, "optimizer": 1_614_180_096.0}
    (tmp_path / "config.json").unlink()
    assert estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes) == {}


def test_a_tiny_policy_is_counted_by_its_blocks() -> None:
    """One block of width 64: 12 * 64 * 64 + 13 * 64 = 49,984 weights."""
    config = small()
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert {name: size.bytes for name, size in sizes.items()} == {
        "bootstrap": 199_936.0,
        "update_policy": 599_808.0,
        "fine_tune": 599_808.0,
    }


def test_a_warm_start_is_counted_with_all_weights_and_no_optimizer(tmp_path: Path) -> None:
    """An adapter of rank 8 is trained after it; 134,515,008 weights have 2 bytes each."""
    model = write(SMOLLM2_135M, tmp_path)
    policy = {"type": "pretrained", "model": model, "dtype": "bfloat16", "lora": {"rank": 8}}
    policy["warm_start"] = {"type": "messages", "file": "mine.jsonl"}
    config = small(policy=policy)
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert sizes["warm_start"].bytes == sizes["bootstrap"].bytes == 134_515_008 * 2
    assert sizes["update_policy"].bytes < sizes["warm_start"].bytes
