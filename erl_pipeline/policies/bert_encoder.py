"""A sentence encoder that is a BERT with mean pooling, such as MiniLM, without sentence-transformers.

Importing sentence-transformers takes seconds in every process, since it also imports its trainers. The most
common of its models need none of it: they are the mean of the last hidden states, scaled to unit length
(arXiv 1908.10084, section 3).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import BertModel, PreTrainedTokenizerBase

_STEPS = ["Transformer", "Pooling", "Normalize"]
_NAME_PREFIX = "0.model."  # sentence-transformers' name for the weights of the first step


class MeanPooledBert:
    """What `Embedder` asks of a sentence-transformers model, with the same vectors and weight names."""

    def __init__(self, model: BertModel, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self._model = model

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The weights under the names that sentence-transformers gives them."""
        return {_NAME_PREFIX + name: tensor for name, tensor in self._model.state_dict().items()}

    def __call__(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Adds `sentence_embedding`, `[text, dimension]`, to a batch of the tokenizer."""
        states = self._model(**features).last_hidden_state
        counted = features["attention_mask"][:, :, None].to(states.dtype)
        mean = (states * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1e-9)
        return {**features, "sentence_embedding": mean}


def load_mean_pooled_bert(folder: Path) -> MeanPooledBert | None:
    """The encoder of a sentence-transformers folder; None when it is anything but a BERT with mean pooling.

    Raises OSError or ValueError when its files cannot be read.
    """
    if not _is_mean_pooled_bert(folder):
        return None
    import erl_pipeline.policies.lean_imports  # noqa: F401, I001 - stands before the first import of a model class
    from transformers import BertModel, BertTokenizerFast

    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    limit = int(settings["max_seq_length"])
    model = BertModel.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    tokenizer = BertTokenizerFast.from_pretrained(folder, local_files_only=True)
    return MeanPooledBert(model.eval(), tokenizer, limit)


def _is_mean_pooled_bert(folder: Path) -> bool:
    files = [folder / name for name in ("modules.json", "config.json", "sentence_bert_config.json")]
    if not all(file.is_file() for file in files):
        return False
    steps, config, settings = (json.loads(file.read_text()) for file in files)
    if [step["type"].rpartition(".")[2] for step in steps] != _STEPS or "max_seq_length" not in settings:
        return False
    pooling = json.loads((folder / steps[1]["path"] / "config.json").read_text())
    return _pools_by_mean(pooling) and config.get("architectures") == ["BertModel"]


def _pools_by_mean(pooling: dict[str, Any]) -> bool:
    chosen = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    return chosen == ["pooling_mode_mean_tokens"]
