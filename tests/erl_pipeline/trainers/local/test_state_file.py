from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from erl_pipeline.trainers.local.state_file import file_parts, file_size


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = {
        "step.b": torch.tensor(3.0),
        "exp_avg.b": torch.arange(6.0).reshape(2, 3).t(),  # not contiguous
        "master.ä": torch.zeros(0, 4),
        "exp_avg.a": torch.nn.Parameter(torch.tensor([0.5, float("inf")])),
    }
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, tmp_path / "file")
    written = b"".join(file_parts(tensors))
    assert written == (tmp_path / "file").read_bytes()
    assert file_size(tensors) == len(written)


def test_nothing_is_copied() -> None:
    tensor = torch.zeros(3)
    _, part = file_parts({"a": tensor})
    tensor.fill_(1.0)
    assert part.cast("f").tolist() == [1.0, 1.0, 1.0]


def test_other_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="a is not fp32"):
        file_size({"a": torch.zeros(1, dtype=torch.bfloat16)})
