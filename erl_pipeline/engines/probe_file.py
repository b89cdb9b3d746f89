"""The file of a checkpoint that tells a sampler what it must know of the policy, so that it need not load it.

Whoever writes a checkpoint computes the file from the weights that it writes (`erl_pipeline.engines.probe`).
Equal weights give equal bytes.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.numpy import save_file

from erl_pipeline.engines.interface import OutputHead, Probe

PROBE_FILE = "probe.safetensors"

_FACTS = "facts"


@dataclass(frozen=True)
class ModelFacts:
    """What a sampler must know of a whole model, besides its weights and its tokenizer.

    `context_length` is in tokens; sampling ends at any of `end_token_ids`. `linear_layers` are the names of
    those that an adapter may change, in the order of the model; `model_type` is that of its config.json.
    """

    model_type: str
    tokenizer_digest: str
    context_length: int
    end_token_ids: tuple[int, ...]
    head: OutputHead
    linear_layers: tuple[str, ...]


_MODEL_FACTS = TypeAdapter(ModelFacts | None)


def write_probe(file: Path, probe: Probe, facts: ModelFacts | None) -> None:
    """Write the file of a checkpoint. `facts` are None for an adapter, whose base has them."""
    tensors = {
        "token_ids": np.asarray(probe.token_ids, dtype=np.int64),
        "logprobs": np.asarray(probe.logprobs, dtype=np.float32),
        "hot_logprobs": np.asarray(probe.hot_logprobs, dtype=np.float32),
    }
    if probe.base_logprobs is not None:
        tensors["base_logprobs"] = np.asarray(probe.base_logprobs, dtype=np.float32)
    # One entry: safetensors writes several in any order.
    told = {"dtype": probe.dtype, "model": None if facts is None else asdict(facts)}
    save_file(tensors, file, metadata={_FACTS: json.dumps(told)})


def read_probe(file: Path) -> Probe:
    """The probe that `write_probe` has written."""
    with safe_open(file, framework="numpy") as tensors:
        rows = {name: _rows(tensors.get_tensor(name)) for name in tensors.keys() if name != "hot_logprobs"}  # noqa: SIM118
        return Probe(
            token_ids=rows["token_ids"],
            logprobs=rows["logprobs"],
            dtype=_told(tensors)["dtype"],
            hot_logprobs=tensors.get_tensor("hot_logprobs"),
            base_logprobs=rows.get("base_logprobs"),
        )


def read_facts(file: Path) -> ModelFacts:
    """The facts in the file of a checkpoint that is a whole model."""
    with safe_open(file, framework="numpy") as tensors:
        facts = _MODEL_FACTS.validate_python(_told(tensors)["model"])
    assert facts is not None, f"{file} is that of an adapter"
    return facts


def _told(tensors: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(tensors.metadata()[_FACTS])
    return told


def _rows(table: np.ndarray) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())
