"""Which runs can tell what the stages of a configuration take: those that train the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GROUPS = ("policy", "environment", "trainer")
_STARTS = ("cold_start", "warm_start")


def same_model(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs' settings give a policy of the same architecture, precision and adapter. How it is
    trained before the first iteration does not count."""
    models = [_model(settings) for settings in (one, other)]
    return models[0] is not None and models[0] == models[1]


def groups_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of policy, environment and trainer have the same settings."""
    return tuple(group for group in _GROUPS if one.get(group) == other.get(group))


def _model(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that say which model a run trains; None for a run without a policy."""
    policy = settings.get("policy")
    if not isinstance(policy, Mapping):
        return None
    return {key: value for key, value in policy.items() if key not in _STARTS}
