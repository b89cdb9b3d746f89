"""Public configurations of models whose sizes are known, as config.json files without weights."""

from __future__ import annotations

from pathlib import Path

from transformers import GPT2Config, LlamaConfig, Qwen3Config

SMOLLM2_135M = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
QWEN3_4B = Qwen3Config(
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=262144,
    tie_word_embeddings=True,
)
GPT2 = GPT2Config()


def write(config: LlamaConfig | Qwen3Config | GPT2Config, folder: Path) -> str:
    """The folder of a model of this configuration."""
    config.save_pretrained(folder)
    return str(folder)
