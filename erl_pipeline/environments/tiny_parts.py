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
class Question:
    """A demonstration that no training step shows, whose last turn has words that must be right.

    `places` are those of the words in that turn, from 0.
    """

    demonstration: Demonstration
    places: tuple[int, ...]


@dataclass(frozen=True)
class Examination:
    """A skill that the cold start is to have taught: by it the training may be made longer.

    The share of asked words that the policy finds most probable, each after the demonstrated words before
    it, is reported under `name`.
    """

    name: str
    questions: Callable[[random.Random, ColdStartConfig], Sequence[Question]]
    """They depend on the seeded generator alone."""
    otherwise: str
    """What to expect of a policy without the skill, in a few words for people."""


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
    examination: Examination | None = None
    """None: the cold start takes its steps, whatever was learned."""
    retry_tokens: int = 0
    """Tokens by which the prompt of an attempt that is told how another failed is longer. 0: such attempts
    are not demonstrated, whatever `ColdStartConfig.retries` says."""
