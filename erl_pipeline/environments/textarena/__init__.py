"""The solo games of TextArena, over several turns, with their own hints."""

from erl_pipeline.environments.interface import Dependencies, EnvironmentPlugin, Splits
from erl_pipeline.environments.textarena import environment
from erl_pipeline.environments.textarena.environment import TextArenaConfig

ENVIRONMENT = EnvironmentPlugin(
    settings=TextArenaConfig,
    training_tasks=environment.training_tasks,
    held_out_tasks=environment.held_out_tasks,
    open=environment.open_textarena,
    splits=Splits(
        test_tasks=environment.test_tasks,
        test_needs="test_tasks: 64",
        task_key=environment.start_key,
        kept_split=environment.kept_split,
    ),
    dependencies=Dependencies(packages=("erl_pipeline.environments.tasks",), extra="textarena"),
)
