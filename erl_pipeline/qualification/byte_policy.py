"""A policy that learns nothing: random weights, and a tokenizer with a token for each byte, so that any text
has tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from erl_pipeline.policies.pretrained import LoadedPolicy

CONTEXT = 4096
"""Tokens."""

_SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, with tools and calls in Hermes' form."""


def byte_policy() -> LoadedPolicy:
    """A Llama of a few thousand weights, the same at every call."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from erl_pipeline.policies.pretrained import LoadedPolicy, tokenizer_digest

    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(_SPECIAL) + 256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    ends = frozenset({int(tokenizer.eos_token_id)})
    return LoadedPolicy(model, tokenizer, tokenizer_digest(tokenizer), CONTEXT, ends)


def byte_ids(text: str) -> list[int]:
    """A text as tokens; half of a character becomes three bytes that are no text."""
    return [len(_SPECIAL) + byte for byte in text.encode("utf-8", "surrogatepass")]


def _tokenizer() -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *_alphabet()])}
    backend = Tokenizer(BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteDecoder()
    backend.add_special_tokens(list(_SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[2],
        chat_template=_TEMPLATE,
    )


def _alphabet() -> list[str]:
    """The character that a byte-level vocabulary has for each byte, as GPT-2 made it."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (chr(256 + number) for number in range(256))
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]
