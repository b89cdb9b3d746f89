"""Language models of a few thousand random weights, of the two architectures that the tests are about; a
tokenizer of seven words, and one that knows every byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from erl_pipeline.policies.tiny.model import build_tokenizer

WORDS = ["<pad>", "<bos>", "<end>", "<user>", "<assistant>", "left", "right"]
TEMPLATE = "<bos>{% for m in messages %} <user> {{ m['content'] }}{% endfor %} <assistant>"


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each of `WORDS`, and a chat template."""
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<end>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, so that any text has tokens, and a chat template."""
    special = ["<pad>", "<end>"]
    tokens = [*special, *sorted(ByteLevel.alphabet())]
    backend = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteDecoder()
    backend.add_special_tokens(special)
    turns = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", pad_token="<pad>", chat_template=turns
    )


def random_llama(
    vocabulary: int,
    *,
    hidden: int = 64,
    intermediate: int = 128,
    layers: int = 2,
    heads: int = 2,
    key_value_heads: int | None = None,
    positions: int = 128,
    **settings: int | None,
) -> PreTrainedModel:
    """Rotary positions and tied embeddings; the same weights at every call. `settings` are LlamaConfig's."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def save_llama(folder: Path, words: Sequence[str], positions: int) -> Path:
    """A Llama that knows the words of a game, as a checkpoint in a folder. Its embeddings are large, so that
    it prefers some words."""
    tokenizer = build_tokenizer(words, positions)
    model = random_llama(
        len(tokenizer),
        positions=positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.no_grad():
        model.get_input_embeddings().weight *= 4
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_byte_llama(folder: Path, positions: int, layers: int = 2) -> Path:
    """A tiny Llama of random weights that knows every byte, as a checkpoint in a folder."""
    tokenizer = byte_tokenizer()
    model = random_llama(
        len(tokenizer),
        positions=positions,
        layers=layers,
        hidden=32,
        intermediate=32,
        eos_token_id=tokenizer.eos_token_id,
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def random_gpt2(
    vocabulary: int,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 2,
    positions: int = 128,
    **settings: float | None,
) -> PreTrainedModel:
    """Learned positions, a separate output head; the same weights at every call. `settings` are
    GPT2Config's."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        n_positions=positions,
        tie_word_embeddings=False,
        **settings,
    )
    return GPT2LMHeadModel(config).eval()


def _small(vocabulary: int) -> dict[str, int]:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return {"vocab_size": vocabulary, "hidden_size": 16, "intermediate_size": 16, **heads, **ids}


def random_qwen3_moe(vocabulary: int) -> PreTrainedModel:
    """A mixture of two experts, whose weights are one tensor in the model; the same at every call."""
    torch.manual_seed(0)
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_small(vocabulary), **experts)).eval()


def random_gemma3(vocabulary: int) -> PreTrainedModel:
    """A model of text and images, whose text part has the vocabulary and tied embeddings; the same weights at
    every call."""
    torch.manual_seed(0)
    places = {"boi_token_index": 3, "eoi_token_index": 4, "image_token_index": 5, "mm_tokens_per_image": 1}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config=_small(vocabulary) | {"max_position_embeddings": 64},
        vision_config=vision | {"image_size": 16, "patch_size": 8},
        **places,
    )
    return AutoModelForCausalLM.from_config(config).eval()
