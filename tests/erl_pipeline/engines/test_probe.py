from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.engines.interface import OutputHead
from erl_pipeline.engines.probe import make_probe, output_head, save_probe
from erl_pipeline.engines.probe_file import PROBE_FILE, ModelFacts, read_facts, read_probe
from erl_pipeline.policies.adapters import add_fresh_adapter
from erl_pipeline.policies.pretrained import LoadedPolicy, save_policy, stored_names
from storage.errors import EngineError
from tests.erl_pipeline.engines.vllm.small_policies import (
    END,
    VOCABULARY,
    logprobs_of,
    save,
    tied_llama,
    train_a_little,
    untied_gpt2,
)
from tests.random_models import random_gemma3, random_gpt2, random_qwen3_moe, word_tokenizer


def test_a_probe_holds_how_the_model_continues_fixed_prompts() -> None:
    model = untied_gpt2()
    probe = make_probe(model)
    assert [len(ids) for ids in probe.token_ids] == [16] * 16
    prompt, continuation = probe.token_ids[3][:8], probe.token_ids[3][8:]
    assert probe.logprobs[3] == pytest.approx(logprobs_of(model, prompt, continuation), abs=1e-5)
    assert (probe.dtype, probe.base_logprobs) == ("float32", None)
    hot = [logprobs_of(model, probe.token_ids[3], [token], temperature=2.0)[0] for token in range(VOCABULARY)]
    assert probe.hot_logprobs[3] == pytest.approx(np.array(hot), abs=1e-5)
    train_a_little(model)
    assert make_probe(model).token_ids[3][:8] == prompt


def test_the_base_is_scored_on_the_texts_of_the_adapted_model() -> None:
    model = tied_llama()
    base = make_probe(model)
    add_fresh_adapter(model, LoraConfig(rank=2), seed=0, base="base")
    # A fresh adapter changes nothing, so both generate the same texts.
    assert np.asarray(make_probe(model).base_logprobs) == pytest.approx(np.asarray(base.logprobs))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.fill_(0.02)
    changed = make_probe(model)
    assert np.abs(np.asarray(changed.base_logprobs) - np.asarray(changed.logprobs)).max() > 0.01
    prompt, continuation = changed.token_ids[5][:8], changed.token_ids[5][8:]
    assert changed.logprobs[5] == pytest.approx(logprobs_of(model, prompt, continuation), abs=1e-5)


def test_a_model_with_a_short_context_gets_shorter_sequences() -> None:
    """After 9 of 10 tokens there is room for one; the first half of them are the prompt."""
    probe = make_probe(random_gpt2(VOCABULARY, positions=10, bos_token_id=None, eos_token_id=END))
    assert [len(ids) for ids in probe.token_ids] == [9] * 16
    assert [len(row) for row in probe.logprobs] == [5] * 16


def test_equal_weights_give_equal_files_which_say_what_was_computed(tmp_path: Path) -> None:
    model = tied_llama()
    policy = LoadedPolicy(model, word_tokenizer(), "digest", 128, frozenset({END, 1}))
    for name in ("first", "second"):
        save_policy(policy, tmp_path / name / "model")
        save_probe(policy, tmp_path / name)
    file = tmp_path / "first" / PROBE_FILE
    assert file.read_bytes() == (tmp_path / "second" / PROBE_FILE).read_bytes()
    made, found = make_probe(model), read_probe(file)
    assert (found.token_ids, found.logprobs, found.dtype) == (made.token_ids, made.logprobs, "float32")
    assert found.base_logprobs is None
    assert np.array_equal(found.hot_logprobs, made.hot_logprobs)
    layers = [
        f"model.layers.{layer}.{name}"
        for layer in range(2)
        for name in (
            *(f"self_attn.{one}_proj" for one in "qkvo"),
            *(f"mlp.{one}_proj" for one in ("gate", "up", "down")),
        )
    ]
    assert read_facts(file) == ModelFacts(
        model_type="llama",
        tokenizer_digest="digest",
        context_length=128,
        end_token_ids=(1, END),
        head=OutputHead("lm_head.weight", "model.embed_tokens.weight"),
        linear_layers=tuple(layers),
    )
    train_a_little(model)
    save_probe(policy, tmp_path / "second")
    assert file.read_bytes() != (tmp_path / "second" / PROBE_FILE).read_bytes()


def test_the_file_of_an_adapter_has_what_its_base_says_too(tmp_path: Path) -> None:
    model = tied_llama()
    add_fresh_adapter(model, LoraConfig(rank=2), seed=0, base="base")
    save_probe(LoadedPolicy(model, word_tokenizer(), "digest", 128, frozenset({END})), tmp_path)
    found = read_probe(tmp_path / PROBE_FILE)
    assert found.base_logprobs == found.logprobs


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    model = untied_gpt2()
    checkpoint = save(model, tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(EngineError, match=r"lacks the tensors lm_head\.weight"):
        output_head(model, checkpoint)


def test_a_mixture_of_experts_is_whole_though_its_file_holds_each_expert_apart(tmp_path: Path) -> None:
    """The function of transformers that says so is not public: `stored_names` is compared with a file."""
    model = random_qwen3_moe(VOCABULARY)
    checkpoint = save(model, tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    names = stored_names(model, model.state_dict())
    assert sorted(names) == sorted(weights)
    expert = "model.layers.1.mlp.experts.1.down_proj.weight"
    assert (names["lm_head.weight"], names[expert]) == ("lm_head.weight", None)
    assert output_head(model, checkpoint) == OutputHead("lm_head.weight")
    del weights[expert]
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(EngineError, match=rf"lacks the tensors {expert}$"):
        output_head(model, checkpoint)


def test_a_model_of_text_and_images_is_known_by_its_text_part(tmp_path: Path) -> None:
    model = random_gemma3(VOCABULARY)
    checkpoint = save(model, tmp_path / "checkpoint")
    head = OutputHead("language_model.lm_head.weight", "language_model.model.embed_tokens.weight")
    assert output_head(model, checkpoint) == head
    assert head.tied_to in load_file(checkpoint / "model.safetensors")
    probe = make_probe(model)
    prompt, continuation = probe.token_ids[3][:8], probe.token_ids[3][8:]
    assert probe.logprobs[3] == pytest.approx(logprobs_of(model, prompt, continuation), abs=1e-5)
