from __future__ import annotations

import random
from itertools import islice

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tiny.parts import context_length, vocabulary
from storage.errors import ConfigError


def test_no_word_is_twice() -> None:
    words = vocabulary(FrozenLakeConfig())
    assert len(words) == len(set(words))
    assert {"@", "a", "up", "c15", "notes", "?", ".", "lost"} <= set(words)


def test_a_word_with_two_meanings_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fell' has another meaning"):
        vocabulary(FrozenLakeConfig(action_words=("a", "b", "c", "fell")))
    with pytest.raises(ConfigError, match=r"'a' has another meaning"):
        vocabulary(FrozenLakeConfig(symbols=("a", "#", "$", "&")))


def test_the_context_holds_the_longest_attempt() -> None:
    # 16 cells, 4 slots, <bos> <user> notes <assistant>; 6 turns of 7 words; 6 spare words per turn.
    assert context_length(FrozenLakeConfig()) == 16 + 4 + 4 + 6 * 7 + 6 * 6


def test_demonstrations_speak_in_the_words_and_follow_from_the_seed() -> None:
    parts = ENVIRONMENT.tiny.require(FrozenLakeConfig(training_boards=50))
    first, again = (
        list(islice(parts.demonstrations(random.Random(3), ColdStartConfig()), 20)) for _ in range(2)
    )
    assert first == again
    conversations = [shown for episode in first for shown in episode]
    said = {word for shown in conversations for message in shown for word in message["content"].split()}
    assert said <= set(parts.words)


def test_prose_has_no_parts() -> None:
    with pytest.raises(ValueError, match=r"type: tiny; policy\.type: tiny needs format: compact"):
        ENVIRONMENT.tiny.require(FrozenLakeConfig(format="prose"))
