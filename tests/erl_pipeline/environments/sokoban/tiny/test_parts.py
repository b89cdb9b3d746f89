from __future__ import annotations

import random
from itertools import islice

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.sokoban import ENVIRONMENT
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tiny.parts import context_length, retry_tokens, vocabulary
from erl_pipeline.policies.tiny.conversations import to_words
from storage.errors import ConfigError

SMALL = SokobanConfig(rows=(5, 6), training_boards=50)


def test_no_word_is_twice() -> None:
    words = vocabulary(SMALL)
    assert len(words) == len(set(words))
    assert {"A", "p", "up", "c15", "notes", "?", ".", "start", "box_wall", "bad", "stuck"} <= set(words)
    assert "c16" not in words  # four rows of four cells within the border


def test_a_word_with_two_meanings_is_refused() -> None:
    with pytest.raises(ConfigError, match="'stuck' has another meaning"):
        vocabulary(SokobanConfig(action_words=("p", "q", "r", "stuck")))
    with pytest.raises(ConfigError, match="'a' has another meaning"):
        vocabulary(SokobanConfig(action_words=("a", "q", "r", "s")))


def test_the_context_holds_the_longest_attempt() -> None:
    # 16 cells, "start" and 2 places; 4 slots; <bos> <user> notes <assistant>; 8 turns of 8 words; 6 spare
    # words a turn.
    assert context_length(SMALL) == 16 + 3 + 4 + 4 + 8 * 8 + 8 * 6
    # A failed attempt in the prompt of the next: 8 steps of 5 words, "trace" and the ending.
    assert retry_tokens(SMALL) == 8 * 5 + 2


@pytest.mark.parametrize(
    "changes",
    [{}, {"boxes": (2, 2), "inner_walls": (1, 1)}, {"action_mode": "plan"}, {"permute_symbols": True}],
)
def test_demonstrations_speak_in_the_words_fit_and_follow_from_the_seed(changes: dict[str, object]) -> None:
    settings = SokobanConfig.model_validate({"rows": (5, 6), "training_boards": 20, **changes})
    parts = ENVIRONMENT.tiny.require(settings)
    cold_start = ColdStartConfig(retries=1.0)
    first, again = (list(islice(parts.demonstrations(random.Random(3), cold_start), 30)) for _ in range(2))
    assert first == again
    prompts = ENVIRONMENT.prompts(settings)
    assert prompts is not None
    for conversation in (shown for episode in first for shown in episode):
        words, _ = to_words(conversation)
        assert {word for word in words if not word.startswith("<")} <= set(parts.words)
        assert len(words) <= parts.context_length + parts.retry_tokens
        if conversation[0]["content"].endswith("reflect"):
            assert prompts.read_reflection(conversation[-1]["content"])


def test_prose_has_no_parts() -> None:
    with pytest.raises(ValueError, match=r"type: tiny; policy\.type: tiny needs format: compact"):
        ENVIRONMENT.tiny.require(SokobanConfig(format="prose"))


def test_what_is_hidden_is_no_part_of_the_cold_start() -> None:
    settings = SMALL.model_copy(
        update={"world_seed": 3, "task_file": "boards.jsonl", "instructions": "Other words."}
    )
    assert ENVIRONMENT.tiny.shown(settings) == SMALL
