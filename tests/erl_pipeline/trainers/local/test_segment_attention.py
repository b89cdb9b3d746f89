from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from erl_pipeline.trainers.local.packing import pack_segments
from erl_pipeline.trainers.local.segment_attention import AttentionBlock, fused_attention, segment_attention
from erl_pipeline.trainers.sequences import TrainingSequence


@pytest.fixture
def segments(sequences: list[TrainingSequence]) -> tuple[AttentionBlock, ...]:
    (packed,) = pack_segments(sequences, 1000, torch.device("cpu"))
    assert packed.segments is not None
    return packed.segments


def block_mask(segments: tuple[AttentionBlock, ...], tokens: int) -> torch.Tensor:
    """The dense mask `[tokens, tokens]`, true where a query sees a key."""
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for block in segments:
        visible = (block.mask == 0).expand(len(block.queries), -1, -1)
        for segment, query in (~block.padding).nonzero().tolist():
            seen[block.queries[segment, query], block.keys[segment][visible[segment, query]]] = True
    return seen


def test_equals_dense_attention_under_a_block_mask_with_its_gradients(
    segments: tuple[AttentionBlock, ...],
) -> None:
    tokens = sum(int((~block.padding).sum()) for block in segments)
    generator = torch.Generator().manual_seed(0)
    query, key, value, upstream = (
        torch.randn(1, heads, tokens, 8, generator=generator, dtype=torch.float32) for heads in (4, 2, 2, 4)
    )
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]
    expected = scaled_dot_product_attention(
        query,
        key.repeat_interleave(2, dim=1),
        value.repeat_interleave(2, dim=1),
        attn_mask=block_mask(segments, tokens),
        scale=0.3,
    ).transpose(1, 2)
    upstream = upstream.transpose(1, 2)
    expected_gradients = torch.autograd.grad((expected * upstream).sum(), inputs)

    dense, _ = segment_attention(torch.nn.Identity(), query, key, value, None, segments=segments, scaling=0.3)
    fused = fused_attention(query[0], key[0], value[0], segments, 0.3)[None]
    for output in (dense, fused):
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        gradients = torch.autograd.grad((output * upstream).sum(), inputs)
        for actual, wanted in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)
