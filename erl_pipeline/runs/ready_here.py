"""Whether this machine has what a run needs: devices for its trainer, and a list of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.generation import VllmEngineConfig
from erl_pipeline.config.plugins.installed import plugins

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_ready_here(config: RunConfig) -> None:
    """Raise `ConfigError` if a run would be computed on this machine, and its trainer needs more devices than
    the machine has, or its `engine.server_list` cannot be used. Nothing is checked for a runner that computes
    on other machines."""
    if plugins("runners")[config.runner.type].value.elsewhere:
        return
    plugins("trainers")[config.trainer.type].value.require_here(config.trainer)
    if isinstance(config.engine, VllmEngineConfig) and config.engine.server_list is not None:
        # aiohttp takes a while to import.
        from erl_pipeline.engines.vllm.server_list import read_server_list

        read_server_list(config.engine.server_list)
