"""What the tables and reports of a run show: the columns of its method, and of what it is evaluated on."""

from __future__ import annotations

from erl_pipeline.config.installed import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.column import Column
from erl_pipeline.runs.config import run_config
from erl_pipeline.stages.columns import STREAMED
from erl_pipeline.stages.training.warm_start import warm_start_columns
from storage.runs.origin import IMPORTED
from storage.runs.run import Run


def method_columns(config: RunConfig) -> tuple[Column, ...]:
    """The columns of a configuration's warm start, of its method and, with streamed evaluation, of that; from
    left to right."""
    streamed = () if config.evaluation.stream is None else STREAMED
    own = plugins("methods")[config.method.type].value.columns(config.method)
    return (*warm_start_columns(config), *own, *streamed)


def run_columns(run: Run) -> tuple[Column, ...]:
    """The columns of a stored run; none for one that holds imported trajectories alone.

    Raises ConfigError when this version of the program does not know the run's settings.
    """
    return () if IMPORTED in run.config else method_columns(run_config(run))
