from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.policies.tiny.model import (
    Batch,
    build_model,
    build_tokenizer,
    to_batch,
    to_batches,
    to_words,
)

WORDS = ["@", "&", "notes", "?", "up", "a", "bump", "c0", "c15", "."]
MESSAGES = [
    {"role": "user", "content": "@ & notes ? ? ? ?"},
    {"role": "assistant", "content": "up a"},
    {"role": "user", "content": "bump c0"},
]


def test_the_chat_template_frames_the_turns() -> None:
    tokenizer = build_tokenizer(WORDS, 128)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert text == "<bos> <user> @ & notes ? ? ? ? <assistant> up a <end> <user> bump c0 <assistant>"


def test_ids_come_back_as_words_from_a_saved_tokenizer(tmp_path: Path) -> None:
    built = build_tokenizer(WORDS, 128)
    built.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "<bos> <user> @ c15 . <assistant> up a <end>"
    ids = loaded(text, add_special_tokens=False)["input_ids"]
    assert ids == built.convert_tokens_to_ids(text.split())
    assert loaded.decode(ids, skip_special_tokens=True) == "@ c15 . up a"
    assert loaded.eos_token == "<end>"
    assert loaded.chat_template == built.chat_template


def test_a_word_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'up' comes twice"):
        build_tokenizer(["up", "a", "up"], 64)
    with pytest.raises(ValueError, match="'<end>' comes twice"):
        build_tokenizer(["<end>"], 64)


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


PARTS = ENVIRONMENT.tiny.require(FrozenLakeConfig())
CONVERSATION: list[Message] = [
    {"role": "user", "content": "@ & notes ? ? ? ?"},
    {"role": "assistant", "content": "up a"},
    {"role": "user", "content": "bump c0"},
    {"role": "assistant", "content": "right b"},
]


def reflection(memory: str, answer: str) -> list[Message]:
    """A reflection on an attempt that is always the same."""
    return [
        {"role": "user", "content": f"trace up a bump c0 memory {memory} reflect"},
        {"role": "assistant", "content": answer},
    ]


def test_a_conversation_is_what_the_chat_template_gives_and_the_assistants_words_are_trained() -> None:
    tokenizer = build_tokenizer(PARTS.words, 64)
    words, trained = to_words(CONVERSATION)
    assert " ".join(words) == tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
    said = [word for word, mine in zip(words, trained, strict=True) if mine]
    assert said == ["up", "a", "<end>", "right", "b", "<end>"]


def test_batches_are_padded_on_the_right() -> None:
    tokenizer = build_tokenizer(PARTS.words, 64)
    batch = to_batch([CONVERSATION[:2], CONVERSATION], tokenizer)
    token_ids, trained = batch.token_ids, batch.trained
    short = ["<bos>", "<user>", "@", "&", "notes", "?", "?", "?", "?", "<assistant>", "up", "a", "<end>"]
    long, _ = to_words(CONVERSATION)
    padding = len(long) - len(short)
    assert tokenizer.convert_ids_to_tokens(token_ids[0].tolist()) == short + ["<pad>"] * padding
    assert tokenizer.convert_ids_to_tokens(token_ids[1].tolist()) == long
    assert trained[0].tolist() == [False] * 10 + [True] * 3 + [False] * padding


def test_reflections_on_one_attempt_share_a_row() -> None:
    tokenizer = build_tokenizer(PARTS.words, 64)
    alike = [reflection("? b", "a b"), reflection("c ?", "c ?")]
    single, shared = to_batches([CONVERSATION, *alike], tokenizer)
    assert single.attention is None
    assert shared.attention is not None
    words = tokenizer.convert_ids_to_tokens(shared.token_ids[0].tolist())
    beginning = ["<bos>", "<user>", "trace", "up", "a", "bump", "c0", "memory"]
    first, second = (
        ["?", "b", "reflect", "<assistant>", "a", "b", "<end>"],
        ["c", "?", "reflect", "<assistant>", "c", "?", "<end>"],
    )
    assert words == [*beginning, *first, *second]
    assert shared.positions[0].tolist() == [*range(8), *range(8, 15), *range(8, 15)]
    said = [word for word, mine in zip(words, shared.trained[0].tolist(), strict=True) if mine]
    assert said == ["a", "b", "<end>", "c", "?", "<end>"]
    # The second reflection attends to the beginning and to itself, not to the first reflection.
    sees = shared.attention[0, 0, 15].tolist()
    assert sees == [True] * 8 + [False] * 7 + [True] + [False] * 6


def test_equal_conversations_in_one_row_are_both_trained() -> None:
    tokenizer = build_tokenizer(PARTS.words, 64)
    (shared,) = to_batches([reflection("? b", "a b")] * 2, tokenizer)
    assert shared.token_ids.shape == (1, 11 + 2 * 4)  # up to "reflect", then <assistant> a b <end>
    assert int(shared.trained.sum()) == 6


def test_sharing_a_row_changes_no_loss() -> None:
    tokenizer = build_tokenizer(PARTS.words, 64)
    model = build_model(TinyPolicyConfig(hidden_size=32, heads=1, layers=2), tokenizer, 64, seed=0)
    shown = [CONVERSATION, *(reflection(memory, "a ?") for memory in ("? b", "c ?", "? ?"))]

    def loss(batch: Batch) -> torch.Tensor:
        hidden = model.transformer(
            input_ids=batch.token_ids, position_ids=batch.positions, attention_mask=batch.attention
        ).last_hidden_state
        logits = model.lm_head(hidden)[:, :-1][batch.trained[:, 1:]]
        return cross_entropy(logits, batch.token_ids[:, 1:][batch.trained[:, 1:]], reduction="sum")

    together = torch.stack([loss(batch) for batch in to_batches(shown, tokenizer)]).sum().item()
    assert together == pytest.approx(loss(to_batch(shown, tokenizer)).item(), rel=1e-5)
