"""An adapter changes nothing at first, contains all trained weights, and gives equal bytes for equal
seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.adapter_names import SETTINGS, WEIGHTS, last_parts, read_adapted_layers
from erl_pipeline.policies.adapters import (
    add_fresh_adapter,
    has_adapter,
    linear_layers,
    merge_adapter,
    read_adapter,
    without_adapter,
    write_adapter,
)
from storage.errors import ConfigError, InputError

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
SMALL = LoraConfig(rank=2, alpha=6)


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=11, tie_word_embeddings=True, **sizes)).eval()


def gpt2() -> PreTrainedModel:
    """A GPT-2, whose linear layers store their matrices transposed."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=TOKENS).logits
    return found


@torch.no_grad()
def change_adapter(model: PreTrainedModel) -> None:
    """Give every trainable weight a value of the size that a trained adapter has."""
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_fresh_adapter_changes_no_logit_and_is_all_that_is_trained(
    make: Callable[[], PreTrainedModel],
) -> None:
    model = make()
    before = logits(model)
    add_fresh_adapter(model, SMALL, seed=7, base="base")
    assert torch.equal(logits(model), before)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_without_its_adapter_a_model_is_its_base(make: Callable[[], PreTrainedModel]) -> None:
    model = make()
    before = logits(model)
    add_fresh_adapter(model, SMALL, seed=7, base="base")
    change_adapter(model)
    after = logits(model)
    assert (after - before).abs().max() > 0.1
    with without_adapter(model):
        assert torch.equal(logits(model), before)
    assert torch.equal(logits(model), after)
    assert any(weight.requires_grad for weight in model.parameters())


def test_the_change_is_scaled_by_alpha_over_rank() -> None:
    """With `A = [1 0 .. 0]` in its one row and `B` 0 but for its first entry 2, alpha 6 and rank 1 add
    6 * 2 to the first entry of the matrix."""
    model = llama()
    add_fresh_adapter(model, LoraConfig(rank=1, alpha=6, target_modules=("1.self_attn.q_proj",)), 0, "base")
    layer = model.model.layers[1].self_attn.q_proj
    before = layer.base_layer.weight.clone()
    with torch.no_grad():
        layer.lora_A["default"].weight.zero_()[0, 0] = 1.0
        layer.lora_B["default"].weight.zero_()[0, 0] = 2.0
    merge_adapter(model)
    change = model.model.layers[1].self_attn.q_proj.weight - before
    assert change[0, 0].item() == pytest.approx(12.0)
    assert change.count_nonzero() == 1


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_merged_model_says_the_same_within_rounding(make: Callable[[], PreTrainedModel]) -> None:
    model = make()
    add_fresh_adapter(model, SMALL, seed=7, base="base")
    change_adapter(model)
    expected = logits(model)
    merge_adapter(model)
    assert not has_adapter(model)
    assert (logits(model) - expected).abs().max() < 1e-5
    assert set(model.state_dict()) == set(make().state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_written_adapter_is_read_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    model = llama().to(dtype)
    add_fresh_adapter(model, SMALL, seed=7, base="base")
    change_adapter(model)
    write_adapter(model, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / WEIGHTS).values()} == {dtype}

    again = llama().to(dtype)
    read_adapter(again, tmp_path, SMALL)
    assert torch.equal(logits(again), logits(model))
    trained = [name for name, weight in again.named_parameters() if weight.requires_grad]
    assert trained == [name for name, weight in model.named_parameters() if weight.requires_grad]


def test_equal_seeds_give_equal_bytes_and_leave_the_global_generator_alone(tmp_path: Path) -> None:
    for folder, seed, noise in (("one", 7, 1), ("same", 7, 2), ("other", 8, 1)):
        model = llama()
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        add_fresh_adapter(model, SMALL, seed=seed, base="base")
        assert torch.equal(torch.get_rng_state(), state)
        write_adapter(model, tmp_path / folder)
    one, same, other = ((tmp_path / folder / WEIGHTS).read_bytes() for folder in ("one", "same", "other"))
    assert one == same
    assert one != other
    assert (tmp_path / "one" / SETTINGS).read_bytes() == (tmp_path / "same" / SETTINGS).read_bytes()


@pytest.mark.parametrize("target", ["attention", "lm_head", "embed_tokens", "proj"])
def test_a_module_that_cannot_be_adapted_is_named_with_those_that_can(target: str) -> None:
    with pytest.raises(ConfigError, match=rf"target_modules: {target} is no linear layer .* q_proj"):
        add_fresh_adapter(llama(), LoraConfig(target_modules=("v_proj", target)), 0, "base")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    model = llama()
    add_fresh_adapter(model, SMALL, seed=7, base="base")
    write_adapter(model, tmp_path)
    with pytest.raises(InputError, match="another model"):
        read_adapter(gpt2(), tmp_path, SMALL)
    with pytest.raises(InputError, match="holds no adapter"):
        read_adapter(llama(), tmp_path / "nowhere", SMALL)
    (tmp_path / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(InputError, match="cannot be read"):
        read_adapter(llama(), tmp_path, SMALL)


@pytest.mark.parametrize(
    "other",
    [{"rank": 3}, {"alpha": 7}, {"target_modules": ("q_proj",)}, {"target_modules": ("0.mlp.up_proj",)}],
)
def test_an_adapter_with_other_settings_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    model = llama()
    add_fresh_adapter(model, SMALL, seed=7, base="base")
    write_adapter(model, tmp_path)
    with pytest.raises(ConfigError, match=r"rank 2, alpha 6 and modules down_proj, .* v_proj"):
        read_adapter(llama(), tmp_path, SMALL.model_copy(update=other))


def test_the_layers_of_an_adapter_are_known_from_its_files_alone(tmp_path: Path) -> None:
    model = llama()
    linear, config = linear_layers(model), LoraConfig(rank=2, alpha=6, target_modules=("v_proj", "q_proj"))
    add_fresh_adapter(model, config, seed=0, base="base")
    write_adapter(model, tmp_path)
    found = read_adapted_layers(tmp_path, linear, config, "llama")
    assert found == [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qv"]
    assert last_parts(found) == ("q_proj", "v_proj")
    for other in ({"rank": 4}, {"alpha": 7}, {"target_modules": ("q_proj",)}):
        with pytest.raises(ConfigError, match="rank 2, alpha 6 and modules q_proj, v_proj"):
            read_adapted_layers(tmp_path, linear, config.model_copy(update=other), "llama")
    with pytest.raises(InputError, match="holds no adapter"):
        read_adapted_layers(tmp_path / "none", linear, config, "llama")
