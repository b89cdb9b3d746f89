"""The checkpoint that a stage samples from, without the model: an engine in this process loads it, no other
does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erl_pipeline.engines.interface import SampledModel, ServedAdapter, ServedCheckpoint
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.policies.checkpoints import (
    BASE,
    CHECKPOINT,
    CheckpointParts,
    LoadedPolicies,
    WeightsSettings,
    checkpoint_parts,
    instruction_texts,
    require_lora,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from erl_pipeline.engines.probe_file import ModelFacts


@dataclass(frozen=True)
class SampledCheckpoint:
    """What a stage must know of the policy that it samples from; `context_length` is in tokens. `model` is
    what an engine is opened with. `instructions` are shown in first attempts, by type of task."""

    tokenizer: PreTrainedTokenizerBase
    tokenizer_digest: str
    context_length: int
    end_token_ids: frozenset[int]
    model: SampledModel
    instructions: Mapping[str, str] = field(default_factory=dict)


def sampled_checkpoint(call: StageCall[Any], weights: WeightsSettings, name: str) -> SampledCheckpoint:
    """The checkpoint among the inputs of a stage, to be sampled from under this name.

    Raises `InputError` for an artifact without `probe.safetensors`, and the errors of `load_checkpoint` for
    settings that do not match it.
    """
    from erl_pipeline.engines.probe_file import PROBE_FILE, read_facts, read_probe

    parts = checkpoint_parts(call.inputs)
    checkpoint = call.inputs[CHECKPOINT]
    base = call.inputs.get(BASE, checkpoint)
    facts = read_facts(base.path(PROBE_FILE))
    probe_file = checkpoint.path(PROBE_FILE)
    adapter = _adapter(parts, weights, facts)
    end_token_ids = frozenset(facts.end_token_ids)
    return SampledCheckpoint(
        tokenizer=_tokenizer(call, parts, facts.tokenizer_digest),
        tokenizer_digest=facts.tokenizer_digest,
        context_length=facts.context_length,
        end_token_ids=end_token_ids,
        instructions=instruction_texts(checkpoint),
        model=SampledModel(
            name=name,
            checkpoint_id=parts.checkpoint_id,
            load=lambda: call.resources.keep("policies", LoadedPolicies).get(parts, weights),
            served=lambda: ServedCheckpoint(
                checkpoint_id=parts.checkpoint_id,
                base_folder=parts.base_folder,
                head=facts.head,
                probe=read_probe(probe_file),
                end_token_ids=end_token_ids,
                adapter=adapter,
                in_memory=None if adapter is not None else _in_memory(call, parts.checkpoint_id, probe_file),
            ),
        ),
    )


def _in_memory(call: StageCall[Any], checkpoint_id: str, probe_file: Path) -> Path | None:
    from erl_pipeline.engines.weights_in_memory import find_weights

    worker = call.resources.settings
    if not worker.weights_in_memory:
        return None
    return find_weights(worker.store_uri, worker.run, checkpoint_id, probe_file)


def _adapter(parts: CheckpointParts, weights: WeightsSettings, facts: ModelFacts) -> ServedAdapter | None:
    """The adapter of the checkpoint, or the fresh one, which changes nothing, that its base is to get."""
    from erl_pipeline.policies.adapter_names import adapted_layers, last_parts, read_adapted_layers

    if parts.adapter_folder is not None:
        require_lora(parts, weights)
    if weights.lora is None:
        return None
    if parts.adapter_folder is None:
        layers = adapted_layers(facts.linear_layers, weights.lora, facts.model_type)
    else:
        layers = read_adapted_layers(
            parts.adapter_folder, facts.linear_layers, weights.lora, facts.model_type
        )
    return ServedAdapter(parts.adapter_folder, weights.lora.rank, last_parts(layers))


def _tokenizer(call: StageCall[Any], parts: CheckpointParts, digest: str) -> PreTrainedTokenizerBase:
    """The tokenizer, which the worker keeps: training does not change it."""
    from erl_pipeline.policies.tokenizers import load_tokenizer

    return call.resources.keep(f"tokenizer {digest}", lambda: load_tokenizer(parts.base_folder))
