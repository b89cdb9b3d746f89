"""What an environment gives so that the tiny policy can be made for it by a cold start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.messages import Message

Demonstration = Sequence[Message]
"""A conversation of user and assistant messages; the assistant's words are trained."""


@dataclass(frozen=True)
class TinyParts:
    """An environment in words of one token each.

    Its prompts are those of `EnvironmentPlugin.prompts`. All texts of prompts, observations and
    demonstrations consist of `words` with spaces between them.
    """

    words: tuple[str, ...]
    """The vocabulary; a word's place gives its token id, after those of the tiny policy's own words."""
    context_length: int
    """Tokens of the longest sequence that is trained or sampled, with room for ill-formed turns."""
    demonstrations: Callable[[random.Random, ColdStartConfig], Iterator[Sequence[Demonstration]]]
    """An endless stream of demonstrated episodes, each with one conversation or more. It depends on the
    seeded generator alone, and shows no held-out task."""
    retry_tokens: int = 0
    """Tokens by which the prompt of an attempt that is told how another failed is longer. 0: such attempts
    are not demonstrated, whatever `ColdStartConfig.retries` says."""
