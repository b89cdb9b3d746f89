from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from erl_pipeline.engines.sampling import draw_tokens, uniform_stream
from storage.errors import EngineError

QUARTER_HALF_QUARTER = torch.log(torch.tensor([[0.25, 0.5, 0.25]]))


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2), (0.999999, 2)]
)
def test_a_uniform_picks_the_token_whose_share_it_falls_into(uniform: float, token: int) -> None:
    drawn, logprobs = draw_tokens(
        QUARTER_HALF_QUARTER, torch.ones(1), torch.tensor([uniform], dtype=torch.float64)
    )

    assert drawn.tolist() == [token]
    assert logprobs.item() == pytest.approx(math.log([0.25, 0.5, 0.25][token]), abs=1e-6)


def test_log_probabilities_are_those_after_temperature() -> None:
    # Temperature 0.5 squares the shares: 1/16, 4/16, 1/16, so 1/6, 4/6, 1/6.
    drawn, logprobs = draw_tokens(
        QUARTER_HALF_QUARTER, torch.tensor([0.5]), torch.tensor([0.5], dtype=torch.float64)
    )

    assert drawn.tolist() == [1]
    assert logprobs.item() == pytest.approx(math.log(4 / 6), abs=1e-6)


def test_temperature_zero_takes_the_most_probable_token_and_its_plain_log_probability() -> None:
    drawn, logprobs = draw_tokens(
        QUARTER_HALF_QUARTER, torch.zeros(1), torch.tensor([0.99], dtype=torch.float64)
    )

    assert drawn.tolist() == [1]
    assert logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])

    for uniform in (0.0, 0.5, 1.0 - 2**-53):
        drawn, _ = draw_tokens(logits, torch.ones(1), torch.tensor([uniform], dtype=torch.float64))
        assert drawn.tolist() == [1]


def test_in_a_large_vocabulary_a_uniform_picks_the_token_whose_share_it_falls_into() -> None:
    # 1,300 tokens of equal probability, in blocks of 512; the last block is not full.
    uniforms = torch.tensor(
        [0.0, 511.5 / 1300, 512.5 / 1300, 1299.5 / 1300, 1.0 - 2**-53], dtype=torch.float64
    )
    drawn, logprobs = draw_tokens(torch.zeros(5, 1300), torch.ones(5), uniforms)

    assert drawn.tolist() == [0, 511, 512, 1299, 1299]
    assert logprobs.tolist() == pytest.approx([-math.log(1300)] * 5, abs=1e-6)


def test_a_stream_depends_on_its_seed_alone_and_its_beginning_not_on_its_length() -> None:
    assert uniform_stream(7, 3).tolist() == uniform_stream(7, 10)[:3].tolist()
    assert uniform_stream(7, 3).tolist() != uniform_stream(8, 3).tolist()


def test_logits_that_are_no_numbers_are_an_error() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    with pytest.raises(EngineError, match="logits are not finite"):
        draw_tokens(logits, torch.ones(2), torch.zeros(2, dtype=torch.float64))


class _OnADevice(TorchDispatchMode):
    """Answers for tensors of the device `meta`, which have no values: what is read is true, and what moves to
    host memory is ones. Refuses what a GPU refuses in torch's deterministic mode."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            return True
        if func is torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "cpu":
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        if func is torch.ops.aten.cumsum.default and args[0].is_floating_point() and args[0].is_meta:
            raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")
        return func(*args, **kwargs)


def test_tokens_are_drawn_on_a_gpu_that_has_to_give_equal_bytes() -> None:
    logits, temperatures = torch.empty(3, 1300, device="meta"), torch.ones(3, device="meta")
    uniforms = torch.zeros(3, dtype=torch.float64, device="meta")
    with _OnADevice():  # type: ignore[no-untyped-call]
        drawn, logprobs = draw_tokens(logits, temperatures, uniforms)
    assert drawn.is_meta
    assert logprobs.is_meta
