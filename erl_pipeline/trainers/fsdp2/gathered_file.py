"""Writing one safetensors file of tensors whose rows are spread over the ranks."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks

_ALIGNMENT = 8


def write_gathered(path: Path, tensors: Mapping[str, torch.Tensor], ranks: ProcessRanks) -> None:
    """Write fp32 tensors, put together from the rows of all ranks, as the same bytes that safetensors' own
    `save_file` would write.

    The tensors are put together one after the other, so that no rank needs memory for all of them. All ranks
    call this; rank 0 writes. Tensors without dimensions are the same on all ranks.
    """
    shapes = _whole_shapes(tensors, ranks)
    names = sorted(tensors)
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        begin, end = end, end + 4 * shapes[name].numel()
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if ranks.rank == 0:
        path.write_bytes(struct.pack("<Q", len(text)) + text)
    for name in names:
        rows = tensors[name].detach()
        whole = ranks.whole(rows, shapes[name]) if rows.ndim else rows
        if ranks.rank == 0:
            with path.open("ab") as file:
                file.write(whole.cpu().contiguous().numpy().tobytes())


def _whole_shapes(tensors: Mapping[str, torch.Tensor], ranks: ProcessRanks) -> dict[str, torch.Size]:
    rows = {name: len(tensor) for name, tensor in tensors.items() if tensor.ndim}
    counts = [json.loads(text) for text in ranks.exchange(json.dumps(rows))]
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    for name in rows:
        shapes[name] = torch.Size([sum(each[name] for each in counts), *shapes[name][1:]])
    return shapes
