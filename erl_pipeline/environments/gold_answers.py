"""Known solutions of an environment's tasks, with which `env qualify` checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from erl_pipeline.config.base import PluginSettings

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Task

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


@dataclass(frozen=True)
class GoldAnswers(Generic[SettingsT]):
    """Right and wrong replies to a task. Nothing that they give ever reaches a policy."""

    right: Callable[[SettingsT, Task], str | Sequence[str] | None]
    """A perfect attempt; `env qualify` checks that it gets reward 1. It is what the policy would say in each
    turn, word for word as `step` reads it (a tool call with its `<tool_call>` around it); a single text is an
    attempt of one turn. The task is one that these settings gave. The function may look into the payload,
    needs no state, and gives the same for the same task. None for a task without a known solution."""
    wrong: Callable[[SettingsT, Task], Sequence[str]] | None = None
    """Replies that resemble the right one and are wrong; `env qualify` checks that an attempt which makes
    one of them gets less than reward 1. None where the environment has none to offer."""
