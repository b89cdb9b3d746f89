"""LoRA adapters (arXiv 2106.09685) inside a model: made, written, read, switched off and merged.

The adapter is injected into the model's own linear layers, so that all that is done with a model works with
an adapter too. Its weights have the model's dtype: what is trained is then exactly what a server gets, and
the optimizer holds fp32 master weights for both.
"""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.adapter_names import SETTINGS, WEIGHTS, adapted_layers, require_same_adapter
from storage.errors import InputError

if TYPE_CHECKING:
    # A run without an adapter does not wait for the import of peft.
    from peft import LoraConfig as PeftLoraConfig

_NAME = "default"
_PREFIX = "base_model.model."  # peft writes names as its own wrapper around a model would have them


def add_fresh_adapter(model: PreTrainedModel, config: LoraConfig, seed: int, base: str) -> None:
    """Put a new adapter into a model and freeze everything else; the model computes what it did before.

    In each change `B A`, `A` is drawn from a uniform distribution with `seed` alone, and `B` is 0. `base`
    names the weights that the adapter belongs to.

    Raises `ConfigError` when a name in `config.target_modules` is not that of a linear layer, or is that of
    the output head, which may share its weights with the embeddings.
    """
    from peft import LoraConfig as PeftLoraConfig

    targets = _targets(model, config)
    settings = PeftLoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        fan_in_fan_out=any(isinstance(model.get_submodule(name), Conv1D) for name in targets),
        task_type="CAUSAL_LM",
    )
    _inject(model, settings, base)
    generator = torch.Generator().manual_seed(seed)
    for layer in _layers(model).values():
        weight = layer.lora_A[_NAME].weight
        drawn = torch.empty(weight.shape)
        torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        weight.data.copy_(drawn)


def read_adapter(model: PreTrainedModel, folder: Path, config: LoraConfig) -> None:
    """Put the adapter of a folder into a model and freeze everything else.

    Raises `InputError` when the folder holds no LoRA adapter, or one of another model, and `ConfigError`
    when the adapter was made with other settings than `config`.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import PeftConfig

    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder} holds no adapter: it has no {SETTINGS}")
    try:
        settings = PeftConfig.from_pretrained(str(folder))
        tensors = load_file(folder / WEIGHTS)
    except (ValueError, OSError, SafetensorError) as error:
        raise InputError(f"the adapter in {folder} cannot be read: {error}") from error
    if not isinstance(settings, PeftLoraConfig):
        raise InputError(f"the adapter in {folder} is no LoRA adapter")
    targets = _targets(model, config)
    try:
        _inject(model, settings, settings.base_model_name_or_path)
    except ValueError as error:
        raise InputError(f"the adapter in {folder} belongs to another model: {error}") from error
    found = (settings.r, settings.lora_alpha, list(_layers(model)))
    require_same_adapter(folder, found, config, targets)
    own = adapter_tensors(model)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if different := sorted(set(shapes.items()) ^ {(name, tensor.shape) for name, tensor in own.items()}):
        raise InputError(
            f"the adapter in {folder} does not fit the model: {different[0][0]} {tuple(different[0][1])}"
        )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def write_adapter(
    model: PreTrainedModel,
    folder: Path,
    base: str | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json`, as peft and vLLM read them.

    Equal adapters give equal bytes. `base` is written as the name of the base model; by default the name that
    the adapter was made with. `tensors` are written in place of `adapter_tensors(model)`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = adapter_tensors(model) if tensors is None else tensors
    save_file({name: tensor.contiguous().cpu() for name, tensor in written.items()}, folder / WEIGHTS)
    settings = model.peft_config[_NAME].to_dict() | {"inference_mode": True}
    if base is not None:
        settings["base_model_name_or_path"] = base
    (folder / SETTINGS).write_text(json.dumps(_plain(settings), indent=2, sort_keys=True) + "\n")


def adapter_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The adapter's tensors, by their names in a file; they share their memory with the model's."""
    from peft import get_peft_model_state_dict

    # By default peft asks the hub whether the base model has as many tokens as this one.
    state = get_peft_model_state_dict(model, adapter_name=_NAME, save_embedding_layers=False)
    return {_PREFIX + name: tensor for name, tensor in state.items()}


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether an adapter was put into this model."""
    return hasattr(model, "peft_config")


@contextmanager
def without_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Within the block the model is its base alone; a model that has no adapter stays as it is."""
    if not has_adapter(model):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


@torch.no_grad()
def merge_adapter(model: PreTrainedModel) -> None:
    """Merge the adapter into the model: its weights become `W + alpha / rank * B A`, rounded once."""
    for name, layer in _layers(model).items():
        base = layer.get_base_layer()
        change = layer.lora_B[_NAME].weight.float() @ layer.lora_A[_NAME].weight.float()
        if layer.fan_in_fan_out:
            change = change.T
        base.weight.copy_(base.weight.float() + layer.scaling[_NAME] * change)
        base.weight.requires_grad_(True)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, base)
    model.delete_adapter(_NAME)  # Nothing is left of it but transformers' note that there is one.


def _inject(model: PreTrainedModel, settings: PeftLoraConfig, base: str | None) -> None:
    settings.inference_mode = False
    # peft initializes with torch's global random numbers; other users of these must not notice. Without
    # devices torch would keep those of all GPUs, and warn where there are several.
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        model.add_adapter(settings, _NAME)
    settings.base_model_name_or_path = base
    for layer in _layers(model).values():
        for matrix in (layer.lora_A[_NAME], layer.lora_B[_NAME]):
            matrix.to(model.dtype)


def _layers(model: PreTrainedModel) -> dict[str, Any]:
    """The layers that an adapter was put into, by name, in the order of the model."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Names of all linear layers but the output head, in the order of the model, which has no adapter."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]


def _targets(model: PreTrainedModel, config: LoraConfig) -> list[str]:
    """Names of the layers that are to be adapted, in the order of the model, which has no adapter yet."""
    return adapted_layers(linear_layers(model), config, model.config.model_type)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it: sets become sorted lists."""
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
