"""Whether this machine has the devices that a run's trainer needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.plugins.installed import plugins

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_devices_here(config: RunConfig) -> None:
    """Raise `ConfigError` if a run would be trained on this machine, and its trainer needs more devices than
    the machine has. Nothing is checked for a runner that computes on other machines."""
    if not plugins("runners")[config.runner.type].value.elsewhere:
        plugins("trainers")[config.trainer.type].value.require_here(config.trainer)
