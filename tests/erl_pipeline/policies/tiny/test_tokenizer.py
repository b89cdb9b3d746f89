from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from erl_pipeline.policies.tiny.model import build_tokenizer

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
