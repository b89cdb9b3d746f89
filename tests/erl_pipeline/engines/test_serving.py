from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.engines.interface import ServedAdapter
from erl_pipeline.engines.sampling import make_probe, served_checkpoint
from erl_pipeline.policies.adapters import add_fresh_adapter
from erl_pipeline.policies.pretrained import LoadedPolicy
from tests.erl_pipeline.engines.vllm.small_policies import (
    END,
    VOCABULARY,
    logprobs_of,
    tied_llama,
    train_a_little,
    untied_gpt2,
)
from tests.random_models import word_tokenizer


def test_a_probe_holds_how_the_model_continues_fixed_prompts() -> None:
    model = untied_gpt2()
    probe = make_probe(model)
    assert [len(ids) for ids in probe.token_ids] == [24] * 8
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


def test_what_an_engine_is_told_of_an_adapter() -> None:
    def told(model: PreTrainedModel, adapter_folder: Path | None) -> ServedAdapter | None:
        policy = LoadedPolicy(model, word_tokenizer(), "digest", 128, frozenset({END}))
        checkpoint = served_checkpoint(policy, "checkpoint", Path("base"), adapter_folder)
        assert (checkpoint.base_folder, checkpoint.end_token_ids) == (Path("base"), frozenset({END}))
        return checkpoint.adapter

    model = tied_llama()
    assert told(model, None) is None
    add_fresh_adapter(model, LoraConfig(rank=2, target_modules=("v_proj", "q_proj")), seed=0, base="base")
    assert told(model, None) == ServedAdapter(None, 2, ("q_proj", "v_proj"))
    assert told(model, Path("adapter")) == ServedAdapter(Path("adapter"), 2, ("q_proj", "v_proj"))
