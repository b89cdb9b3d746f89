"""What an environment provides for the cold start of a tiny policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.messages import Message

Demonstration = Sequence[Message]
"""A conversation of user and assistant messages; the assistant's words are trained on."""


@dataclass(frozen=True)
class Question:
    """A demonstration that no training step shows, whose last turn has words that must be right.

    `places` are the positions of these words in that turn, from 0.
    """

    demonstration: Demonstration
    places: tuple[int, ...]


@dataclass(frozen=True)
class Examination:
    """A skill that the cold start should teach: training goes on until the policy has it.

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
    examinations: Sequence[Examination] = ()
    """All of them have to be passed. Empty: the cold start takes a fixed number of steps, whatever was
    learned."""
    retry_tokens: int = 0
    """Tokens that a prompt has in addition when it shows how another attempt failed. 0: attempts with such a
    prompt are not demonstrated, whatever `ColdStartConfig.retries` says."""
