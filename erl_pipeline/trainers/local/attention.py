"""Attention over a stream of tokens in which responses to one prompt share that prompt.

The tokens of a microbatch are in one row without padding, so that everything but attention sees each token
once. Attention works on *segments*: runs of consecutive tokens, each of which attends to itself and, where it
is a response that shares its prompt, to the prompt's segment. A dense block mask over the row would compute
every pair of tokens; here only pairs within a family are computed. There are three ways:

- `flash`: torch's variable-length flash attention, in two calls. The first is causal within each segment. In
  the second all responses of a family attend to their prompt. Two softmaxes over parts of the keys become one
  by their log-sum-exps, as in blockwise attention (arXiv 2310.01889).
- `flex`: FlexAttention (arXiv 2412.05496), with a mask by blocks of 128 tokens.
- `blocks`: batched matrix products, made for CPUs (`erl_pipeline.trainers.local.block_attention`).

The function that chooses among them is registered with transformers' attention interface under `SEGMENTS`.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention import flex_attention as flex
from transformers import AttentionInterface, PreTrainedModel

from erl_pipeline.trainers.interface import AttentionSetting
from erl_pipeline.trainers.local import block_attention
from storage.errors import ConfigError

SEGMENTS = "segments"

SegmentAttention = Literal["flash", "flex", "blocks"]
"""How attention over segments is computed."""

_TILE = 128  # tokens of a block of FlexAttention's mask
_FLASH_WIDTH = 256  # the widest head of flash attention
_FLASH_CAPABILITY = (8, 0)  # Ampere


@dataclass(frozen=True)
class FlashSegments:
    """Segments as flash attention takes them. `bounds`: `[segments + 1]` int32, where they begin and end in
    the stream; `longest`: the most tokens of one.

    `prompted`: `[queries]` and `prompts`: `[keys]` are the places of the tokens of responses that share a
    prompt, and of those prompts, both family by family. `prompted_bounds`, `prompt_bounds`: `[families + 1]`
    int32, where the families begin and end in them; `longest_prompted` and `longest_prompt` are the most
    tokens of one family. Without families `prompted` is empty.
    """

    bounds: torch.Tensor
    longest: int
    prompted: torch.Tensor
    prompts: torch.Tensor
    prompted_bounds: torch.Tensor
    prompt_bounds: torch.Tensor
    longest_prompted: int
    longest_prompt: int


@dataclass(frozen=True)
class FlexSegments:
    """Segments as FlexAttention takes them."""

    mask: flex.BlockMask


PreparedSegments = block_attention.BlockSegments | FlashSegments | FlexSegments


def choose_attention(setting: AttentionSetting, model: PreTrainedModel) -> SegmentAttention:
    """How attention of this model is computed. `auto` takes, on a GPU, the first that can be had of flash,
    flex and blocks; on a CPU always blocks. A device that only stands for a GPU is taken to have flash
    attention.

    Raises ConfigError where `flash` or `flex` is asked for and cannot be had.
    """
    device = model.device.type
    if setting == "blocks":
        return "blocks"
    if setting == "auto":
        if device == "cpu":
            return "blocks"
        if not (device == "cuda" and _lacks_for_flash()) and not _unfit_for_flash(model):
            return "flash"
        return "blocks" if _lacks_for_flex() else "flex"
    if device in ("cpu", "cuda"):
        require_attention(setting)
    if setting == "flash" and (unfit := _unfit_for_flash(model)):
        raise ConfigError(f"trainer.attention: flash, but {unfit}; choose trainer.attention: auto")
    return setting


def require_attention(setting: AttentionSetting) -> None:
    """Raise `ConfigError` where this machine lacks what the setting asks for."""
    lacking = {"flash": _lacks_for_flash, "flex": _lacks_for_flex}.get(setting, str)()
    if lacking:
        raise ConfigError(
            f"trainer.attention: {setting} cannot be used here: {lacking}. Choose trainer.attention: auto, "
            "which takes the best that this machine has"
        )


def _lacks_for_flash() -> str:
    """What this machine lacks for flash attention; empty if nothing."""
    if not torch.backends.cuda.is_flash_attention_available():
        return f"this build of torch ({torch.__version__}) has no flash attention, which needs CUDA"
    if not torch.cuda.is_available():
        return "this machine has no GPU"
    if torch.cuda.get_device_capability() < _FLASH_CAPABILITY:
        return f"flash attention needs a newer GPU than {torch.cuda.get_device_name()}"
    return ""


def _lacks_for_flex() -> str:
    """The same for FlexAttention."""
    if not torch.cuda.is_available():
        return "FlexAttention has no backward pass without a GPU"
    if not find_spec("triton"):
        return "FlexAttention needs the package triton"
    # Triton builds its driver with one.
    found = os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang")))
    return "" if found else "FlexAttention needs a C compiler, such as gcc"


def _unfit_for_flash(model: PreTrainedModel) -> str:
    """Why flash attention cannot compute this model's attention; empty if it can."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if width > _FLASH_WIDTH or width % 8:
        return f"its heads are {width} wide: flash attention takes multiples of 8 up to {_FLASH_WIDTH}"
    if model.dtype not in (torch.bfloat16, torch.float16):
        return f"flash attention needs policy.dtype: bfloat16, not {str(model.dtype).removeprefix('torch.')}"
    return ""


def prepare_segments(
    segments: block_attention.Segments, attention: SegmentAttention, device: torch.device
) -> PreparedSegments:
    """What attention needs of segments, on a device. Waits for nothing that the device computes."""
    if attention == "flash":
        return _flash_segments(segments, device)
    if attention == "flex":
        return _flex_segments(segments, device)
    return block_attention.block_segments(segments, device)


def segment_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    segments: PreparedSegments,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it.

    Args:
        query: `[1, heads, tokens, dim]`; key, value: `[1, kv_heads, tokens, dim]`.
        segments: they hold each token of the stream once.

    Returns `[1, tokens, heads, dim]`. There is no dropout: what is trained is the policy that sampled.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(segments, block_attention.BlockSegments):
        return block_attention.attend_blocks(query[0], key[0], value[0], segments, scale)[None], None
    if isinstance(segments, FlexSegments):
        attended = _flex_function(query.is_cuda)(
            query, key, value, block_mask=segments.mask, scale=scale, enable_gqa=True
        )
        return attended.transpose(1, 2), None
    merged: Callable[..., torch.Tensor] = _MergedAttention.apply
    by_token = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    return merged(*by_token, segments, scale)[None], None


AttentionInterface.register(SEGMENTS, segment_attention)


@cache
def _flex_function(compiled: bool) -> Callable[..., Any]:
    """FlexAttention, compiled for a GPU; without that it would compute every pair of tokens."""
    function: Callable[..., Any] = flex.flex_attention
    return torch.compile(function, dynamic=True) if compiled else function


def _flash_segments(segments: block_attention.Segments, device: torch.device) -> FlashSegments:
    shared = segments.prompt_lengths > 0
    # The responses to one prompt follow each other.
    starts, first = np.unique(segments.prompt_starts[shared], return_index=True)
    prompts = segments.prompt_lengths[shared][first]
    answers = segments.lengths[shared]
    responses = np.add.reduceat(answers, first) if len(first) else answers

    def bounds(lengths: npt.NDArray[np.int64]) -> torch.Tensor:
        return block_attention.moved(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), device)

    return FlashSegments(
        bounds=bounds(segments.lengths),
        longest=int(segments.lengths.max()),
        prompted=block_attention.moved(_places(segments.starts[shared], answers), device),
        prompts=block_attention.moved(_places(starts, prompts), device),
        prompted_bounds=bounds(responses),
        prompt_bounds=bounds(prompts),
        longest_prompted=int(responses.max(initial=0)),
        longest_prompt=int(prompts.max(initial=0)),
    )


def _places(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places of all tokens of runs, one run after the other."""
    before = np.cumsum(lengths) - lengths
    places: npt.NDArray[np.int64] = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return places


class _MergedAttention(torch.autograd.Function):
    """The two calls of flash attention and their merge.

    Given the output and the log-sum-exp over all keys, flash attention's backward pass over a part of the
    keys gives that part's share of the gradients. The operators are those behind
    `torch.nn.attention.varlen.varlen_attn`, whose own backward pass knows one call only.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        segments: FlashSegments,
        scale: float,
    ) -> torch.Tensor:
        """`query`: `[tokens, heads, dim]`; `key`, `value`: `[tokens, kv_heads, dim]`."""
        # Registers the operators. It takes a tenth of a second, which only a GPU needs.
        import torch.nn.attention.varlen

        bounds, longest = segments.bounds, segments.longest
        attend = torch.ops.torch_attn._varlen_attn
        output: torch.Tensor
        output, sums, state = attend(
            query, key, value, bounds, bounds, longest, longest, True, scale, [-1, 0], True
        )
        if len(segments.prompted):
            places = segments.prompted
            own, own_sums = output.index_select(0, places).float(), sums.index_select(1, places)
            more, more_sums, _ = attend(
                query.index_select(0, places),
                key.index_select(0, segments.prompts),
                value.index_select(0, segments.prompts),
                segments.prompted_bounds,
                segments.prompt_bounds,
                segments.longest_prompted,
                segments.longest_prompt,
                False,
                scale,
                [-1, -1],
                True,
            )
            share = torch.sigmoid(more_sums - own_sums).T[..., None]  # of the prompt in all probability
            output = output.index_copy(0, places, torch.lerp(own, more.float(), share).to(output.dtype))
            sums = sums.index_copy(1, places, torch.logaddexp(own_sums, more_sums))
        ctx.save_for_backward(query, key, value, output, sums, state)
        ctx.segments, ctx.scale = segments, scale
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, output, sums, state = ctx.saved_tensors
        segments: FlashSegments = ctx.segments
        grad, bounds, longest = grad_outputs[0].contiguous(), segments.bounds, segments.longest
        backward = torch.ops.torch_attn._varlen_attn_backward
        grad_query, grad_key, grad_value = backward(
            grad,
            query,
            key,
            value,
            output,
            sums,
            bounds,
            bounds,
            longest,
            longest,
            True,
            state,
            ctx.scale,
            [-1, 0],
        )
        if len(segments.prompted):
            places, prompts = segments.prompted, segments.prompts
            more_query, more_key, more_value = backward(
                grad.index_select(0, places),
                query.index_select(0, places),
                key.index_select(0, prompts),
                value.index_select(0, prompts),
                output.index_select(0, places),
                sums.index_select(1, places),
                segments.prompted_bounds,
                segments.prompt_bounds,
                segments.longest_prompted,
                segments.longest_prompt,
                False,
                state,
                ctx.scale,
                [-1, -1],
            )
            grad_query = _with_more(grad_query, places, more_query)
            grad_key = _with_more(grad_key, prompts, more_key)
            grad_value = _with_more(grad_value, prompts, more_value)
        return grad_query, grad_key, grad_value, None, None


def _with_more(whole: torch.Tensor, places: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor plus others. No place comes twice, so the order of additions changes no bit."""
    summed: torch.Tensor = whole.index_copy(0, places, whole.index_select(0, places) + more)
    return summed


def _flex_segments(segments: block_attention.Segments, device: torch.device) -> FlexSegments:
    tokens = segments.tokens
    numbers = np.arange(len(segments.lengths))
    prompts = np.where(
        segments.prompt_lengths > 0, np.searchsorted(segments.starts, segments.prompt_starts), -1
    )
    own = block_attention.moved(np.repeat(numbers, segments.lengths), device)
    prompt = block_attention.moved(np.repeat(prompts, segments.lengths), device)

    def sees(
        _batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return ((own[query] == own[key]) & (query >= key)) | (prompt[query] == own[key])

    some, all_ = _tiles(segments)
    partial = _listed(some & ~all_, device)
    full = _listed(all_, device)
    return FlexSegments(
        flex.BlockMask.from_kv_blocks(
            *partial, *full, BLOCK_SIZE=_TILE, mask_mod=sees, seq_lengths=(tokens, tokens)
        )
    )


def _tiles(segments: block_attention.Segments) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """In which tiles of 128 queries and 128 keys some pair is seen, and in which all are; both
    `[query tiles, key tiles]`."""
    count = -(-segments.tokens // _TILE)
    some, every = np.zeros((count, count), dtype=np.bool_), np.zeros((count, count), dtype=np.bool_)
    causal = np.tril(np.ones((count, count), dtype=np.bool_))

    def touched(start: int, length: int) -> slice:
        return slice(start // _TILE, -(-(start + length) // _TILE))

    def filled(start: int, length: int) -> slice:
        first = -(-start // _TILE)
        return slice(first, max(first, (start + length) // _TILE))

    for start, length, prompt_start, prompt_length in segments.rows():
        near, inside = touched(start, length), filled(start, length)
        some[near, near] |= causal[near, near]
        every[inside, inside] |= causal[inside, inside] & ~np.eye(count, dtype=np.bool_)[inside, inside]
        if prompt_length:
            some[near, touched(prompt_start, prompt_length)] = True
            every[inside, filled(prompt_start, prompt_length)] = True
    return some, every


def _listed(tiles: npt.NDArray[np.bool_], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """How many key tiles of each query tile are chosen, `[1, 1, query tiles]`, and their numbers before those
    of the others, `[1, 1, query tiles, key tiles]`; int32."""
    order = np.argsort(~tiles, axis=1, kind="stable")
    return (
        block_attention.moved(tiles.sum(axis=1).astype(np.int32)[None, None], device),
        block_attention.moved(order.astype(np.int32)[None, None], device),
    )
