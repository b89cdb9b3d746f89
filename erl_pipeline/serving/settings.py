"""The settings of a policy that serves, and of what is learned from its traffic: a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading import load_settings
from erl_pipeline.config.served_feedback import whose_notes

Reward = Annotated[float, Field(ge=0.0, le=1.0)]

TEXTS = ("comment", "correction")
"""Metrics of feedback that every server knows. Their values are texts, and no rewards."""


class ServedMemory(Settings):
    """Notes of the memory in the system message of conversations that begin."""

    top_k: int = Field(default=3, ge=1)
    """Most notes."""
    scope: Literal["run", "user", "none"] = "none"
    """`run`: all entries of the run's memory. `user`: those that were made from traffic of the same user."""


class LogSettings(Settings):
    """When an answer is on disk."""

    durability: Literal["batch", "each"] = "batch"
    """`each`: before the answer ends. `batch`: at most `flush_ms` later."""
    flush_ms: int = Field(default=200, ge=1)


class EpisodeSettings(Settings):
    """When conversations end, and when what is known of them is settled."""

    idle_minutes: float = Field(default=30.0, gt=0, le=525_600)
    """An episode without a call for so long is over."""
    settle_hours: float = Field(default=24.0, ge=0, le=87_600)
    """Feedback is waited for so long after an episode has ended by itself. One that its client closes is
    settled at once."""


class Metric(Settings):
    """How a value of feedback becomes a reward: a number between `min` and `max`, or one of some `values`.

    In the file, values stand alone: `thumbs: {up: 1, down: 0}`.
    """

    min: float | None = None
    max: float | None = None
    values: dict[str, Reward] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _named_values(cls, given: Any) -> Any:
        if isinstance(given, dict) and not {"min", "max"} & set(given) and "values" not in given:
            return {"values": given}
        return given

    @model_validator(mode="after")
    def _one_kind(self) -> Metric:
        if self.values:
            if self.min is not None or self.max is not None:
                raise ValueError("it has named values and bounds; give one of them")
        elif self.min is None or self.max is None or not self.min < self.max:
            raise ValueError("allowed: named values such as {up: 1, down: 0}, or {min: 1, max: 5}")
        return self

    def reward(self, value: float | str) -> float:
        """The reward, from 0 to 1. Raises ValueError, which says what is allowed, for another value."""
        if self.values:
            if not isinstance(value, str) or value not in self.values:
                raise ValueError(f"allowed: {', '.join(self.values)}")
            return self.values[value]
        assert self.min is not None
        assert self.max is not None
        if isinstance(value, str) or not self.min <= value <= self.max:
            raise ValueError(f"allowed: a number from {self.min:g} to {self.max:g}")
        return (value - self.min) / (self.max - self.min)


class GateSettings(Settings):
    """What a checkpoint must pass before an alias may mean it."""

    held_out_drop: float = Field(default=0.02, ge=0)
    """How far the lower bound of its difference on held-out tasks may be below 0."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    min_episodes: int = Field(default=200, ge=1)
    """Rated episodes that it must have served as a canary."""
    min_users: int = Field(default=5, ge=2)
    """Users of whom they must be. An episode without a user counts as one of its own."""


class LearnSettings(Settings):
    """When traffic is trained on."""

    max_age: int = Field(default=4, ge=1)
    """Updates between the checkpoint that answered and the one that is trained; what is older is left out."""
    min_episodes: int = Field(default=256, ge=1)
    """Rated episodes without which nothing is trained."""
    corrections: bool = False
    """Whether corrected answers are sealed with the traffic, and trained by supervision."""
    reflect: Annotated[Literal["user", "run"] | None, BeforeValidator(whose_notes)] = None
    """Whether the policy reflects on conversations that people did not like or spoke about. `user`, or `on`:
    its reflections become notes for the same user. `run`: for everybody."""


class ServingLimits(Settings):
    """What one server answers."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of an answer; by default as many as the run samples in a turn."""
    in_flight: int = Field(default=64, ge=1)
    """Answers that are sampled at the same time: a call with `n` is so many. Further calls get 429."""


class ServingSettings(Settings):
    """All of the file."""

    keys_file: Path | None = None
    """YAML: the SHA-256 of a key -> `tenant`, and `requests_per_minute` if there is a limit. Without it, one
    key is made at start. A relative path begins where the settings' file is."""
    memory: ServedMemory = ServedMemory()
    log: LogSettings = LogSettings()
    episode: EpisodeSettings = EpisodeSettings()
    feedback: dict[str, Metric] = Field(
        default_factory=lambda: {
            "thumbs": Metric(values={"up": 1.0, "down": 0.0}),
            "stars": Metric(min=1.0, max=5.0),
        }
    )
    """Name of a metric -> how its value becomes a reward."""
    gate: GateSettings = GateSettings()
    learn: LearnSettings = LearnSettings()
    limits: ServingLimits = ServingLimits()

    @model_validator(mode="after")
    def _names_are_free(self) -> ServingSettings:
        taken = next((name for name in TEXTS if name in self.feedback), None)
        if taken is not None:
            raise ValueError(f"feedback: {taken} is a text that every server knows; use another name")
        return self


def load_serving_settings(path: Path | None) -> ServingSettings:
    """The settings in a file; the defaults where there is none.

    Raises ConfigError, which lists all problems, as `load_config` does.
    """
    if path is None:
        return ServingSettings()
    settings = load_settings(path, ServingSettings, "docs/serving.md has the settings")
    if settings.keys_file is None:
        return settings
    return settings.model_copy(update={"keys_file": path.parent / settings.keys_file})
