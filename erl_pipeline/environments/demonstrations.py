"""What an environment provides to teach a policy before the first iteration: for the cold start of a tiny
one, and the warm start of a pretrained one."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from erl_pipeline.config.base import PluginSettings, SettingsT
from erl_pipeline.config.plugins import NO_BYTES
from erl_pipeline.config.policy import ColdStartConfig, DemonstrationsWarmStart
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import ExperienceFormat

Demonstration = Sequence[Message]
"""A conversation of user and assistant messages; the assistant's words are trained on."""


@dataclass(frozen=True)
class ExamQuestion:
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
    questions: Callable[[random.Random, ColdStartConfig], Sequence[ExamQuestion]]
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


def with_defaults(settings: SettingsT, names: Iterable[str]) -> SettingsT:
    """The settings with these at their defaults."""
    fields = type(settings).model_fields
    return settings.model_copy(update={name: fields[name].get_default() for name in names})


@dataclass(frozen=True)
class TinyPlayer(Generic[SettingsT]):
    """How an environment's settings give the parts of a tiny policy; the defaults give none."""

    parts: Callable[[SettingsT], TinyParts | None] = lambda settings: None
    """What the cold start needs; None where these settings have no form for a tiny policy."""
    needs: str = field(default="", metadata=NO_BYTES)
    """The settings with which `parts` gives something, such as `format: compact`."""
    exclude: frozenset[str] = frozenset()
    """Settings that the cold start does not depend on; runs that differ in them share its checkpoint."""
    view: Callable[[SettingsT], SettingsT] | None = None
    """The settings that the cold start depends on, where `exclude` cannot say it."""
    extractor: Callable[[SettingsT], TinyParts | None] = lambda settings: None
    """What the cold start of a tiny model that extracts experience needs; its prompts are those of
    `experience`. None where these settings have no form for such a model."""
    experience: Callable[[SettingsT], ExperienceFormat | None] = lambda settings: None
    """How a model that extracts experience from episodes is asked, in the environment's own words; None: the
    method's templates, as chat."""

    def shown(self, settings: SettingsT) -> SettingsT:
        """The settings that the cold start depends on; all others at their defaults."""
        if self.view is not None:
            return self.view(settings)
        return with_defaults(settings, self.exclude)

    def require(self, settings: SettingsT) -> TinyParts:
        """The parts for the cold start. Raises `ValueError` where these settings give none."""
        parts = self.parts(settings)
        if parts is None:
            needed = f"; policy.type: tiny needs {self.needs}" if self.needs else ""
            raise ValueError(f"environment: these settings have no form for a policy of type: tiny{needed}")
        return parts


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
        return with_defaults(settings, self.exclude)
