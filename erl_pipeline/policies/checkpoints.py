"""Checkpoints as the stages read them: all weights, or a base and an adapter for it.

The base is the checkpoint that the run began with. A stage that works with an adapter has the base as an
input of its own, so that lineage, verification and whatever removes artifacts see what it depends on.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
import tempfile
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import LoraConfig, TemplateArgument, WarmStartConfig
from storage.artifacts.artifact import Artifact
from storage.artifacts.recipe import derive_seed
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError

if TYPE_CHECKING:
    import torch

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from storage.artifacts.manifest import Manifest
    from storage.artifacts.store import ArtifactStore


MODEL = "model"
"""The folder of a checkpoint that has the weights, or the adapter."""

CHECKPOINT, BASE = "checkpoint", "base"
"""Names of the inputs of a stage that works with a policy."""

OPTIMIZER_STATE, OPTIMIZER_PROGRESS = "optimizer.safetensors", "optimizer.json"
"""Files of a checkpoint that was trained: master weights and moments, and the number of steps. A large state
is in `optimizer-00001-of-0000n.safetensors` and so on."""
OPTIMIZER_STATE_FILES = "optimizer*.safetensors"

INSTRUCTION = f"{MODEL}/instruction.json"
"""The file of a checkpoint whose policy is told more than the task: task type -> a JSON object whose key
`text` is put into the prompt of each first attempt at such a task. It lies beside the weights, so that an
exported model has it too."""

ANY_TYPE = "*"
"""The task type of an instruction that is for tasks of all types."""


def read_instructions(checkpoint: Artifact) -> dict[str, dict[str, Any]]:
    """The instructions of a checkpoint by type of task, each with its `text` and what its trial showed; empty
    for a checkpoint without."""
    if all(entry.path != INSTRUCTION for entry in checkpoint.manifest.files):
        return {}
    found: dict[str, Any] = json.loads(checkpoint.path(INSTRUCTION).read_text(encoding="utf-8"))
    # Earlier checkpoints have one instruction, for all tasks.
    return {ANY_TYPE: found} if isinstance(found.get("text"), str) else found


def instruction_texts(checkpoint: Artifact) -> dict[str, str]:
    """The texts of these instructions by type of task."""
    return {task_type: each["text"] for task_type, each in read_instructions(checkpoint).items()}


def instruction_for(instructions: Mapping[str, str], task_type: str) -> str | None:
    """The instruction for a task, of those by type of task; None where there is none for its type."""
    return instructions.get(task_type, instructions.get(ANY_TYPE))


def lacks_state(checkpoint: Manifest) -> bool:
    """Whether a checkpoint was committed without the state of its optimizer, as
    `retention.optimizer_every` allows. The first checkpoint of a run has none, and lacks nothing."""
    names = {entry.path for entry in checkpoint.files}
    return OPTIMIZER_PROGRESS in names and not fnmatch.filter(names, OPTIMIZER_STATE_FILES)


@dataclass(frozen=True)
class PolicyTraits:
    """What the rest of the program asks about a policy, whatever its kind is."""

    model: str | None = None
    """Folder or hub name of the model that the run begins with; None where it makes its first weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights in training and generation."""
    head_dtype: Literal["float32"] | None = None
    """That in which the output head computes; None: that of the weights."""
    template_arguments: Mapping[str, TemplateArgument] = field(default_factory=dict)
    """What the chat template of that model is given besides messages and tools."""
    lora: LoraConfig | None = None
    """The adapter that is trained; None when all weights are."""
    warm_start: WarmStartConfig | None = None
    """Supervised training before the first iteration."""
    own_words: bool = False
    """Whether it reads and writes only the words of its environment, so that no text in a natural language
    can be put to it."""
    parameters: int | None = None
    """How many numbers its weights have, without the vocabulary, where the settings say it."""


def policy_traits(policy: PluginSettings) -> PolicyTraits:
    """What is true of a policy with these settings."""
    traits: PolicyTraits = plugins("policies")[policy.type].value.traits(policy)
    return traits


class WeightsSettings(Settings):
    """How a checkpoint becomes a policy in memory."""

    dtype: Literal["float32", "bfloat16"]
    """Precision of the weights; the tiny policy has float32."""
    head_dtype: Literal["float32"] | None = Field(default=None, exclude_if=lambda head: head is None)
    """That in which the output head computes; None: that of the weights."""
    lora: LoraConfig | None
    """The adapter that is trained; None when all weights are."""
    adapter_seed: int | None
    """The seed with which a fresh adapter is drawn."""


def weights_settings(config: RunConfig) -> WeightsSettings:
    """How the run's policy is loaded."""
    traits = policy_traits(config.policy)
    seed = None if traits.lora is None else derive_seed(config.seed, "adapter")
    return WeightsSettings(
        dtype=traits.dtype, head_dtype=traits.head_dtype, lora=traits.lora, adapter_seed=seed
    )


@dataclass(frozen=True)
class CheckpointParts:
    """Where the weights of a checkpoint are. Without an adapter, the checkpoint is its own base."""

    checkpoint_id: str
    base_id: str
    base_folder: Path
    adapter_folder: Path | None


def checkpoint_parts(inputs: Mapping[str, Artifact]) -> CheckpointParts:
    """The parts of the checkpoint among the inputs of a stage."""
    checkpoint = inputs[CHECKPOINT]
    base = inputs.get(BASE, checkpoint)
    checkpoint_id, base_id = checkpoint.manifest.artifact_id, base.manifest.artifact_id
    adapter = None if checkpoint_id == base_id else checkpoint.path(MODEL)
    return CheckpointParts(checkpoint_id, base_id, base.path(MODEL), adapter)


def stored_parts(store: ArtifactStore, checkpoint_id: str) -> CheckpointParts:
    """The parts of a checkpoint in a store."""
    checkpoint = store.open(checkpoint_id)
    base = checkpoint.manifest.inputs.get(BASE)
    return checkpoint_parts(
        {CHECKPOINT: checkpoint} if base is None else {CHECKPOINT: checkpoint, BASE: store.open(base)}
    )


def load_checkpoint(
    parts: CheckpointParts, weights: WeightsSettings, device: torch.device | None = None
) -> LoadedPolicy:
    """The policy of a checkpoint: with its adapter, or a fresh one where the base is to get one. `device`
    defaults to the first GPU, else the CPU.

    Raises `InputError` when it cannot be read, `ConfigError` when the base has no layers to adapt, or the
    checkpoint's adapter does not match the settings.
    """
    from erl_pipeline.policies.adapters import add_fresh_adapter, read_adapter
    from erl_pipeline.policies.pretrained import compute_head_in_float32, load_policy

    policy = load_policy(parts.base_folder, dtype=weights.dtype, device=device)
    if weights.head_dtype is not None:
        compute_head_in_float32(policy.model)
    if parts.adapter_folder is not None:
        read_adapter(policy.model, parts.adapter_folder, require_lora(parts, weights))
    elif weights.lora is not None:
        assert weights.adapter_seed is not None
        add_fresh_adapter(policy.model, weights.lora, weights.adapter_seed, parts.base_id)
    return policy


def require_lora(parts: CheckpointParts, weights: WeightsSettings) -> LoraConfig:
    """The settings of the adapter of a checkpoint that is one. Raises `ConfigError` where there are none."""
    if weights.lora is None:
        raise ConfigError(
            f"policy.lora: checkpoint {parts.checkpoint_id} is an adapter; without policy.lora no run "
            "can continue from it. `erl-pipeline export` merges it into a model for policy.model"
        )
    return weights.lora


@dataclass(frozen=True)
class StoredPolicy:
    """Where a policy is stored and how it is loaded: all that another process needs to have it."""

    parts: CheckpointParts
    weights: WeightsSettings

    def load(self, device: torch.device | None = None) -> LoadedPolicy:
        """Load it in this process, as `load_checkpoint` does."""
        return load_checkpoint(self.parts, self.weights, device)

    def absolute(self) -> StoredPolicy:
        """The same for processes with another working folder."""
        adapter = self.parts.adapter_folder
        parts = replace(
            self.parts,
            base_folder=self.parts.base_folder.absolute(),
            adapter_folder=None if adapter is None else adapter.absolute(),
        )
        return StoredPolicy(parts, self.weights)


@dataclass(frozen=True)
class _KeptTrainer:
    key: Hashable
    trainer: Any
    sole: bool
    elsewhere: bool


class LoadedPolicies:
    """The policy that a worker loaded or trained last, so that the next stage need not read it again.

    With it, under a key, its trainer is kept: the state of the optimizer is larger than the weights. Both are
    released when another policy is loaded. A trainer that is the `sole` holder of its state, since no file
    has it, stays until it is taken. One whose policy is in other processes stays until another needs them.
    """

    def __init__(self) -> None:
        self._id = ""
        self._policy: LoadedPolicy | None = None
        self._trainers: dict[str, _KeptTrainer] = {}

    def get(self, parts: CheckpointParts, weights: WeightsSettings) -> LoadedPolicy:
        """The policy of a checkpoint, for sampling."""
        if self._policy is None or self._id != parts.checkpoint_id:
            self.forget()
            kept = self._trainers.get(parts.checkpoint_id)
            here = None if kept is None or kept.elsewhere else kept.trainer.trained_policy()
            self._policy = here or load_checkpoint(parts, weights)
            self._id = parts.checkpoint_id
        return self._policy

    def take(self, parts: CheckpointParts, weights: WeightsSettings) -> LoadedPolicy:
        """The policy of a checkpoint, to be changed by the caller; no one else will get this object."""
        policy = self.get(parts, weights)
        self.forget()
        return policy

    def take_trainer(self, checkpoint_id: str, key: Hashable | None) -> Any | None:
        """The trainer of this checkpoint's policy, to continue with; None where it is not kept or has another
        key than this one, if one is given."""
        kept = self._trainers.get(checkpoint_id)
        if kept is None or key not in (None, kept.key):
            return None
        del self._trainers[checkpoint_id]
        self.forget()
        return kept.trainer

    def put(
        self,
        checkpoint_id: str,
        policy: LoadedPolicy | None,
        trainer: tuple[Hashable, Any] | None = None,
        *,
        sole: bool = False,
    ) -> None:
        """Keep the policy with the weights of this checkpoint, None where its trainer has it in other
        processes, and the trainer with its key. `sole`: no file has the state of the trainer's optimizer."""
        self.forget()
        self._policy, self._id = policy, checkpoint_id
        if trainer is not None:
            replaced = self._trainers.get(checkpoint_id)
            self._trainers[checkpoint_id] = _KeptTrainer(*trainer, sole, policy is None)
            if replaced is not None:
                replaced.trainer.close()

    def keeps(self, trainer: Any) -> bool:
        """Whether this trainer is kept."""
        return any(kept.trainer is trainer for kept in self._trainers.values())

    def forget(self) -> None:
        """Release what is kept in this process, but no trainer that is the sole holder of its state."""
        self._policy, self._id = None, ""
        self.forget_trainer()

    def forget_trainer(self) -> None:
        """Release the trainer in this process, unless it is the sole holder of its state, but not the
        policy."""
        self._trainers = {each: kept for each, kept in self._trainers.items() if kept.sole or kept.elsewhere}

    def give_up_processes(self) -> None:
        """Have the trainers in other processes give these up, but none that is the sole holder of its
        state."""
        for each, kept in list(self._trainers.items()):
            if kept.elsewhere and not kept.sole:
                del self._trainers[each]
                kept.trainer.close()


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
            exported = _write(parts, policy, written, adapter_only)
            if output.is_dir():
                output.rmdir()
            written.rename(output)
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error}") from error
    return exported


def _write(parts: CheckpointParts, policy: PluginSettings, folder: Path, adapter_only: bool) -> Exported:
    if parts.adapter_folder is None:
        # Without the modes of a store that may be write-protected: such a folder cannot be moved.
        for path in parts.base_folder.rglob("*"):
            if path.is_file():
                target = folder / path.relative_to(parts.base_folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        return "weights"
    from erl_pipeline.policies.adapters import merge_adapter, write_adapter
    from erl_pipeline.policies.pretrained import save_policy

    traits = policy_traits(policy)
    # The adapter is there: no fresh one is drawn.
    loaded = load_checkpoint(parts, WeightsSettings(dtype=traits.dtype, lora=traits.lora, adapter_seed=None))
    if adapter_only:
        # Outside the store a base is known by the name that it came from.
        write_adapter(loaded.model, folder, base=traits.model)
        return "adapter"
    merge_adapter(loaded.model)
    save_policy(loaded, folder)
    return "merged"
