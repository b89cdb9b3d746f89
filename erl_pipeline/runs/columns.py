"""The columns that the tables and reports of a run show: those of its method and of its evaluations."""

from __future__ import annotations

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.column import Column
from erl_pipeline.runs.config import readable_config
from erl_pipeline.stages.columns import NOT_SCORED_COLUMNS, with_reward
from erl_pipeline.stages.training.warm_start import warm_start_columns
from storage.runs.origin import IMPORTED
from storage.runs.run import Run


def method_columns(config: RunConfig) -> tuple[Column, ...]:
    """The columns of a configuration, from left to right: those of its warm start, of its method, and of
    what was not scored. Beside the method's first success rate is the mean reward."""
    own = plugins("methods")[config.method.type].value.columns(config.method)
    return (*warm_start_columns(config), *with_reward(own), *NOT_SCORED_COLUMNS)


def run_columns(run: Run) -> tuple[Column, ...]:
    """The columns of a stored run; none for a run that holds only imported trajectories.

    Raises ConfigError when this version of the program does not know the run's settings.
    """
    return () if IMPORTED in run.config else method_columns(readable_config(run))
