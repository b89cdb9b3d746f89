"""Whether this machine has what a run needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.plugins.installed import plugins

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_ready_here(config: RunConfig) -> None:
    """Raise `ConfigError` if a run would be computed on this machine, and the machine lacks what its trainer
    or its engine needs. Nothing is checked for a runner that computes on other machines."""
    if plugins("runners")[config.runner.type].value.elsewhere:
        return
    plugins("trainers")[config.trainer.type].value.require_here(config.trainer)
    plugins("engines")[config.engine.type].value.require_here(config.engine)
