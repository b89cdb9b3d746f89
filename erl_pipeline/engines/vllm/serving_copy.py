"""A checkpoint in a form that a running server can reload: complete, and with an output head of its own.

Some builds of vLLM (the CPU build) pack the output head into a layout of their own. When such a server
reloads a model with tied embeddings, it keeps the old head, and then samples from neither policy. So the
server is never told that they are tied: it gets the head as a tensor of its own, and reloads it like any
other. This costs the server the memory of one more embedding matrix.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from storage.errors import EngineError

_INDEX = "model.safetensors.index.json"
_HEAD_FILE = "output_head.safetensors"


def write_serving_copy(checkpoint_folder: Path, folder: Path) -> Path:
    """The folder to serve `checkpoint_folder` from: itself when its embeddings are not tied, else `folder`.

    `folder` is made. Its files are links to those of the checkpoint, except for a configuration that says
    the embeddings are not tied, and a file with the head. Raises `EngineError` when the checkpoint lacks
    a tensor: a reload would keep the previous policy's tensor.
    """
    # Model classes are needed only here: the engine itself handles plain files and numbers.
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(checkpoint_folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    files = {
        name: file for file in sorted(checkpoint_folder.glob("*.safetensors")) for name in _tensor_names(file)
    }
    modules = {module: name for name, module in model.named_modules()}
    head_name = f"{modules[model.get_output_embeddings()]}.weight"
    tied = bool(config.tie_word_embeddings)
    needed = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    missing = sorted(needed - files.keys() - ({head_name} if tied else set()))
    if missing:
        raise EngineError(f"checkpoint {checkpoint_folder} lacks the tensors {', '.join(missing)}")
    if not tied:
        return checkpoint_folder

    folder.mkdir(parents=True)
    for file in checkpoint_folder.iterdir():
        if file.name not in ("config.json", _INDEX):
            (folder / file.name).symlink_to(file.resolve())
    embedding_name = f"{modules[model.get_input_embeddings()]}.weight"
    with safe_open(files[embedding_name], framework="pt") as tensors:
        save_file({head_name: tensors.get_tensor(embedding_name)}, folder / _HEAD_FILE)
    untied = json.loads((checkpoint_folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(untied))
    if (checkpoint_folder / _INDEX).exists():
        index = json.loads((checkpoint_folder / _INDEX).read_text())
        index["weight_map"][head_name] = _HEAD_FILE
        (folder / _INDEX).write_text(json.dumps(index))
    return folder


def _tensor_names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())
