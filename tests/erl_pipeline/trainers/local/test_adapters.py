"""Training an adapter: which weights get a gradient, its value, and what the optimizer keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import OptimizerConfig, UpdateConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.adapters import add_fresh_adapter, merge_adapter
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.preparation import ready_for_training
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.sequences import TrainingSequence

LORA = LoraConfig(rank=2, alpha=6)  # changes are scaled by 3
SCALE = 3.0


@pytest.fixture
def adapted(model: PreTrainedModel) -> PreTrainedModel:
    """Each architecture with an adapter, none of whose matrices is 0."""
    add_fresh_adapter(model, LORA, seed=0, base="base")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


def logprob_gradients(
    model: PreTrainedModel, sequences: Sequence[TrainingSequence]
) -> dict[str, torch.Tensor]:
    """Gradients of the sum of all trained tokens' log-probabilities, by the path that updates take."""
    with ready_for_training(model, gradient_checkpointing=False) as forward:
        assert forward.shares_prompts
        count = sum(len(row.trained_offsets) for row in sequences)
        forward.backward_batch(
            sequences,
            torch.ones(count),
            microbatch_tokens=1000,
            loss_of=lambda _: lambda logprobs, entropies, place: logprobs.sum(),
            after_backward=lambda: None,
        )
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def test_gradients_are_those_of_the_whole_matrix_seen_through_the_adapter(
    adapted: PreTrainedModel, sequences: list[TrainingSequence]
) -> None:
    """For `W + s B A` with gradient G they are `s G A^T` for B and `s B^T G` for A. GPT-2 stores W
    transposed."""
    found = logprob_gradients(adapted, sequences)
    matrices = {name: weight.detach().clone() for name, weight in adapted.named_parameters()}
    assert found.keys() == {name for name in matrices if ".lora_" in name}
    assert all(weight.grad is None for weight in adapted.parameters() if not weight.requires_grad)
    merge_adapter(adapted)
    whole = logprob_gradients(adapted, sequences)
    for name, gradient in found.items():
        if ".lora_A." not in name:
            continue
        layer = name.removesuffix(".lora_A.default.weight")
        b_name = f"{layer}.lora_B.default.weight"
        a, b, g = matrices[name], matrices[b_name], whole[f"{layer}.weight"]
        if adapted.config.model_type == "gpt2":
            g = g.T
        assert torch.allclose(found[b_name], SCALE * g @ a.T, rtol=1e-3, atol=1e-3 * float(g.abs().max()))
        assert torch.allclose(gradient, SCALE * b.T @ g, rtol=1e-3, atol=1e-3 * float(g.abs().max()))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_changes_every_matrix_of_the_adapter_and_no_bit_of_the_rest(
    adapted: PreTrainedModel, sequences: list[TrainingSequence], checkpointing: bool
) -> None:
    before = {name: weight.detach().clone() for name, weight in adapted.named_parameters()}
    optimizer = PolicyOptimizer(adapted, OptimizerConfig(learning_rate=1e-2, weight_decay=0.1))
    config = UpdateConfig(epochs=2, gradient_checkpointing=checkpointing)
    reinforce(Learner(adapted, optimizer), Reinforcement(sequences, ObjectiveConfig(), config, seed=0))
    for name, weight in adapted.named_parameters():
        assert torch.equal(weight, before[name]) == (".lora_" not in name), name
    assert all(".lora_" in name for name in optimizer.tensors())


def test_low_precision_adapters_have_master_weights(
    make_model: Callable[[], PreTrainedModel], sequences: list[TrainingSequence]
) -> None:
    """A step of 1e-5 is lost in a bf16 weight and kept in its fp32 copy."""
    model = make_model().to(torch.bfloat16)
    add_fresh_adapter(model, LORA, seed=0, base="base")
    name = "model.layers.0.self_attn.q_proj.lora_A.default.weight"
    weight = dict(model.named_parameters())[name]
    assert weight.dtype == torch.bfloat16
    before = weight.detach().clone()
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-5))
    work = Reinforcement(sequences, ObjectiveConfig(), UpdateConfig(epochs=2), seed=0)
    reinforce(Learner(model, optimizer), work)
    moved = (optimizer.tensors()[f"master.{name}"] - before.float()).abs()
    assert 0 < float(moved.max()) < 3e-5
    large = before.abs() > 0.1
    assert large.any()
    assert torch.equal(weight[large], before[large])


def test_the_model_as_its_own_reference_stands_for_its_base(
    make_model: Callable[[], PreTrainedModel], sequences: list[TrainingSequence]
) -> None:
    def kl_to(reference: Callable[[PreTrainedModel], PreTrainedModel]) -> float:
        model = make_model()
        add_fresh_adapter(model, LORA, seed=0, base="base")
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if ".lora_B." in name:
                    weight.fill_(0.05)
        learner = Learner(model, PolicyOptimizer(model, OptimizerConfig()))
        work = Reinforcement(sequences, ObjectiveConfig(kl_coefficient=0.1), UpdateConfig(), seed=0)
        metrics = reinforce(learner, work, lambda: reference(model))
        assert any(weight.requires_grad for weight in model.parameters())
        return metrics.kl_loss

    itself = kl_to(lambda model: model)
    assert itself > 1e-3
    assert itself == kl_to(lambda _: make_model())
