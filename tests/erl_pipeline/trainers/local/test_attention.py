"""Each way to compute attention over segments against dense attention under a mask, with its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.attention.varlen import AuxRequest, varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from erl_pipeline.trainers.interface import AttentionSetting
from erl_pipeline.trainers.local import TRAINER, LocalTrainerConfig
from erl_pipeline.trainers.local.attention import (
    FlexSegments,
    PreparedSegments,
    SegmentAttention,
    choose_attention,
    prepare_segments,
    require_attention,
    segment_attention,
)
from erl_pipeline.trainers.local.block_attention import (
    BlockSegments,
    Segment,
    Segments,
    attend_blocks,
    fused_attention,
)
from storage.errors import ConfigError
from tests.erl_pipeline.trainers.local.packed import CPU

SMALL = [
    Segment(0, 5),
    Segment(5, 4, 0, 5),
    Segment(9, 2, 0, 5),
    Segment(11, 7),
    Segment(18, 1),
    Segment(19, 2),
    Segment(21, 1, 19, 2),
]
"""A prompt of five with two responses, two sequences of their own, a prompt of two with one response."""
LARGE = [Segment(0, 300), Segment(300, 200, 0, 300), Segment(500, 30, 0, 300), Segment(530, 140)]
"""The same over several tiles of FlexAttention's mask; the last tile is not full."""
HEADS, KEY_VALUE_HEADS, DIM, SCALE = 4, 2, 8, 0.3


def visible(segments: list[Segment]) -> torch.Tensor:
    """The dense mask `[tokens, tokens]`, true where a query sees a key."""
    tokens = sum(segment.length for segment in segments)
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for start, length, prompt, prompt_length in segments:
        seen[start : start + length, start : start + length] = torch.ones(length, length).tril().bool()
        seen[start : start + length, prompt : prompt + prompt_length] = True
    return seen


def random_inputs(segments: list[Segment]) -> list[torch.Tensor]:
    """Queries, keys, values, and a gradient of the output; `[1, heads, tokens, dim]`."""
    tokens = sum(segment.length for segment in segments)
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, tokens, DIM, generator=generator, dtype=torch.float32)
        for heads in (HEADS, KEY_VALUE_HEADS, KEY_VALUE_HEADS, HEADS)
    ]


def with_gradients(segments: list[Segment], attend: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """What `attend` gives of random queries, keys and values, `[tokens, heads, dim]`, and the gradients."""
    *given, upstream = random_inputs(segments)
    inputs = [tensor.requires_grad_() for tensor in given]
    output = attend(*inputs, SCALE)
    gradients = torch.autograd.grad((output * upstream[0].transpose(0, 1)).sum(), inputs)
    return [output.detach(), *gradients]


def dense(segments: list[Segment]) -> list[torch.Tensor]:
    return with_gradients(
        segments,
        lambda query, key, value, scale: scaled_dot_product_attention(
            query, key, value, attn_mask=visible(segments), scale=scale, enable_gqa=True
        )[0].transpose(0, 1),
    )


def through(prepared: PreparedSegments) -> Callable[..., torch.Tensor]:
    return lambda query, key, value, scale: segment_attention(
        torch.nn.Identity(), query, key, value, None, segments=prepared, scaling=scale
    )[0][0]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["blocks", "flash"])
@pytest.mark.parametrize("segments", [SMALL, LARGE, [Segment(0, 6)]])
def test_equals_dense_attention(
    attention: SegmentAttention, segments: list[Segment], flash_on_the_cpu: None
) -> None:
    prepared = prepare_segments(Segments.of(segments), attention, CPU)
    assert_equal(with_gradients(segments, through(prepared)), dense(segments))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("segments", [SMALL, LARGE])
def test_flex_equals_dense_attention(segments: list[Segment]) -> None:
    """Without gradients: torch has no backward pass of FlexAttention on a CPU."""
    attend = through(prepare_segments(Segments.of(segments), "flex", CPU))
    with torch.no_grad():
        found = attend(*random_inputs(segments)[:3], SCALE)
    assert_equal([found], dense(segments)[:1])


@pytest.mark.parametrize("segments", [SMALL, LARGE])
def test_blocks_with_built_in_kernels_equal_dense_attention(segments: list[Segment]) -> None:
    prepared = prepare_segments(Segments.of(segments), "blocks", CPU)
    assert isinstance(prepared, BlockSegments)

    def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        return fused_attention(query[0], key[0], value[0], prepared, scale)

    assert_equal(with_gradients(segments, fused), dense(segments))


def test_one_segment_too_long_for_dense_products_goes_to_built_in_kernels() -> None:
    """2,100 tokens have 4.4 million pairs; the mask of such a segment has one row for all segments."""
    prepared = prepare_segments(Segments.of([Segment(0, 2100)]), "blocks", CPU)
    assert isinstance(prepared, BlockSegments)
    query, key, value = (torch.ones(heads, 2100, DIM) for heads in (2, 1, 1))
    attended = attend_blocks(query, key, torch.cumsum(value, dim=1), prepared, SCALE)
    # All keys are equal: token t gets the mean of 1 .. t + 1.
    torch.testing.assert_close(attended[:, 0, 0], 1 + torch.arange(2100) / 2)


def test_tiles_of_the_mask_are_those_in_which_a_pair_is_seen() -> None:
    """By hand: 670 tokens are six tiles of 128. The prompt, 0 to 299, fills the tiles 0 and 1. The tile of
    queries 3 (384 to 511) has the end of the first response and the begin of the second."""
    prepared = prepare_segments(Segments.of(LARGE), "flex", CPU)
    assert isinstance(prepared, FlexSegments)
    mask = prepared.mask

    def tiles(numbers: torch.Tensor, places: torch.Tensor) -> list[list[int]]:
        return [
            sorted(row[:count].tolist())
            for row, count in zip(places[0, 0], numbers[0, 0].tolist(), strict=True)
        ]

    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    assert tiles(mask.full_kv_num_blocks, mask.full_kv_indices) == [[], [0], [], [], [], []]
    assert tiles(mask.kv_num_blocks, mask.kv_indices) == [
        [0],
        [1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [4, 5],
    ]
    seen = visible(LARGE)
    assert mask.mask_mod is not None
    place = torch.arange(670)
    zero = torch.zeros((), dtype=torch.long)
    assert torch.equal(mask.mask_mod(zero, zero, place[:, None], place[None, :]), seen)


def test_a_tile_within_one_response_sees_all_of_a_tile_within_its_prompt() -> None:
    segments = [Segment(0, 256), Segment(256, 256, 0, 256), Segment(512, 100, 0, 256)]
    prepared = prepare_segments(Segments.of(segments), "flex", CPU)
    assert isinstance(prepared, FlexSegments)
    assert prepared.mask.full_kv_num_blocks is not None
    assert prepared.mask.full_kv_num_blocks[0, 0].tolist() == [0, 1, 2, 3, 0]
    assert prepared.mask.kv_num_blocks[0, 0].tolist() == [1, 1, 1, 1, 3]


def test_two_calls_of_flash_attention_get_these_bounds() -> None:
    prepared = prepare_segments(Segments.of(SMALL), "flash", CPU)
    found = {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in vars(prepared).items()
    }
    assert found == {
        "bounds": [0, 5, 9, 11, 18, 19, 21, 22],
        "longest": 7,
        "prompted": [5, 6, 7, 8, 9, 10, 21],
        "prompts": [0, 1, 2, 3, 4, 19, 20],
        "prompted_bounds": [0, 6, 7],
        "prompt_bounds": [0, 5, 7],
        "longest_prompted": 6,
        "longest_prompt": 5,
    }


def test_torchs_operators_take_what_they_are_given() -> None:
    """They are behind a public function, whose own backward pass knows one call only. This fails where torch
    changes their arguments."""

    def arguments(name: str) -> list[str]:
        schema = getattr(torch.ops.torch_attn, name).default._schema
        return [argument.name for argument in schema.arguments]

    both = ["query", "key", "value"]
    bounds = ["cu_seq_q", "cu_seq_k", "max_q", "max_k", "is_causal"]
    assert arguments("_varlen_attn")[:11] == [*both, *bounds, "scale", "window_size", "enable_gqa"]
    assert arguments("_varlen_attn_backward") == [
        "grad_out",
        *both,
        "out",
        "lse",
        *bounds,
        "rng_state",
        "scale",
        "window_size",
    ]


def test_the_public_function_of_flash_attention_agrees_with_the_reference(flash_on_the_cpu: None) -> None:
    """Its log-sum-exps are `[heads, tokens]`: of two equal keys with products 0, log 2."""
    zeros = torch.zeros(2, 3, DIM)
    bounds = torch.tensor([0, 2], dtype=torch.int32)
    output, sums = varlen_attn(
        zeros, zeros, zeros, bounds, bounds, 2, 2, return_aux=AuxRequest(lse=True), window_size=(-1, 0)
    )
    assert output.shape == (2, 3, DIM)
    torch.testing.assert_close(sums, torch.tensor([0.0, math.log(2)]).expand(3, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_flash_and_flex_are_refused_and_auto_takes_blocks(model: PreTrainedModel) -> None:
    asked: tuple[AttentionSetting, ...] = ("flash", "flex")
    for setting in asked:
        refused = rf"trainer\.attention: {setting} cannot be used here: .*Choose trainer\.attention: auto"
        with pytest.raises(ConfigError, match=refused):
            require_attention(setting)
        with pytest.raises(ConfigError, match=refused):
            choose_attention(setting, model)
        with pytest.raises(ConfigError, match=refused):
            TRAINER.require_here(LocalTrainerConfig(attention=setting))
    always: tuple[AttentionSetting, ...] = ("auto", "blocks")
    for setting in always:
        require_attention(setting)
        assert choose_attention(setting, model) == "blocks"
