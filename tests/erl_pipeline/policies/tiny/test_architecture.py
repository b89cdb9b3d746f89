from __future__ import annotations

import torch

from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.policies.tiny.model import build_model, build_tokenizer


def test_weights_depend_on_the_seed_alone() -> None:
    policy = TinyPolicyConfig(hidden_size=32, heads=1, layers=1)
    tokenizer = build_tokenizer(["up", "down"], 64)
    torch.manual_seed(1)
    first = build_model(policy, tokenizer, 64, seed=7)
    torch.manual_seed(2)
    undisturbed = torch.rand(1)
    torch.manual_seed(2)
    second = build_model(policy, tokenizer, 64, seed=7)
    assert torch.equal(torch.rand(1), undisturbed)  # the global generator is not used
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, build_model(policy, tokenizer, 64, seed=8).lm_head.weight)
    assert first.lm_head.weight is not first.transformer.wte.weight
