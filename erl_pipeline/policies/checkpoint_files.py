"""The files of a checkpoint on this machine, and their digest, without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from storage.errors import InputError

CHECKPOINT_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")


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
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(checkpoint), allow_patterns=list(CHECKPOINT_FILES)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, ConnectionError) as error:
        raise InputError(
            f"policy.model {checkpoint} is neither a folder in {Path.cwd()} nor a model on the Hugging Face "
            f"hub: {str(error).partition(chr(10))[0]}"
        ) from error


def weights_digest(checkpoint: str | Path) -> str:
    """sha256 over the names and contents of a checkpoint's files: weights, configuration and tokenizer."""
    folder = checkpoint_folder(checkpoint)
    digest = hashlib.sha256()
    for path in sorted({path for pattern in CHECKPOINT_FILES for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()
