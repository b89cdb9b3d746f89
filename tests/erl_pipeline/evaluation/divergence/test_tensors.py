"""The first tensor in which two checkpoints differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from erl_pipeline.evaluation.first_difference import first_tensor_difference
from storage.errors import StoreError


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_first_element_the_number_and_the_largest_difference_are_told(
    tmp_path: Path, kind: torch.dtype
) -> None:
    ours = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=kind)
    theirs = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.5, 8.0]], dtype=kind)
    same = torch.ones(2, dtype=kind)
    a = saved(tmp_path / "a.safetensors", first=same, second=ours)
    b = saved(tmp_path / "b.safetensors", first=same, second=theirs)
    found = first_tensor_difference(a, b, "model")
    assert found is not None
    assert (found.tensor, found.position, found.a, found.b) == ("second", (1, 1), "5", "5.5")
    assert (found.count, found.largest) == (2, 2.0)
    assert first_tensor_difference(a, a, "model") is None


def test_other_names_and_shapes_are_differences(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.safetensors", weight=torch.zeros(2))
    b = saved(tmp_path / "b.safetensors", weight=torch.zeros(3))
    c = saved(tmp_path / "c.safetensors", weight=torch.zeros(2), bias=torch.zeros(1))
    shape, name = first_tensor_difference(a, b, "m"), first_tensor_difference(a, c, "m")
    assert shape is not None
    assert name is not None
    assert (shape.what, shape.a, shape.b) == ("shape of weight", "F32 [2]", "F32 [3]")
    assert (name.tensor, name.a, name.b) == ("bias", "absent", "there")


def test_what_is_no_safetensors_file_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    with pytest.raises(StoreError, match=r"bad\.safetensors is not a safetensors file"):
        first_tensor_difference(bad, bad, "m")
