"""Models that transformers loads, but that cannot be a policy here; known from their config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from storage.errors import InputError


def refuse_quantized(config: PretrainedConfig, checkpoint: str | Path) -> None:
    """Raise `InputError` for quantized weights: transformers may dequantize them as it loads them, and still
    writes that they are quantized when it saves them."""
    for part in (config, config.get_text_config()):
        quantized: Any = getattr(part, "quantization_config", None)
        if quantized:
            named = quantized if isinstance(quantized, dict) else quantized.to_dict()
            raise InputError(
                f"the weights of {checkpoint} are quantized ({named.get('quant_method') or 'unnamed'}); they "
                "cannot be trained or saved here. Choose the model with weights in bf16, or load it with "
                "transformers, dequantize it and save it"
            )


def refuse_changing_positions(config: PretrainedConfig, checkpoint: str | Path) -> None:
    """Raise `InputError` for LongRoPE beyond the context of the pretraining: its positions depend on the
    longest sequence of a forward pass, so log-probabilities would depend on what else is in it."""
    text = config.get_text_config()
    rope: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    for each in (rope, *rope.values()):  # One for all layers, or one for each type of layer.
        if not isinstance(each, dict) or each.get("rope_type") != "longrope":
            continue
        original = each.get("original_max_position_embeddings", 0)
        if text.max_position_embeddings > original:
            raise InputError(
                f"{checkpoint} has rotary positions of the type longrope, which change for a whole forward "
                f"pass when one of its sequences is longer than {original} tokens: sampler and trainer would "
                "compute different log-probabilities. Choose another policy.model"
            )
