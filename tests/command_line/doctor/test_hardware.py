from __future__ import annotations

from pathlib import Path

import pytest
import torch

from command_line.doctor.hardware import (
    Gpu,
    check_device,
    check_memory,
    check_number_types,
    check_torch,
    container_limit,
    read_memory,
)

A100 = Gpu("NVIDIA A100-SXM4-80GB", 85_000_000_000, (8, 0), native_bfloat16=True)
V100 = Gpu("Tesla V100", 17_000_000_000, (7, 0), native_bfloat16=False)


def test_torch_is_named_with_its_build() -> None:
    finding = check_torch()
    assert torch.__version__ in finding.found
    assert ("CPU build" in finding.found) == (torch.version.cuda is None and torch.version.hip is None)


def test_every_gpu_has_a_line_and_the_first_is_trained_on() -> None:
    first, second = check_device([A100, V100], driver=True, cuda_build="13.0")
    assert first.subject == "device cuda:0"
    assert first.found == ("NVIDIA A100-SXM4-80GB, 85.0 GB, compute capability 8.0; training uses this one")
    assert second.found == "Tesla V100, 17.0 GB, compute capability 7.0"


@pytest.mark.parametrize(
    ("driver", "cuda_build", "verdict", "advice"),
    [
        (False, None, "ok", ""),
        (True, None, "warning", "install a CUDA build"),
        (True, "13.0", "warning", "built for CUDA 13.0"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_warning(
    driver: bool, cuda_build: str | None, verdict: str, advice: str
) -> None:
    (finding,) = check_device([], driver, cuda_build)
    assert finding.verdict == verdict
    assert advice in finding.advice


def test_emulated_bfloat16_is_a_warning() -> None:
    assert check_number_types([A100]).verdict == "ok"
    assert check_number_types([V100, A100]).verdict == "warning"


def test_memory_counts_what_the_container_allows() -> None:
    assert check_memory(16_000_000_000, 8_000_000_000, None).verdict == "ok"
    limited = check_memory(16_000_000_000, 8_000_000_000, 1_000_000_000)
    assert limited.verdict == "problem"
    assert limited.found == "8.0 GB of 16.0 GB free, container limited to 1.0 GB"
    assert check_memory(16_000_000_000, 500_000_000, None).verdict == "problem"


def test_the_smallest_limit_of_the_control_groups_counts(tmp_path: Path) -> None:
    inner = tmp_path / "cgroup" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("3000\n")
    (tmp_path / "cgroup" / "memory.max").write_text("5000\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/outer/inner\n")
    assert container_limit(membership, tmp_path / "cgroup") == 3000
    membership.write_text("0::/\n")
    assert container_limit(membership, tmp_path / "cgroup") == 5000
    assert container_limit(tmp_path / "none", tmp_path / "cgroup") is None


def test_this_machine_has_memory() -> None:
    total, available, _ = read_memory()
    assert 0 < available <= total
