"""Checks for settings of a run that exclude each other with ExGRPO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.rollouts import UniformSelection
from erl_pipeline.methods.exgrpo.settings import ExgrpoConfig, most_replayed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_possible(config: RunConfig) -> None:
    """Raise ValueError, which names both settings, where nothing would be replayed, or replay lacks what it
    needs."""
    method, rollouts = config.method, config.rollouts
    assert isinstance(method, ExgrpoConfig)
    if method.replay is None:
        return
    if not isinstance(rollouts.selection, UniformSelection):
        raise ValueError(
            f"rollouts.selection.type: {rollouts.selection.type}; with method.replay the only "
            "allowed selection is uniform, since replay chooses tasks itself; or set method.replay: off"
        )
    if rollouts.group_size < 2:
        raise ValueError(
            f"rollouts.group_size: {rollouts.group_size}; with method.replay a group is one stored attempt "
            "and fresh ones, so that at least 2 are needed; or set method.replay: off"
        )
    if most_replayed(method.replay.share, rollouts.tasks_per_iteration) < 1:
        raise ValueError(
            f"method.replay.share: {method.replay.share:g} of rollouts.tasks_per_iteration: "
            f"{rollouts.tasks_per_iteration} is less than one task; raise one of them, or "
            "set method.replay: off"
        )
    if config.pipeline.lag and method.replay.importance == "off":
        raise ValueError(
            f"pipeline.lag: {config.pipeline.lag}; with method.replay.importance: off nothing corrects for "
            "the older policy; set importance to behaviour or trainer, or lag to 0"
        )
    _require_young(config, method.replay.max_age)


def _require_young(config: RunConfig, replay_age: int | None) -> None:
    """Raise ValueError where a replayed attempt may be too old for an update that does not drop it. Its age
    is the iterations since it was stored, plus the lag of the policy that sampled it."""
    pipeline = config.pipeline
    if pipeline.max_age is None or pipeline.too_old == "drop":
        return
    if replay_age is None or replay_age + pipeline.lag > pipeline.max_age:
        most = pipeline.max_age - pipeline.lag
        allowed = f"1 to {most}" if most > 0 else "method.replay: off"
        raise ValueError(
            f"method.replay.max_age: {'null' if replay_age is None else replay_age}; allowed with "
            f"pipeline.max_age: {pipeline.max_age}, pipeline.lag: {pipeline.lag} and pipeline.too_old: "
            f"wait is {allowed}, since older attempts would be replayed; or set pipeline.too_old: drop"
        )
