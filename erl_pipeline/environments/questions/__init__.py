"""Questions with a checkable answer, from a file of JSON lines, scored by any installed scorer."""

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Dependencies, EnvironmentPlugin, GoldAnswers, Splits
from erl_pipeline.environments.questions import environment, tasks
from erl_pipeline.environments.questions.settings import QuestionsConfig

ENVIRONMENT = EnvironmentPlugin(
    settings=QuestionsConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_question,
    splits=Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_share: 0.1",
        task_key=tasks.task_key,
        kept_split=tasks.kept_split,
        from_file=tasks.tasks_from_file,
    ),
    dependencies=Dependencies(
        files=tasks.files,
        packages=("erl_pipeline.environments.single_turn", "erl_pipeline.environments.tasks"),
        used_packages=lambda config: plugins("scorers")[config.scorer].packages,
    ),
    gold_answers=GoldAnswers(environment.gold_answer, environment.wrong_answers),
)
