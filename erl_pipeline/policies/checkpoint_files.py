"""The files of a checkpoint on this machine, and their digest, without torch."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from storage.errors import InputError

CHECKPOINT_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")

_SECOND_COPY = "consolidated*.safetensors"
"""The same weights once more, in their maker's own format; transformers does not read them."""

_FURTHER_TEMPLATES = "additional_chat_templates/*.jinja"
"""Chat templates of a tokenizer that has several, besides its default one."""

FILE_BYTES = 2_000_000_000
"""The most bytes of tensors in one file of a checkpoint; a larger tensor has a file of its own. Several
processes write as many files at once. Bytes of checkpoints depend on it."""


def deal_to_files(sizes: Mapping[str, int], name: str, most: int) -> dict[str, list[str]]:
    """Files of whole tensors, each with the names of its tensors, dealt as `save_pretrained` does it:
    `name.safetensors`, or `name-00001-of-0000n.safetensors` and so on where there are too many bytes.

    Args:
        sizes: the bytes of each tensor, by its name.
        most: the most bytes in a file with more than one tensor.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    if not sizes:
        return {f"{name}.safetensors": []}
    dealt = split_state_dict_into_shards_factory(
        dict(sizes),
        get_storage_size=int,
        filename_pattern=f"{name}{{suffix}}.safetensors",
        max_shard_size=most,
    )
    return {file: list(names) for file, names in dealt.filename_to_tensors.items()}


def checkpoint_folder(checkpoint: str | Path) -> Path:
    """The local folder of a checkpoint; a hub name is downloaded, or found in the hub's cache.

    Raises `InputError` when it is neither.
    """
    folder = Path(checkpoint)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"{checkpoint} is no model checkpoint: it has no config.json")
        return folder
    from huggingface_hub import snapshot_download

    with _told(checkpoint):
        return Path(
            snapshot_download(
                str(checkpoint),
                allow_patterns=list(CHECKPOINT_FILES),
                ignore_patterns=[_SECOND_COPY, "original/*", "metal/*"],
            )
        )


def require_checkpoint(checkpoint: str | Path) -> None:
    """Raise `InputError` as `checkpoint_folder` does, but download nothing: a model of the hub has to be in
    its cache, or the hub has to list it."""
    if Path(checkpoint).is_dir():
        checkpoint_folder(checkpoint)
        return
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    with _told(checkpoint):
        if not isinstance(try_to_load_from_cache(str(checkpoint), "config.json"), str):
            snapshot_download(str(checkpoint), allow_patterns=["config.json"], dry_run=True)


@contextmanager
def _told(checkpoint: str | Path) -> Iterator[None]:
    """Turn the hub's errors into one that names the setting."""
    from huggingface_hub.errors import (
        DryRunError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        yield
    except (
        DryRunError,
        HFValidationError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        ConnectionError,
    ) as error:
        reason: object = error.__cause__ or error if isinstance(error, DryRunError) else error
        if isinstance(error, HFValidationError):  # Its advice is about the hub's own functions.
            reason = "models there have names such as OWNER/NAME"
        raise InputError(
            f"policy.model {checkpoint} is neither a folder here nor a model on the Hugging Face hub: "
            f"{str(reason).partition(chr(10))[0]}"
        ) from error


def weights_digest(checkpoint: str | Path) -> str:
    """sha256 over the names and contents of a checkpoint's files: weights, configuration and tokenizer, with
    further chat templates."""
    folder = checkpoint_folder(checkpoint)
    digest = hashlib.sha256()
    patterns = (*CHECKPOINT_FILES, _FURTHER_TEMPLATES)
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    for path in sorted(found - set(folder.glob(_SECOND_COPY))):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()
