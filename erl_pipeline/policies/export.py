"""Taking a checkpoint out of the store, as an ordinary `save_pretrained` folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Literal

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.policies.adapters import merge_adapter, write_adapter
from erl_pipeline.policies.checkpoints import WeightsSettings, load_checkpoint, stored_parts
from erl_pipeline.policies.kind import policy_traits
from erl_pipeline.policies.pretrained import save_policy
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError

Exported = Literal["weights", "merged", "adapter"]
"""What was written: the checkpoint's own weights, base and adapter in one, or the adapter alone."""


def export_checkpoint(
    store: ArtifactStore, policy: PluginSettings, checkpoint_id: str, output: Path, adapter_only: bool = False
) -> Exported:
    """Write a checkpoint of a run with this policy into the folder `output`, whole or not at all.

    A checkpoint that is an adapter is merged into its base, in the policy's dtype, unless `adapter_only` is
    given. Raises `InputError` when the folder holds something already or cannot be written, or when
    `adapter_only` is given for a checkpoint without an adapter.
    """
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise InputError(f"--output {output} exists and is not an empty folder; name another one")
    parts = stored_parts(store, checkpoint_id)
    if adapter_only and parts.adapter_folder is None:
        raise InputError(f"--adapter-only: checkpoint {checkpoint_id} has no adapter; it is a whole model")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Beside the folder, so that a rename makes it appear whole.
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
            written = Path(scratch) / "model"
            exported = _write(store, policy, checkpoint_id, written, adapter_only)
            if output.is_dir():
                output.rmdir()
            written.rename(output)
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error}") from error
    return exported


def _write(
    store: ArtifactStore, policy: PluginSettings, checkpoint_id: str, folder: Path, adapter_only: bool
) -> Exported:
    parts = stored_parts(store, checkpoint_id)
    if parts.adapter_folder is None:
        shutil.copytree(parts.base_folder, folder, copy_function=shutil.copyfile)
        return "weights"
    traits = policy_traits(policy)
    assert traits.model is not None
    # The adapter is there: no fresh one is drawn.
    settings = WeightsSettings(dtype=traits.dtype, lora=traits.lora, adapter_seed=None)
    loaded = load_checkpoint(parts, settings)
    if adapter_only:
        # Outside the store a base is known by the name that it came from.
        write_adapter(loaded.model, folder, base=traits.model)
        return "adapter"
    merge_adapter(loaded.model)
    save_policy(loaded, folder)
    return "merged"
