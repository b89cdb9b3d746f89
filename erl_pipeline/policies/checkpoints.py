"""Checkpoints as the stages read them: all weights, or a base and an adapter of it.

The base is the checkpoint that `bootstrap` committed. A checkpoint that holds an adapter names it as an
input of its recipe, so that lineage, verification and whatever removes artifacts see what it rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.config.policy import LoraConfig, PretrainedPolicyConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.adapters import add_fresh_adapter, read_adapter
from erl_pipeline.policies.pretrained import LoadedPolicy, Precision, load_policy
from storage.artifacts.recipe import derive_seed
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError

MODEL = "model"
"""The folder of a checkpoint that has the weights, or the adapter."""

_BASE = "base"


@dataclass(frozen=True)
class CheckpointParts:
    """Where the weights of a checkpoint are. Without an adapter, the checkpoint is its own base."""

    base_id: str
    base_folder: Path
    adapter_folder: Path | None


def checkpoint_parts(store: ArtifactStore, checkpoint_id: str) -> CheckpointParts:
    """The verified folders of a checkpoint, on this machine."""
    checkpoint = store.open(checkpoint_id)
    base_id = checkpoint.manifest.inputs.get(_BASE)
    if base_id is None:
        return CheckpointParts(checkpoint_id, checkpoint.path(MODEL), None)
    return CheckpointParts(base_id, store.open(base_id).path(MODEL), checkpoint.path(MODEL))


def load_checkpoint(store: ArtifactStore, checkpoint_id: str, config: RunConfig) -> LoadedPolicy:
    """The policy of a checkpoint of a run: with its adapter, or a fresh one where the base is to get one.

    Raises `InputError` when it cannot be read, `ConfigError` when the base has no layers to adapt, or the
    checkpoint has an adapter that is not as the configuration says.
    """
    parts = checkpoint_parts(store, checkpoint_id)
    policy = load_policy(parts.base_folder, dtype=policy_dtype(config))
    lora = lora_config(config)
    if parts.adapter_folder is not None:
        if lora is None:
            raise ConfigError(
                f"policy.lora: checkpoint {checkpoint_id} is an adapter; without policy.lora no run goes on "
                "from it. `erl-pipeline export` merges it into a model that policy.model can name"
            )
        read_adapter(policy.model, parts.adapter_folder, lora)
    elif lora is not None:
        add_fresh_adapter(policy.model, lora, derive_seed(config.seed, "adapter"), parts.base_id)
    return policy


def lora_config(config: RunConfig) -> LoraConfig | None:
    """Settings of the adapter that the run trains; None when it trains all weights."""
    return config.policy.lora if isinstance(config.policy, PretrainedPolicyConfig) else None


def policy_dtype(config: RunConfig) -> Precision:
    """Precision of the policy's weights; the tiny policy has float32."""
    return config.policy.dtype if isinstance(config.policy, PretrainedPolicyConfig) else "float32"


def adapter_settings(config: RunConfig) -> dict[str, Any]:
    """What the recipe of a stage that trains says of the adapter; nothing when all weights are trained."""
    lora = lora_config(config)
    return {} if lora is None else {"lora": lora.model_dump(mode="json")}


def base_input(store: ArtifactStore, checkpoint_id: str, config: RunConfig) -> dict[str, str]:
    """The base as an input of a stage that trains an adapter on it; nothing when all weights are trained."""
    if lora_config(config) is None:
        return {}
    return {_BASE: store.open(checkpoint_id).manifest.inputs.get(_BASE, checkpoint_id)}
