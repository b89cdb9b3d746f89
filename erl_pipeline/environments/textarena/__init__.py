"""The solo games of TextArena, over several turns, with their own hints."""

from __future__ import annotations

from erl_pipeline.environments.dependencies import Dependencies
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.splits import Splits
from erl_pipeline.environments.textarena import environment, tasks
from erl_pipeline.environments.textarena.settings import TextArenaConfig

ENVIRONMENT = EnvironmentPlugin(
    settings=TextArenaConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_textarena,
    splits=Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_tasks: 64",
        task_key=tasks.start_key,
        kept_split=tasks.kept_split,
    ),
    dependencies=Dependencies(extra="textarena"),
)
