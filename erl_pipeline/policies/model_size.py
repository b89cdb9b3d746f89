"""The sizes of a causal language model, from its config.json: no weights are read or made."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from storage.errors import InputError

_KNOWN = Path(__file__).with_name("known_models")
"""A config.json for each model that a configuration of this project names."""


@dataclass(frozen=True)
class ModelSize:
    """The sizes that memory use depends on.

    `parameters` counts tied weights once; `block_parameters` are those of one layer. `head_width` is the
    width of one attention head; `normalizes_heads` says whether queries and keys have a norm of their own, as
    in Qwen3. `adapter_parameters` are those of a LoRA adapter, 0 where all weights are trained.
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_width: int
    vocabulary: int
    normalizes_heads: bool
    block_parameters: int
    adapter_parameters: int = 0


def read_model_size(
    checkpoint: str, lora_rank: int | None = None, lora_modules: Collection[str] | None = None
) -> ModelSize:
    """The sizes of a checkpoint folder, or of a model of the Hugging Face hub that is in its cache.

    Args:
        lora_rank: rank of the adapter that is trained; None where all weights are.
        lora_modules: ends of the names of adapted modules; None means all linear layers but the output head.

    Raises InputError when there is no config.json here, or it is not that of a causal language model.
    """
    file = config_file(checkpoint)
    try:
        config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(
            f"{file} is not that of a causal language model that transformers knows: {reason}"
        ) from error
    text = config.get_text_config()
    heads = text.num_attention_heads
    return ModelSize(
        parameters=sum(weight.numel() for weight in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        heads=heads,
        key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_width=getattr(text, "head_dim", None) or text.hidden_size // heads,
        vocabulary=text.vocab_size,
        block_parameters=_block_parameters(model),
        normalizes_heads=any(name.endswith(".q_norm") for name, _ in model.named_modules()),
        adapter_parameters=0 if lora_rank is None else _adapter_parameters(model, lora_rank, lora_modules),
    )


def _block_parameters(model: PreTrainedModel) -> int:
    """Parameters of the largest block."""
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return max((sum(weight.numel() for weight in block.parameters()) for block in blocks), default=0)


def config_file(checkpoint: str) -> Path:
    """The config.json of a folder, or of a model of the Hugging Face hub: from its cache, or for some models
    from this package. Raises InputError where there is none."""
    file = Path(checkpoint) / "config.json"
    if file.is_file():
        return file
    try:
        cached = try_to_load_from_cache(checkpoint, "config.json")
    except HFValidationError:
        cached = None
    if isinstance(cached, str):
        return Path(cached)
    known = _KNOWN / checkpoint / "config.json"
    if not known.is_file():
        raise InputError(
            f"the config.json of {checkpoint} is not on this machine: name a folder that has it, or get it "
            f"with hf download {checkpoint} config.json"
        )
    return known


def _adapter_parameters(model: PreTrainedModel, rank: int, modules: Collection[str] | None) -> int:
    """`rank * (inputs + outputs)` of every adapted matrix (arXiv 2106.09685, section 4.1)."""
    head = model.get_output_embeddings()
    total = 0
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.ndim != 2 or isinstance(module, torch.nn.Embedding):
            continue
        if module is not head if modules is None else any(f".{name}".endswith(f".{end}") for end in modules):
            total += rank * sum(weight.shape)
    return total
