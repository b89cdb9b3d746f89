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
