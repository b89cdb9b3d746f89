"""The tasks of reasoning-gym: generated questions, each with a scorer of its own."""

from erl_pipeline.environments.interface import Dependencies, EnvironmentPlugin, GoldAnswers, Splits
from erl_pipeline.environments.reasoning_gym import environment, tasks
from erl_pipeline.environments.reasoning_gym.settings import ReasoningGymConfig

ENVIRONMENT = EnvironmentPlugin(
    settings=ReasoningGymConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_reasoning_gym,
    splits=Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_tasks: 256",
        task_key=tasks.question_key,
        kept_split=tasks.kept_split,
    ),
    dependencies=Dependencies(
        packages=("erl_pipeline.environments.single_turn", "erl_pipeline.environments.tasks"),
        extra="reasoning-gym",
    ),
    gold_answers=GoldAnswers(environment.gold_answer),
)
