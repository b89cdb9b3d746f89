"""Loading and saving policies: any causal language model of transformers with a chat template."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import inspect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Literal

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.core_model_loading import revert_weight_conversion

from erl_pipeline.config.policy import TemplateArgument
from erl_pipeline.policies import checkpoint_files
from erl_pipeline.policies.adapters import has_adapter, write_adapter
from erl_pipeline.policies.checkpoint_files import checkpoint_folder
from erl_pipeline.policies.hardware import bfloat16_is_native, training_device
from erl_pipeline.policies.refused_models import refuse_changing_positions, refuse_quantized
from erl_pipeline.policies.tokenizers import load_tokenizer, tokenizer_digest
from storage.errors import InputError

Precision = Literal["float32", "bfloat16"]

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
)
"""Settings of a generation_config.json that count only while its `do_sample` is true."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A model ready to sample from or to train, with what else must be known about it.

    `tokenizer_digest` changes whenever token ids or the chat template change; `context_length` is in tokens;
    sampling ends at any of `eos_token_ids`.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    tokenizer_digest: str
    context_length: int
    eos_token_ids: frozenset[int]


def load_policy(
    checkpoint: str | Path,
    dtype: Precision = "float32",
    device: torch.device | None = None,
    template_arguments: Mapping[str, TemplateArgument] | None = None,
) -> LoadedPolicy:
    """Load a `save_pretrained` folder, or a model by its name on the Hugging Face hub, with these arguments
    in its chat template.

    Only safetensors are read: nothing is ever unpickled, and no code of the checkpoint runs. `device`
    defaults to the first GPU, else the CPU.

    Raises:
        InputError: nothing there, not a causal language model, weights or tokenizer missing, weights
            quantized, positions that depend on other sequences, a generation_config.json that cannot be saved
            again, no chat template or one that does not read the arguments, no end-of-sequence token or no
            context length.
    """
    device = training_device() if device is None else device
    if dtype == "bfloat16" and not bfloat16_is_native(device):
        logging.getLogger(__name__).warning(
            "%s has no bf16 arithmetic: policy.dtype float32 would be faster", device
        )
    folder = checkpoint_folder(checkpoint)
    model = _load_model(folder, checkpoint, dtype).to(device).eval()
    _make_generation_savable(model.generation_config, checkpoint)
    tokenizer = load_tokenizer(checkpoint, template_arguments)
    eos_token_ids = _eos_token_ids(model.generation_config, tokenizer, checkpoint)
    context_length = _context_length(model.config, checkpoint)
    return LoadedPolicy(model, tokenizer, tokenizer_digest(tokenizer), context_length, eos_token_ids)


def compute_head_in_float32(model: PreTrainedModel) -> None:
    """Have the output head of a model in low precision compute in fp32, whoever calls it: trainer, sampler,
    probe. Its weights stay as they are (MiniMax-M1, arXiv 2506.13585, section 3.2).

    Raises InputError where the head is no linear layer.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise InputError(
            f"policy.head_dtype: the output head of {type(model).__name__} is no linear layer; leave "
            "head_dtype out"
        )
    head.forward = MethodType(_in_float32, head)  # type: ignore[method-assign]


def _in_float32(head: torch.nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
    bias = None if head.bias is None else head.bias.float()
    return torch.nn.functional.linear(hidden.float(), head.weight.float(), bias)


def read_context_length(folder: Path) -> int:
    """The context length of a checkpoint, in tokens. Raises InputError as `load_policy`."""
    return _context_length(_load_config(folder, folder), folder)


def read_eos_token_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens at which sampling from a checkpoint ends, without its weights. Raises InputError as
    `load_policy`."""
    try:
        generation = GenerationConfig.from_pretrained(folder)
    except OSError:  # Without a file of its own, the model's configuration names them.
        generation = GenerationConfig.from_model_config(_load_config(folder, folder))
    return _eos_token_ids(generation, tokenizer, folder)


def save_policy(
    policy: LoadedPolicy,
    folder: Path,
    weights: dict[str, torch.Tensor] | None = None,
    file_bytes: int | None = None,
) -> None:
    """Write weights (safetensors), configuration and tokenizer; equal policies give equal bytes.

    For a model with an adapter only the adapter is written: the base does not change, and is stored already.
    `weights` are written in place of the model's own, which may be spread over processes. `file_bytes`: the
    most of a file; None: `checkpoint_files.FILE_BYTES`.
    """
    if has_adapter(policy.model):
        write_adapter(policy.model, folder)
        return
    most = checkpoint_files.FILE_BYTES if file_bytes is None else file_bytes
    policy.model.save_pretrained(folder, state_dict=weights, max_shard_size=most)
    policy.tokenizer.save_pretrained(folder)


def stored_names(model: PreTrainedModel, names: Iterable[str]) -> dict[str, str | None]:
    """Names of the tensors that `save_pretrained` writes for these weights of a model, in its order, each
    with the model's own name of it: None for one that is made of others.

    A file may name a weight otherwise, or hold apart what the model computes with as one: each expert of a
    mixture, for instance.
    """
    state = model.state_dict(keep_vars=True)
    own = {name: torch.empty(state[name].shape, dtype=state[name].dtype, device="meta") for name in names}
    name_of = {id(tensor): name for name, tensor in own.items()}
    # The library has no public function for this; `tests/erl_pipeline/engines/test_probe.py` compares the
    # names with a file's.
    stored = revert_weight_conversion(model, dict(own))
    return {name: name_of.get(id(tensor)) for name, tensor in stored.items()}


def _load_config(folder: Path, checkpoint: str | Path) -> PretrainedConfig:
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"the config.json of {checkpoint} cannot be used: {_first_line(error)}") from error


def _context_length(config: PretrainedConfig, checkpoint: str | Path) -> int:
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not length:
        raise InputError(
            f"{checkpoint} names no context length: set max_position_embeddings in its config.json"
        )
    return int(length)


def _load_model(folder: Path, checkpoint: str | Path, dtype: Precision) -> PreTrainedModel:
    config = _load_config(folder, checkpoint)
    if config.is_encoder_decoder:
        raise InputError(f"{checkpoint} is not a causal language model: {config.model_type} has an encoder")
    refuse_quantized(config, checkpoint)
    refuse_changing_positions(config, checkpoint)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except ValueError as error:
        raise InputError(f"{checkpoint} is not a causal language model: {_first_line(error)}") from error
    except OSError as error:
        raise InputError(f"{checkpoint} has no weights as safetensors: {_first_line(error)}") from error
    except SafetensorError as error:
        raise InputError(f"the weights of {checkpoint} cannot be read: {error}") from error
    missing = sorted(loading["missing_keys"])
    if missing:
        raise InputError(
            f"{checkpoint} lacks weights of a causal language model: {', '.join(missing[:4])}"
            f"{f' and {len(missing) - 4} more' if len(missing) > 4 else ''}"
        )
    if "past_key_values" not in inspect.signature(type(model).forward).parameters:
        raise InputError(
            f"{checkpoint} is a {config.model_type}, whose forward pass takes no past keys and values; it "
            "cannot be sampled from here. Choose another policy, with attention"
        )
    return model


def _make_generation_savable(generation: GenerationConfig | None, checkpoint: str | Path) -> None:
    """Clear settings of sampling where transformers would refuse to save them because sampling is off. They
    are never used here. Raises InputError for whatever else it refuses to save."""
    if generation is None:
        return
    try:
        generation.validate(strict=True)
        return
    except ValueError:
        if generation.do_sample is not True:
            for name in _SAMPLING:
                setattr(generation, name, None)
    try:
        generation.validate(strict=True)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"the generation_config.json of {checkpoint} cannot be saved again: {why}"
        ) from error


def _eos_token_ids(
    generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase, checkpoint: str | Path
) -> frozenset[int]:
    named = generation.eos_token_id if generation is not None else None
    listed = named if isinstance(named, list) else [named]
    found = frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)
    if not found:
        raise InputError(
            f"{checkpoint} names no end-of-sequence token: set eos_token in its tokenizer_config.json"
        )
    return found


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
