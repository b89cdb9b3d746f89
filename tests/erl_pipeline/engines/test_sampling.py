from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.engines.interface import ServedAdapter
from erl_pipeline.engines.sampling import draw_tokens, make_probe, served_checkpoint, uniform_stream
from erl_pipeline.policies.adapters import add_fresh_adapter
from erl_pipeline.policies.pretrained import LoadedPolicy
from storage.errors import EngineError
from tests.erl_pipeline.engines.vllm.small_policies import (
    END,
    VOCABULARY,
    logprobs_of,
    tied_llama,
    train_a_little,
    untied_gpt2,
)
from tests.random_models import word_tokenizer

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
