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

from erl_pipeline.trainers.fsdp2 import TRAINER, Fsdp2TrainerConfig
from storage.errors import ConfigError
from tests.erl_pipeline.trainers.fsdp2.rows import Start


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "processes"),
        ({"processes": 0}, "greater than or equal to 1"),
        (
            {"processes": 2, "nnodes": 2},
            "nnodes is not offered: all processes run on the machine",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, int], message: str) -> None:
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


def test_importing_the_plug_in_does_not_import_torch() -> None:
    code = "import sys, erl_pipeline.trainers.fsdp2; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
