"""Tokenizers of checkpoints; importing this imports no model class."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from erl_pipeline.config.policy import TemplateArgument
from erl_pipeline.policies.chat_templates import with_arguments
from erl_pipeline.policies.checkpoint_files import checkpoint_folder
from storage.errors import InputError


def load_tokenizer(
    checkpoint: str | Path, template_arguments: Mapping[str, TemplateArgument] | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, or of a model by its name on the hub, with these arguments in its chat
    template (`policy.template_arguments`).

    Raises InputError when it is not there, cannot be read, or has no chat template, and for arguments that
    the chat template does not read.
    """
    folder = checkpoint_folder(checkpoint)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        whole = " ".join(str(error).split())
        why = whole if any(folder.glob("*token*")) else "there is no tokenizer.json"
        raise InputError(
            f"{checkpoint} has no tokenizer that can be read: {why}. Copy the tokenizer's files of the model "
            "into the folder."
        ) from error
    if tokenizer.chat_template is None:
        raise InputError(
            f"the tokenizer of {checkpoint} has no chat template: use an instruction-tuned model, or add a "
            "chat_template.jinja to the folder"
        )
    if template_arguments:
        try:
            tokenizer.chat_template = with_arguments(tokenizer.chat_template, template_arguments)
        except ValueError as error:
            raise InputError(f"policy.template_arguments: {checkpoint}: {error}") from error
    return tokenizer


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over what decides token ids: the tokenizer's own state, its special tokens and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state: Any = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    if backend is not None:
        # Set by the last call, not by the tokenizer's maker.
        state = {key: value for key, value in state.items() if key not in ("truncation", "padding")}
    described = {
        "state": state,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "chat_template": tokenizer.chat_template,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
