from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    StableLmConfig,
    StableLmForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from erl_pipeline.trainers.local import block_attention
from erl_pipeline.trainers.local.block_attention import BlockSegments, Segments, block_segments
from erl_pipeline.trainers.local.forward import PolicyForward
from erl_pipeline.trainers.local.preparation import compiled_blocks, packed_attention, ready_for_training
from erl_pipeline.trainers.local.tokens import TokenLoss
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import ConfigError, InputError

TEMPERATURE = 1.3


def one_by_one(model: PreTrainedModel, sequences: Sequence[TrainingSequence]) -> torch.Tensor:
    """Log-probabilities `[trained]` from a plain pass over each sequence separately."""
    logprobs = []
    for row in sequences:
        token_ids = torch.tensor([row.prompt_token_ids + row.response_token_ids])
        log_softmax = (model(token_ids).logits[0] / TEMPERATURE).log_softmax(-1)
        first = len(row.prompt_token_ids) - 1
        logprobs += [
            log_softmax[first + offset, row.response_token_ids[offset]] for offset in row.trained_offsets
        ]
    return torch.stack(logprobs)


def shares_prompts_and_is_right(
    model: PreTrainedModel, sequences: Sequence[TrainingSequence], gradient_checkpointing: bool
) -> bool:
    """Whether the model, whose log-probabilities have to be those of plain passes, shares prompts."""
    expected = one_by_one(model, sequences).detach()
    with ready_for_training(model, gradient_checkpointing) as forward:
        logprobs = forward.logprobs(sequences, torch.full_like(expected, TEMPERATURE), 1000)
        torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
        return forward.shares_prompts


def weighted(weights: torch.Tensor) -> TokenLoss:
    """A loss that is the weighted sum of the log-probabilities."""
    return lambda chunk, _, place: weights[place] @ chunk


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("shares_prompts", [True, False])
@pytest.mark.parametrize("microbatch_tokens", [1000, 20])
def test_packed_passes_equal_passes_one_by_one(
    model: PreTrainedModel,
    sequences: list[TrainingSequence],
    gradient_checkpointing: bool,
    shares_prompts: bool,
    microbatch_tokens: int,
) -> None:
    expected = one_by_one(model, sequences)
    temperatures = torch.full_like(expected, TEMPERATURE)
    weights = torch.randn(len(expected), generator=torch.Generator().manual_seed(1))
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected_gradients = torch.autograd.grad(weights @ expected, parameters)
    before = model.config._attn_implementation

    with ready_for_training(model, gradient_checkpointing) as forward:
        assert forward.shares_prompts
        if not shares_prompts:
            model.set_attn_implementation(before)
            forward = PolicyForward(model, "rows")
        logprobs = forward.logprobs(sequences, temperatures, microbatch_tokens)
        for planned in forward.plan(sequences, microbatch_tokens):
            microbatch = planned.build()
            forward.backward(
                microbatch,
                temperatures[microbatch.tokens],
                weighted(weights[microbatch.tokens]),
                after_backward=lambda: None,
            )

    torch.testing.assert_close(logprobs, expected.detach(), atol=1e-5, rtol=0)
    for name, parameter, wanted in zip(names, parameters, expected_gradients, strict=True):
        assert parameter.grad is not None
        error = float((parameter.grad - wanted).abs().max() / wanted.abs().max())
        assert error < 1e-5, name


def test_gradient_checkpointing_runs_each_block_twice_and_is_switched_off_again(
    model: PreTrainedModel, sequences: list[TrainingSequence]
) -> None:
    calls = []
    blocks = [block for block in model.modules() if isinstance(block, GradientCheckpointingLayer)]
    for block in blocks:
        next(block.children()).register_forward_pre_hook(lambda *_: calls.append(1))
    counts = []
    for gradient_checkpointing in (True, False):
        with ready_for_training(model, gradient_checkpointing) as forward:
            calls.clear()
            (planned,) = forward.plan(sequences, 1000)
            forward.hidden(planned.build()).sum().backward()
            counts.append(len(calls))
    assert counts == [2 * len(blocks), len(blocks)]


def test_gradient_checkpointing_applies_no_dropout(sequences: list[TrainingSequence]) -> None:
    """OPT's blocks apply dropout in their own `forward`, where they are in training mode."""
    config = OPTConfig(
        vocab_size=64,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        dropout=0.5,
        pad_token_id=0,
    )
    model = OPTForCausalLM(config).eval()
    assert shares_prompts_and_is_right(model, sequences, gradient_checkpointing=True)


def test_a_model_whose_blocks_do_not_hand_on_segments_is_trained_in_rows(
    sequences: list[TrainingSequence],
) -> None:
    config = StableLmConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = StableLmForCausalLM(config).eval()
    assert not shares_prompts_and_is_right(model, sequences, gradient_checkpointing=False)


def test_one_microbatch_with_its_masks_is_in_memory_at_a_time(
    model: PreTrainedModel, sequences: list[TrainingSequence], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []
    masks: list[weakref.ref[BlockSegments]] = []

    def counted(segments: Segments, device: torch.device) -> BlockSegments:
        alive.append(sum(mask() is not None for mask in masks))
        made = block_segments(segments, device)
        masks.append(weakref.ref(made))
        return made

    with ready_for_training(model, gradient_checkpointing=False) as forward:
        monkeypatch.setattr(block_attention, "block_segments", counted)
        forward.logprobs(sequences, torch.ones(24), 12)
        weights = torch.ones(24)
        forward.backward_batch(
            sequences, weights, 12, lambda batch: weighted(weights[batch.tokens]), lambda: None
        )
    assert len(alive) >= 6
    assert set(alive) == {0}


def test_what_a_model_takes_is_tried_once(model: PreTrainedModel) -> None:
    calls = []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    for _ in range(2):
        with ready_for_training(model, gradient_checkpointing=False) as forward:
            assert forward.shares_prompts
            assert model.config._attn_implementation == "segments"
    assert len(calls) == 3  # rows, the whole model's logits, and segments


def test_the_model_is_left_as_it_was(model: PreTrainedModel) -> None:
    before = model.config._attn_implementation
    with ready_for_training(model, gradient_checkpointing=True):
        assert model.config._attn_implementation == "segments"
    assert model.config._attn_implementation == before
    assert not any(module.training for module in model.modules())


def test_compiled_blocks_give_the_same_for_any_number_of_tokens(
    model: PreTrainedModel, sequences: list[TrainingSequence]
) -> None:
    """Traced by torch.compile, and computed by torch's own operators: code for the processor takes minutes to
    compile."""
    weights = torch.randn(100, generator=torch.Generator().manual_seed(1))

    def gradients(forward: PolicyForward, rows: list[TrainingSequence]) -> list[torch.Tensor | None]:
        model.zero_grad()
        temperatures = torch.ones(sum(row.trained_tokens for row in rows))
        forward.backward_batch(
            rows, temperatures, 1000, lambda batch: weighted(weights[batch.tokens]), lambda: None
        )
        return [parameter.grad for parameter in model.parameters()]

    with ready_for_training(model, gradient_checkpointing=True) as forward:
        for rows in (sequences, sequences[:3]):
            expected = gradients(forward, rows)
            with compiled_blocks(model, "aot_eager"):
                found = gradients(forward, rows)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


SIZES = {
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def test_windowed_attention_gets_padded_rows(sequences: list[TrainingSequence]) -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)).eval()
    expected = one_by_one(model, sequences).detach()
    with ready_for_training(model, gradient_checkpointing=False) as forward:
        assert not forward.shares_prompts
        logprobs = forward.logprobs(sequences, torch.full_like(expected, TEMPERATURE), 1000)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def test_rows_are_taken_in_silence_only_where_nothing_else_was_asked_for() -> None:
    assert packed_attention("auto", "flash", takes_segments=True) == "flash"
    assert packed_attention("auto", "flash", takes_segments=False) == "rows"
    assert packed_attention("blocks", "blocks", takes_segments=False) == "rows"
    with pytest.raises(ConfigError, match=r"trainer\.attention: flash does not fit this model"):
        packed_attention("flash", "flash", takes_segments=False)


def test_a_model_that_caps_its_logits_is_refused_also_where_they_are_small() -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**SIZES)).eval()
    with (
        pytest.raises(InputError, match="Gemma2ForCausalLM cannot be trained: its logits are capped"),
        ready_for_training(model, gradient_checkpointing=False),
    ):
        pass


def test_a_model_that_scales_its_logits_is_refused() -> None:
    model = CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.5)).eval()
    with (
        pytest.raises(InputError, match="CohereForCausalLM cannot be trained"),
        ready_for_training(model, gradient_checkpointing=False),
    ):
        pass
