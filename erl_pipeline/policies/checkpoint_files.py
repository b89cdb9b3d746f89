"""The files of a checkpoint on this machine, and their digest, without torch."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
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

    with _told(checkpoint):
        return Path(snapshot_download(str(checkpoint), allow_patterns=list(CHECKPOINT_FILES)))


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
    """sha256 over the names and contents of a checkpoint's files: weights, configuration and tokenizer."""
    folder = checkpoint_folder(checkpoint)
    digest = hashlib.sha256()
    for path in sorted({path for pattern in CHECKPOINT_FILES for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()
