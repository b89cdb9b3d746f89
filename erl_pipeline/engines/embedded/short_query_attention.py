"""Attention of a few new tokens per row over a long cache, for sampling on a CPU.

The built-in kernel first repeats keys and values for all query heads that share them. It also divides its
work by queries, and a decoding step has only one per row. Batched matrix products, with the query heads of
one key-value head stacked, are about five times as fast in this case.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SHORT_QUERIES = "short_queries"
_BUILT_IN = "sdpa"
_MOST_QUERIES = 16  # new tokens per row; with more, the built-in kernel is as fast


def short_query_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; the built-in kernel where it is faster or `settings` need it.

    Args:
        query: `[rows, heads, queries, dim]`; key, value: `[rows, kv_heads, slots, dim]`.
        attention_mask: `[rows, 1, queries, slots]`, true where a query sees a slot; None: one query sees all.

    Returns `[rows, queries, heads, dim]`.
    """
    queries = query.shape[2]
    # Without a mask, several queries attend causally to each other, which only the built-in kernel does.
    known_mask = queries == 1 if attention_mask is None else attention_mask.dtype == torch.bool
    plain = known_mask and settings.get("position_bias") is None and key.shape[-1] == value.shape[-1]
    if query.device.type != "cpu" or queries > _MOST_QUERIES or not plain:
        attended: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **settings
        )
        return attended
    scaling = settings.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale).transpose(1, 2).contiguous(), None


AttentionInterface.register(SHORT_QUERIES, short_query_attention)
AttentionMaskInterface.register(SHORT_QUERIES, sdpa_mask)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention as `[rows, heads, queries, dim]`. Scores are fp32 throughout, as in fused kernels.

    A query that sees no slot belongs to no token. It gets the mean of all slots: the result must be finite,
    since it is multiplied by 0 later.
    """
    rows, heads, queries, dim = query.shape
    kv_heads = key.shape[1]
    stacked = query.reshape(rows * kv_heads, -1, dim).float() * scale
    scores = stacked @ key.reshape(rows * kv_heads, -1, dim).float().mT
    if visible is not None:
        by_head = scores.view(rows, heads, queries, -1)
        by_head.masked_fill_(~visible, torch.finfo(torch.float32).min)
    probabilities = scores.softmax(dim=-1).to(value.dtype)
    return (probabilities @ value.reshape(rows * kv_heads, -1, dim)).view(rows, heads, queries, dim)


@contextmanager
def fast_decoding(model: PreTrainedModel) -> Iterator[None]:
    """Within the block, a model with built-in attention on a CPU uses `short_query_attention`."""
    switched = model.device.type == "cpu" and model.config._attn_implementation == _BUILT_IN
    if switched:
        model.set_attn_implementation(SHORT_QUERIES)
    try:
        yield
    finally:
        if switched:
            model.set_attn_implementation(_BUILT_IN)
