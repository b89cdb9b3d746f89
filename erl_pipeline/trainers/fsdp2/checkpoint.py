"""Writing a checkpoint whose tensors are spread over the ranks: the files, and their bytes, of `local`."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import json
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from erl_pipeline.policies.adapters import adapter_tensors, has_adapter, write_adapter
from erl_pipeline.policies.checkpoint_files import deal_to_files
from erl_pipeline.policies.pretrained import LoadedPolicy, save_policy, stored_names
from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, whole_tensor
from erl_pipeline.trainers.fsdp2.shared_files import SharedFiles, shared_rows, shared_weight
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer, state_files

_NAME, _INDEX = "model", "model.safetensors.index.json"


def write_policy(policy: LoadedPolicy, folder: Path, ranks: ProcessRanks, file_bytes: int) -> None:
    """What `save_policy` writes. All ranks call this, and write weights at once; rank 0 alone writes an
    adapter, and a model of whose weights `save_pretrained` makes other tensors."""
    model = policy.model
    if has_adapter(model):
        tensors = {name: whole_tensor(value) for name, value in adapter_tensors(model).items()}
        if ranks.rank == 0:
            write_adapter(model, folder, tensors=tensors)
        return
    names = _names_of_one(model)
    if names is None:
        weights = _on_rank_0(model, ranks)
        if ranks.rank == 0:
            save_policy(policy, folder, weights, file_bytes)
        return
    state = model.state_dict(keep_vars=True)
    shared = {name: shared_weight(state[name]) for name in names}
    files = deal_to_files({name: tensor.bytes for name, tensor in shared.items()}, _NAME, file_bytes)
    SharedFiles(files, shared, {"format": "pt"}).write(folder, ranks)
    if ranks.rank == 0:
        if len(files) > 1:
            size = sum(tensor.bytes for tensor in shared.values())
            index = {
                "metadata": {"total_parameters": model.num_parameters(), "total_size": size},
                "weight_map": {name: file for file, names in files.items() for name in names},
            }
            (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        _write_settings(policy, folder)


def optimizer_files(optimizer: PolicyOptimizer, ranks: ProcessRanks, file_bytes: int) -> SharedFiles:
    """The tensors that `save_optimizer` writes for a whole model. All ranks call this."""
    shared = shared_rows(optimizer.tensors(), ranks)
    files = state_files({name: tensor.bytes for name, tensor in shared.items()}, file_bytes)
    return SharedFiles(files, shared)


def _names_of_one(model: PreTrainedModel) -> list[str] | None:
    """Names of the weights that `save_pretrained` writes, in its order: of those that are tied only one. None
    where it writes other tensors, or other names, than the model has."""
    state = model.state_dict(keep_vars=True)
    kept = remove_tied_weights_from_state_dict(
        {name: torch.empty(value.shape, dtype=value.dtype, device="meta") for name, value in state.items()},
        model,
    )
    stored = stored_names(model, kept)
    return list(stored) if all(name == own for name, own in stored.items()) else None


def _write_settings(policy: LoadedPolicy, folder: Path) -> None:
    """What `save_pretrained` writes besides weights, and the tokenizer."""
    model = policy.model
    model.config.dtype = str(model.dtype).removeprefix("torch.")
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
    model.config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _on_rank_0(model: PreTrainedModel, ranks: ProcessRanks) -> dict[str, torch.Tensor]:
    """All weights on rank 0, none on the others. Tied weights stay tied, and are written once."""
    state = model.state_dict(keep_vars=True)
    found: dict[int, torch.Tensor] = {}
    for value in state.values():
        if id(value) not in found:
            whole = whole_tensor(value)
            found[id(value)] = whole if ranks.rank == 0 else whole[:0]
    return {name: found[id(value)] for name, value in state.items()} if ranks.rank == 0 else {}
