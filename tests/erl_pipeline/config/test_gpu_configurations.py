"""The configurations for GPUs: they are loaded and their memory is computed. They were not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.pipeline import DeviceGroups
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.vllm.settings import VllmEngineConfig
from erl_pipeline.policies.model_size import read_model_size
from erl_pipeline.sizing.formulas import estimate_memory, model_size
from tests.erl_pipeline.sizing.test_formulas import QWEN3_4B, write

CONFIGS = Path(__file__).parents[3] / "configs"
LORA = (
    "policy.lora={rank: 32, alpha: 64}",
    "optimizer.state_device=model",
    "optimizer.learning_rate=1e-5",
)


def trainer_gigabytes(name: str, folder: Path, *settings: str) -> tuple[RunConfig, float]:
    """A configuration with the sizes of Qwen3-4B, and the memory that its trainer's GPU needs."""
    config = load_config(CONFIGS / name, [f"policy.model={write(QWEN3_4B, folder)}", *settings])
    parts = estimate_memory(config, model_size(config))
    return config, sum(part.bytes for part in parts if part.place == "trainer") / 1e9


@pytest.mark.parametrize(("settings", "expected"), [((), 36.02), (LORA, 13.20)])
def test_one_gpu_holds_trainer_and_server(tmp_path: Path, settings: tuple[str, ...], expected: float) -> None:
    config, trainer = trainer_gigabytes("gpu_one_qwen3_4b.yaml", tmp_path, *settings)
    assert trainer == pytest.approx(expected, abs=0.01)
    assert isinstance(config.engine, VllmEngineConfig)
    assert config.engine.arguments == ("--gpu-memory-utilization=0.45",)
    assert trainer + 0.45 * 80 < 73


def test_four_gpus_train_while_four_sample(tmp_path: Path) -> None:
    config, trainer = trainer_gigabytes("gpu_eight_qwen3_4b.yaml", tmp_path)
    assert trainer == pytest.approx(30.97, abs=0.01)
    assert config.resources.groups == DeviceGroups(sample=(0, 1, 2, 3), train=(4, 5, 6, 7))
    assert config.pipeline.lag == 1
    assert isinstance(config.engine, VllmEngineConfig)
    assert "--data-parallel-size=4" in config.engine.arguments


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("gpu_*.yaml")), ids=lambda path: path.stem)
def test_old_checkpoints_do_not_stay_for_ever(path: Path) -> None:
    retention = load_config(path).retention
    assert (retention.checkpoints, retention.optimizer) == ("2,every:10", "1")


def test_the_settings_of_the_paper() -> None:
    # arXiv 2602.13949, appendix C, and the scripts of its code.
    config = load_config(CONFIGS / "gpu_eight_qwen3_4b.yaml")
    assert (config.rollouts.tasks_per_iteration, config.rollouts.group_size) == (64, 4)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (1e-6, 0.01)
    assert (config.objective.clip_low, config.objective.clip_high, config.objective.dual_clip) == (
        0.2,
        0.28,
        3,
    )
    assert (config.objective.kl_coefficient, config.sampling.temperature) == (0.001, 0.7)
    assert config.objective.loss_normalization == "sequence_sum"


@pytest.mark.parametrize(
    ("model", "parameters"),
    [("Qwen3-4B-Instruct-2507", 4_022_468_096), ("Qwen3-8B", 8_190_735_360), ("Qwen3-32B", 32_762_123_264)],
)
def test_the_models_of_configurations_are_known_without_their_files(model: str, parameters: int) -> None:
    assert read_model_size(f"Qwen/{model}").parameters == parameters
