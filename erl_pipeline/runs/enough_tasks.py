"""Whether an environment gives the tasks that a run asks for: checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.plan.plan import Plan
from erl_pipeline.stages.tasks.draw_tasks import draw_tasks
from erl_pipeline.stages.tasks.held_out import refuse_held_out
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS
from storage.artifacts.store import ArtifactStore

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_tasks(config: RunConfig, *, drawn: bool = True) -> None:
    """Raise InputError or ConfigError if there are fewer training or held-out tasks than are asked for, or if
    one of them is wrong. Nothing is checked where it takes long to list the tasks.

    Args:
        drawn: whether iterations draw tasks; those of a run on stored rollouts do not.
    """
    plugin = plugins("environments")[config.environment.type].value
    environment = config.environment
    if not plugin.quick_to_list(environment):
        return
    training = plugin.training_tasks(environment, config.seed)
    refuse_held_out(
        training, plugin.held_out_tasks(environment, config.seed, config.evaluation.tasks), plugin
    )
    if drawn:
        weights = {name: part.weight for name, part in plugin.parts(environment).items()}
        draw_tasks(training, config.rollouts.tasks_per_iteration, config.seed, 1, weights)


def require_tasks_of(plan: Plan, config: RunConfig, store: ArtifactStore) -> Sequence[str]:
    """As `require_tasks`, for a plan; nothing is checked if its tasks are in the store already.

    Returns what of the environment's files is left out, in sentences.
    """
    tasks = [node.artifact_id for node in plan.nodes if node.stage is PREPARE_TASKS]
    if not tasks or tasks[0] in store.ids(PREPARE_TASKS.name):
        return ()
    require_tasks(config, drawn=any(node.stage.output == "rollouts" for node in plan.nodes))
    return sentences_left_out(config)


def sentences_left_out(config: RunConfig) -> Sequence[str]:
    """What of the environment's files is no task, and why; nothing where it takes long to list the tasks."""
    plugin = plugins("environments")[config.environment.type].value
    if not plugin.quick_to_list(config.environment):
        return ()
    sentences: Sequence[str] = plugin.left_out(config.environment)
    return sentences
