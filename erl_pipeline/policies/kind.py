"""What a package offers as a kind of policy. Importing it never imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins import NO_BYTES, plugins
from erl_pipeline.config.policy import LoraConfig, WarmStartConfig

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.stage import Stage

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


@dataclass(frozen=True)
class PolicyTraits:
    """What the rest of the program asks about a policy, whatever its kind is."""

    model: str | None = None
    """Folder or hub name of the model that the run begins with; None where it makes its first weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights in training and generation."""
    lora: LoraConfig | None = None
    """The adapter that is trained; None when all weights are."""
    warm_start: WarmStartConfig | None = None
    """Supervised training before the first iteration."""
    own_words: bool = False
    """Whether it reads and writes only the words of its environment, so that no text in a natural language
    can be put to it."""
    parameters: int | None = None
    """How many numbers its weights have, without the vocabulary, where the settings say it."""


def _possible(_config: RunConfig) -> None:
    """The check of a kind that goes with every environment and method."""


@dataclass(frozen=True)
class PolicyKind(Generic[SettingsT]):
    """What an entry point of `erl_pipeline.policies` names.

    The module that holds it imports heavy packages only within functions: it is imported in every process.
    """

    settings: type[SettingsT]
    """Has a field `type: Literal["..."]`, by which a configuration chooses the kind."""
    traits: Callable[[SettingsT], PolicyTraits]
    plan_first: Callable[[Planner], str] = field(metadata=NO_BYTES)
    """Plans the stages that make the run's first checkpoint; returns its id."""
    first_stage: Callable[[SettingsT], Stage[Any]] = field(metadata=NO_BYTES)
    """The last of these stages."""
    require_possible: Callable[[RunConfig], None] = field(default=_possible, metadata=NO_BYTES)
    """Raises ValueError, which names them, for settings of a run that do not go with the kind."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what the first checkpoint is; its own always counts."""


def policy_traits(policy: PluginSettings) -> PolicyTraits:
    """What is true of a policy with these settings."""
    traits: PolicyTraits = plugins("policies")[policy.type].value.traits(policy)
    return traits
