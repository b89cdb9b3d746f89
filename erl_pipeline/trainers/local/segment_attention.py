"""Attention over a stream of tokens in which responses to one prompt share that prompt.

The tokens of a microbatch are in one row without padding, so that everything but attention sees each token
once. Attention works on *segments*: runs of consecutive tokens, each of which attends to itself and, where it
is a response that shares its prompt, to the prompt's segment. A dense block mask over the row would compute
every pair of tokens; here only pairs within a family are computed.

The function is registered with transformers' attention interface under `SEGMENTS`. On the CPU it is written
with batched matrix products, about four times as fast there as the built-in kernels are with a block mask,
and keeps only queries, keys and values for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

SEGMENTS = "segments"
_LARGEST_DENSE_SEGMENT = 2**22  # pairs; above it the scores of one segment no longer fit


@dataclass(frozen=True)
class AttentionBlock:
    """Segments of similar length that are attended in one batch of products.

    `queries`: `[segments, query]` and `keys`: `[segments, key]` are indices of tokens in the stream.
    `padding`: `[segments, query]`, true where a query is padding. `mask`: `[segments or 1, query, key]` fp32,
    0 where the query sees the key and -inf elsewhere. `real`: the places in the flattened `queries` of those
    that are no padding.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    padding: torch.Tensor
    mask: torch.Tensor
    real: torch.Tensor


def segment_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    segments: tuple[AttentionBlock, ...],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it.

    Args:
        query: `[1, heads, tokens, dim]`; key, value: `[1, kv_heads, tokens, dim]`.
        segments: blocks that hold each token of the stream once as a query.

    Returns `[1, tokens, heads, dim]`. There is no dropout: what is trained is the policy that sampled.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    longest = max(block.queries.shape[1] * block.keys.shape[1] for block in segments)
    if query.device.type != "cpu" or longest > _LARGEST_DENSE_SEGMENT:
        return fused_attention(query[0], key[0], value[0], segments, scale)[None], None
    dense_attention: Callable[..., torch.Tensor] = _DenseAttention.apply
    return dense_attention(query[0], key[0], value[0], segments, scale)[None], None


AttentionInterface.register(SEGMENTS, segment_attention)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: tuple[AttentionBlock, ...],
    scale: float,
) -> torch.Tensor:
    """The same with the built-in kernels: less memory for long segments, and fast on a GPU.

    Args:
        query: `[heads, tokens, dim]`; key, value: `[kv_heads, tokens, dim]`.

    Returns `[tokens, heads, dim]`.
    """
    group = query.shape[0] // key.shape[0]
    attended, places = [], []
    for block in segments:
        output = scaled_dot_product_attention(
            query[:, block.queries].transpose(0, 1),  # [segments, heads, query, dim]
            key[:, block.keys].transpose(0, 1).repeat_interleave(group, dim=1),
            value[:, block.keys].transpose(0, 1).repeat_interleave(group, dim=1),
            attn_mask=block.mask[:, None].to(query.dtype),
            scale=scale,
        )
        # Chosen by places, not by a mask: that would wait for the device in every layer.
        attended.append(output.transpose(1, 2).flatten(0, 1).index_select(0, block.real))
        places.append(block.queries.flatten().index_select(0, block.real))
    return torch.cat(attended)[torch.cat(places).argsort()]


class _DenseAttention(torch.autograd.Function):
    """Batched matrix products with the probabilities computed again in the backward pass.

    The query heads of one key-value head are stacked, so keys are never repeated. Scores are fp32
    throughout, as in fused kernels: rounding them to bf16 would move probabilities by percents.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        segments: tuple[AttentionBlock, ...],
        scale: float,
    ) -> torch.Tensor:
        heads, tokens, dim = query.shape
        output = query.new_empty(tokens * heads + 1, dim)  # the last row takes what padding yields
        for block in segments:
            q, k, v = _gather(query, key, value, block)
            attended = _probabilities(q, k, block, scale).to(v.dtype) @ v
            output.index_copy_(0, _token_rows(block, heads, key.shape[0], tokens), attended.reshape(-1, dim))
        ctx.save_for_backward(query, key, value)
        ctx.segments, ctx.scale = segments, scale
        return output[:-1].view(tokens, heads, dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        heads, tokens, dim = query.shape
        grad_rows = torch.cat([grad_outputs[0].reshape(-1, dim), query.new_zeros(1, dim)])
        grad_query = query.new_empty(query.shape)
        # A prompt's gradient is the sum over all responses that share it: kept in fp32 until it is complete.
        grad_key = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        grad_value = torch.zeros_like(grad_key)
        for block in ctx.segments:
            q, k, v = _gather(query, key, value, block)
            probabilities = _probabilities(
                q, k, block, ctx.scale
            )  # [kv_heads * segments, group * query, key]
            rows = _token_rows(block, heads, key.shape[0], tokens)
            grad = grad_rows.index_select(0, rows).view(q.shape)
            key_rows = _head_rows(block.keys, key.shape[0], tokens)
            low = probabilities.to(v.dtype)
            grad_value.view(-1, dim).index_add_(0, key_rows, (low.mT @ grad).float().reshape(-1, dim))
            grad_scores = (grad @ v.mT).float()
            grad_scores -= (grad_scores * probabilities).sum(dim=-1, keepdim=True)
            grad_scores = grad_scores.mul_(probabilities).mul_(ctx.scale).to(q.dtype)
            grad_key.view(-1, dim).index_add_(0, key_rows, (grad_scores.mT @ q).float().reshape(-1, dim))
            _scatter_queries(grad_query, grad_scores @ k, block, key.shape[0])
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _gather(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: AttentionBlock
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries `[kv_heads * segments, group * query, dim]`; keys, values `[kv_heads * segments, key, dim]`."""
    (heads, tokens, dim), kv_heads = query.shape, key.shape[0]
    segments, width = block.queries.shape
    q = query.reshape(-1, dim).index_select(0, _query_rows(block, heads, kv_heads, tokens))
    key_rows = _head_rows(block.keys, kv_heads, tokens)
    k = key.reshape(-1, dim).index_select(0, key_rows)
    v = value.reshape(-1, dim).index_select(0, key_rows)
    batch = kv_heads * segments
    return q.view(batch, heads // kv_heads * width, dim), k.view(batch, -1, dim), v.view(batch, -1, dim)


def _probabilities(q: torch.Tensor, k: torch.Tensor, block: AttentionBlock, scale: float) -> torch.Tensor:
    """Attention probabilities, fp32 `[kv_heads * segments, group * query, key]`."""
    segments, width = block.queries.shape
    scores = (q.float() * scale) @ k.float().mT
    by_head = scores.view(-1, segments, q.shape[1] // width, width, k.shape[1])
    by_head += block.mask[:, None]
    return scores.softmax(dim=-1)


def _head_rows(places: torch.Tensor, heads: int, tokens: int) -> torch.Tensor:
    """Rows of `[heads * tokens, dim]` in the order head, segment, place."""
    offsets = torch.arange(heads, device=places.device) * tokens
    return (offsets[:, None, None] + places).reshape(-1)


def _query_rows(block: AttentionBlock, heads: int, kv_heads: int, tokens: int) -> torch.Tensor:
    """Rows of `[heads * tokens, dim]` in the order key-value head, segment, head of its group, query."""
    offsets = torch.arange(heads, device=block.queries.device).view(kv_heads, 1, -1, 1) * tokens
    return (offsets + block.queries[:, None, :]).reshape(-1)


def _token_rows(block: AttentionBlock, heads: int, kv_heads: int, tokens: int) -> torch.Tensor:
    """Rows of `[tokens * heads + 1, dim]` in the same order; padding points to the last row."""
    offsets = torch.arange(heads, device=block.queries.device).view(kv_heads, 1, -1, 1)
    rows = offsets + block.queries[:, None, :] * heads
    return rows.masked_fill(block.padding[:, None, :], tokens * heads).reshape(-1)


def _scatter_queries(target: torch.Tensor, rows: torch.Tensor, block: AttentionBlock, kv_heads: int) -> None:
    """Write `[kv_heads * segments, group * query, dim]` to its queries' places in `[heads, tokens, dim]`."""
    heads, tokens, dim = target.shape
    real = ~block.padding[:, None, :].expand(-1, heads // kv_heads, -1)  # [segments, group, query]
    kept = real.expand(kv_heads, *real.shape).reshape(-1)
    places = _query_rows(block, heads, kv_heads, tokens)[kept]
    target.view(-1, dim).index_copy_(0, places, rows.reshape(-1, dim)[kept])
