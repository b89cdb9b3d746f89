"""Settings of the runner `ray`, and what is refused before Ray is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.ray.settings import DeviceStageConfig, RayConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "head.example:6379", "[::1]:6379"])
def test_an_address_is_a_word_or_a_host_and_a_port(address: str) -> None:
    assert RayConfig(address=address).address == address


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ray://head:10001", "Ray's client is not used"),
        ("http://head:8265", "allowed is auto, local or HOST:PORT"),
        ("head", "allowed is auto, local or HOST:PORT"),
    ],
)
def test_other_addresses_are_refused_with_what_is_allowed(address: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RayConfig(address=address)


def test_gpus_are_counted_whole_or_as_a_part_of_one() -> None:
    assert DeviceStageConfig(gpus=0.5).gpus == 0.5
    assert DeviceStageConfig(gpus=2).gpus == 2
    with pytest.raises(ValidationError, match=r"1\.5 GPUs; allowed is a whole number, or a part of one GPU"):
        DeviceStageConfig(gpus=1.5)


def test_the_plug_in_is_found_without_importing_ray() -> None:
    code = "import sys, flows.ray.runner; print([each for each in ('ray', 'torch') if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
