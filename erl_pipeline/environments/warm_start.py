"""What an environment provides for the fine-tuning of a pretrained policy before the first iteration."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.policy import DemonstrationsWarmStart
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.tiny_parts import Demonstration


@dataclass(frozen=True)
class WarmStartQuestion:
    """A prompt of a held-out task. `scores` gives the scores of the policy's answer, by name; a question need
    not have all of them."""

    prompt: Sequence[Message]
    scores: Callable[[str], Mapping[str, float]]


@dataclass(frozen=True)
class WarmStartParts:
    """Demonstrations and an examination, both in the prompts of `EnvironmentPlugin.prompts`."""

    demonstrations: Callable[[random.Random, DemonstrationsWarmStart], Iterator[Demonstration]]
    """An endless stream that depends on the seeded generator alone, and shows no held-out task."""
    questions: Callable[[random.Random, DemonstrationsWarmStart], Sequence[WarmStartQuestion]]
    """Questions about as many held-out tasks as `DemonstrationsWarmStart.examined` says."""
    measures: Mapping[str, str]
    """Name of a score -> what its mean over the questions says, for people."""


@dataclass(frozen=True)
class WarmStart:
    """How an environment's settings give demonstrations."""

    parts: Callable[[Any], WarmStartParts | None]
    """None where these settings give none."""
    needs: str
    """The settings that give some, such as `format: short`."""
    exclude: frozenset[str] = frozenset()
    """Settings that the demonstrations do not depend on; runs that differ in them share the checkpoint."""

    def shown(self, settings: PluginSettings) -> PluginSettings:
        """The settings that the demonstrations depend on; all others at their defaults."""
        fields = type(settings).model_fields
        return settings.model_copy(update={name: fields[name].get_default() for name in self.exclude})


def require_parts(warm_start: WarmStart | None, settings: PluginSettings) -> WarmStartParts:
    """The demonstrations of these settings. Raises `ValueError` where they give none."""
    parts = None if warm_start is None else warm_start.parts(settings)
    if parts is None:
        reason = "has no demonstrations" if warm_start is None else f"has them only with {warm_start.needs}"
        raise ValueError(
            f"policy.warm_start.type: demonstrations; environment {settings.type} {reason}; allowed with all "
            "environments is type: messages, a file of conversations"
        )
    return parts
