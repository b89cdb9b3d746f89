"""What is refused before a process starts, and what the plug-in imports."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.pipeline import NodesToFind
from erl_pipeline.config.plugins import operational_names, operational_part, with_operational
from erl_pipeline.policies.checkpoints import WeightsSettings
from erl_pipeline.stages.training.training_stage import TrainingSettings
from erl_pipeline.trainers.fsdp2 import TRAINER, Fsdp2TrainerConfig
from erl_pipeline.trainers.interface import operational_part_here
from storage.errors import ConfigError
from tests.erl_pipeline.trainers.fsdp2.rows import Start


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "processes"),
        ({"processes": 0}, "greater than or equal to 1"),
        ({"processes": 3, "nodes": 2, "address": "a:1"}, "processes: 3 .* nodes: 2; choose a multiple"),
        ({"processes": 2, "address": "10.0.0.1"}, "'10.0.0.1'; allowed is HOST:PORT"),
        ({"processes": 2, "address": "10.0.0.1:0"}, "the other nodes must know the port"),
        ({"processes": 2, "address": "0.0.0.0:29500"}, "other machines cannot reach this"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Fsdp2TrainerConfig.model_validate({"type": "fsdp2", **settings})


def test_more_processes_than_devices_are_refused_with_the_name_of_the_machine(
    first: Path, start: Start
) -> None:
    there = torch.cuda.device_count() or len(os.sched_getaffinity(0))
    settings = Fsdp2TrainerConfig(processes=there + 1)
    refused = rf"trainer.processes: {there + 1}; this machine \({platform.node()}\) has {there} "
    with pytest.raises(ConfigError, match=refused):
        TRAINER.require_here(settings)
    with pytest.raises(ConfigError, match=refused):
        TRAINER.open(settings, start(first / "llama"))
    TRAINER.require_here(Fsdp2TrainerConfig(processes=there))
    shared = Fsdp2TrainerConfig(processes=2 * there + 2, nodes=2, address="127.0.0.1:29500")
    asked = rf"processes: {2 * there + 2} on trainer.nodes: 2, so {there + 1} on each; this .* has {there} "
    with pytest.raises(ConfigError, match=asked):
        TRAINER.require_here(shared)


def test_several_nodes_need_an_address_of_this_machine() -> None:
    def several(address: str) -> None:
        TRAINER.require_here(Fsdp2TrainerConfig(processes=2, nodes=2, address=address))

    with pytest.raises(
        ConfigError, match=r"trainer.address: 203.0.113.1:29500: this machine has no .* interf"
    ):
        several("203.0.113.1:29500")
    several("127.0.0.1:29500")


def test_nodes_without_an_address_need_a_runner_that_finds_them() -> None:
    there = "trainer={type: fsdp2, processes: 6, nodes: 3}"
    with pytest.raises(
        ConfigError, match=r"trainer\.nodes: 3 needs trainer\.address with runner\.type: prefect\. "
    ):
        load_config("configs/frozen_lake.yaml", [there])
    config = load_config("configs/frozen_lake.yaml", [there, "runner=ray"])
    assert isinstance(config.trainer, Fsdp2TrainerConfig)
    assert config.nodes_to_find == NodesToFind(count=2, processes=2)
    with pytest.raises(ConfigError, match=r"trainer\.nodes: 3 needs trainer\.address here"):
        TRAINER.require_here(config.trainer)
    # Ray lends them to the training of one worker, while those of the others wait or sample.
    assert load_config("configs/frozen_lake.yaml", [there, "runner=ray", "resources.devices=2"])
    at = "trainer={type: fsdp2, processes: 6, nodes: 3, address: '10.0.0.1:29500'}"
    with pytest.raises(ConfigError, match=r"devices: 2; allowed with trainer\.address is 1, since .* lends"):
        load_config("configs/frozen_lake.yaml", [at, "runner=ray", "resources.devices=2"])
    # An audit computes on one machine, where all processes are.
    assert operational_part_here(config.trainer) == {}
    by_hand = Fsdp2TrainerConfig(processes=6, nodes=3, address="10.0.0.1:29500")
    assert TRAINER.nodes_to_find(by_hand) == 0
    assert operational_part_here(by_hand) == operational_part("trainers", by_hand)
    assert TRAINER.nodes_to_find(Fsdp2TrainerConfig(processes=6)) == 0


def test_where_ranks_run_is_not_in_recipes() -> None:
    """Recipes hold what they held before there were nodes."""
    here = Fsdp2TrainerConfig(processes=4)
    apart = Fsdp2TrainerConfig(processes=4, nodes=2, address="10.0.0.1:29500", start_seconds=5, sleep=True)
    for trainer in (here, apart):
        settings = TrainingSettings(
            optimizer=OptimizerConfig(),
            trainer=trainer,
            weights=WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
        )
        assert settings.model_dump(mode="json")["trainer"] == {
            "type": "fsdp2",
            "processes": 4,
            "attention": "auto",
            "compile_blocks": False,
            "gradient_sums": "microbatch",
        }
        assert (
            with_operational("trainers", settings.trainer, operational_part("trainers", trainer)) == trainer
        )
    where = {"nodes", "address", "start_seconds", "timeout_seconds", "sleep"}
    assert operational_names("trainers", "fsdp2") == where
    assert (
        operational_names("trainers", "local")
        == operational_names("trainers", "not installed")
        == frozenset()
    )


def test_importing_the_plug_in_does_not_import_torch() -> None:
    code = "import sys, erl_pipeline.trainers.fsdp2; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
