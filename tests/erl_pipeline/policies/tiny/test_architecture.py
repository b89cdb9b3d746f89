from __future__ import annotations

import torch

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.policies.tiny.architecture import build_model, context_length
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer


def test_the_context_holds_the_longest_attempt() -> None:
    # 16 cells, 4 slots, <bos> <user> notes <assistant>; 6 turns of 7 words; 6 spare words a turn.
    assert context_length(FrozenLakeConfig()) == 16 + 4 + 4 + 6 * 7 + 6 * 6


def test_weights_depend_on_the_seed_alone() -> None:
    environment, policy = FrozenLakeConfig(), TinyPolicyConfig(hidden_size=32, heads=1, layers=1)
    tokenizer = build_tokenizer(environment, 64)
    torch.manual_seed(1)
    first = build_model(policy, tokenizer, 64, seed=7)
    torch.manual_seed(2)
    undisturbed = torch.rand(1)
    torch.manual_seed(2)
    second = build_model(policy, tokenizer, 64, seed=7)
    assert torch.equal(torch.rand(1), undisturbed)  # the global generator is left alone
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, build_model(policy, tokenizer, 64, seed=8).lm_head.weight)
    assert first.lm_head.weight is not first.transformer.wte.weight
