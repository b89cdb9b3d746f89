"""Small random models of two architectures, and sequences to train them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.attention.varlen
from transformers import PreTrainedModel

from erl_pipeline.trainers.sequences import TrainingSequence
from tests.random_models import random_gpt2, random_llama

VOCABULARY = 31


def gpt2() -> PreTrainedModel:
    """Learned positions, a separate output head, and dropout that training must not use."""
    return random_gpt2(VOCABULARY, hidden=32, positions=64, resid_pdrop=0.5, bos_token_id=1, eos_token_id=2)


def llama() -> PreTrainedModel:
    """Rotary positions, grouped key-value heads, tied embeddings."""
    return random_llama(VOCABULARY, hidden=32, intermediate=48, heads=4, key_value_heads=2, positions=64)


@pytest.fixture(params=[gpt2, llama])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    model: PreTrainedModel = request.param()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # attention that is far from uniform shows masks that are wrong
    return model


@pytest.fixture
def make_model() -> Callable[[], PreTrainedModel]:
    """The same random Llama at every call."""
    return llama


@pytest.fixture
def sequences() -> list[TrainingSequence]:
    """Two prompts with several responses, one of a single token, and two prompts of their own.

    Zeros in a mask are environment tokens; some responses end on them.
    """
    rows = [
        ((3, 9, 4, 1, 5), (7, 8, 9), (1, 1, 1), 1.0),
        ((3, 9, 4, 1, 5), (2,), (1,), -0.5),
        ((3, 9, 4, 1, 5), (6, 5, 3, 5, 8, 9), (1, 0, 0, 1, 1, 0), 0.3),
        ((11, 12), (13, 14, 15, 16), (0, 1, 1, 0), -1.0),
        ((11, 12), (17, 18, 19), (1, 1, 1), 0.5),
        ((20, 21, 22, 23, 24, 25, 26, 27), (28, 29, 30), (1, 1, 1), 2.0),
        ((5, 4), (10, 11, 12, 13, 14, 15, 16, 17, 18), (1,) * 9, -0.7),
    ]
    return [
        TrainingSequence(
            trajectory_id=f"trajectory-{index}",
            role="first_attempt",
            prompt_token_ids=prompt,
            response_token_ids=response,
            response_mask=mask,
            behaviour_logprobs=tuple(-3.0 * bit for bit in mask),
            advantage=advantage,
        )
        for index, (prompt, response, mask, advantage) in enumerate(rows)
    ]


@pytest.fixture(scope="session")
def flash_on_the_cpu() -> None:
    """Torch's operators of flash attention get a CPU implementation: dense products, sequence by sequence."""
    torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", _varlen_reference)
    torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu", _varlen_backward_reference)


def _varlen_pairs(
    query: torch.Tensor, key: torch.Tensor, bounds_q: torch.Tensor, bounds_k: torch.Tensor, causal: bool
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Queries and keys of each sequence, and which are seen; causal masks are aligned at the last token, as
    flash attention's are."""
    for number in range(len(bounds_q) - 1):
        queries = slice(int(bounds_q[number]), int(bounds_q[number + 1]))
        keys = slice(int(bounds_k[number]), int(bounds_k[number + 1]))
        rows, columns = queries.stop - queries.start, keys.stop - keys.start
        seen = torch.ones(rows, columns, dtype=torch.bool)
        yield queries, keys, seen.tril(columns - rows) if causal else seen


def _varlen_scores(
    query: torch.Tensor, key: torch.Tensor, seen: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """`[heads, queries, keys]`, with as many key heads as query heads."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return (torch.einsum("qhd,khd->hqk", query, key) * factor).masked_fill(~seen, -torch.inf)


def _varlen_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    assert cu_seq_k is not None
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    output, sums = torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0])
    for queries, keys, seen in _varlen_pairs(query, key, cu_seq_q, cu_seq_k, is_causal):
        assert len(seen) <= max_q
        assert seen.shape[1] <= max_k
        scores = _varlen_scores(query[queries], key[keys], seen, scale)
        output[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[keys])
        sums[:, queries] = scores.logsumexp(-1)
    return output, sums, torch.zeros(2, dtype=torch.uint64)


def _varlen_backward_reference(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: torch.Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As flash attention computes it: probabilities from the log-sum-exps that it is given, and
    dS = P * (dP - rowsum(dO * O)) (arXiv 2205.14135, algorithm 4)."""
    heads, group = key.shape[1], query.shape[1] // key.shape[1]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    wide_key, wide_value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    grad_query, grad_key = torch.zeros_like(query), torch.zeros_like(wide_key)
    grad_value = torch.zeros_like(wide_value)
    for queries, keys, seen in _varlen_pairs(query, key, cu_seq_q, cu_seq_k, is_causal):
        scores = _varlen_scores(query[queries], wide_key[keys], seen, scale)
        probabilities = (scores - lse[:, queries, None]).exp()
        grad_value[keys] += torch.einsum("hqk,qhd->khd", probabilities, grad_out[queries])
        grad_probabilities = torch.einsum("qhd,khd->hqk", grad_out[queries], wide_value[keys])
        shares = (grad_out[queries] * out[queries]).sum(-1).T[..., None]
        grad_scores = probabilities * (grad_probabilities - shares) * factor
        grad_query[queries] += torch.einsum("hqk,khd->qhd", grad_scores, wide_key[keys])
        grad_key[keys] += torch.einsum("hqk,qhd->khd", grad_scores, query[queries])

    def by_key_head(grad: torch.Tensor) -> torch.Tensor:
        return grad.view(len(grad), heads, group, -1).sum(2)

    return grad_query, by_key_head(grad_key), by_key_head(grad_value)
