"""Whether an environment gives the tasks that a run asks for: checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import MessagesWarmStart
from erl_pipeline.plan.plan import Plan
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.stages.tasks.draw_tasks import draw_tasks
from erl_pipeline.stages.tasks.held_out import KeptApart, refuse_held_out
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS
from erl_pipeline.stages.training.warm_start import MESSAGES
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError

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
    if not plugin.splits.quick_to_list(environment):
        return
    training = plugin.training_tasks(environment, config.seed)
    held_out = plugin.held_out_tasks(environment, config.seed, config.evaluation.tasks)
    refuse_held_out(training, KeptApart(plugin, environment, config.seed, held_out))
    if drawn:
        weights = {name: part.weight for name, part in plugin.parts(environment).items()}
        draw_tasks(training, config.rollouts.tasks_per_iteration, config.seed, 1, weights)


def require_tasks_of(plan: Plan, config: RunConfig, store: ArtifactStore) -> Sequence[str]:
    """As `require_tasks`, for a plan; nothing is checked if its tasks are in the store already. Also raise
    InputError where a conversation of a warm start that is still to be made asks a question that is kept from
    training.

    Returns what of the environment's files is left out, in sentences.
    """
    warm_starts = [node.artifact_id for node in plan.nodes if node.stage is MESSAGES]
    if warm_starts and warm_starts[0] not in store.ids(MESSAGES.name):
        refuse_held_out_conversations(config)
    tasks = [node.artifact_id for node in plan.nodes if node.stage is PREPARE_TASKS]
    if not tasks or tasks[0] in store.ids(PREPARE_TASKS.name):
        return ()
    require_tasks(config, drawn=any(node.stage.output == "rollouts" for node in plan.nodes))
    return sentences_left_out(config)


def refuse_held_out_conversations(config: RunConfig) -> None:
    """Raise InputError, naming the row, where the file of the warm start asks a question that is kept from
    training. Only questions can be found in conversations, not boards."""
    from erl_pipeline.stages.training.conversations import read_conversations
    from storage.texts import StorableTexts

    warm_start = policy_traits(config.policy).warm_start
    assert isinstance(warm_start, MessagesWarmStart)
    path = Path(warm_start.file)
    plugin = plugins("environments")[config.environment.type].value
    kept = KeptApart(plugin, config.environment, config.seed, [])
    for number, messages in enumerate(read_conversations(path, StorableTexts()), start=1):
        same = kept.asked(messages)
        if same is not None:
            raise InputError(
                f"policy.warm_start.file: {path}, row {number} asks {same}: a policy would be evaluated on "
                "what it was trained on; leave the row out"
            )


def sentences_left_out(config: RunConfig) -> Sequence[str]:
    """What of the environment's files is no task, and why; nothing where it takes long to list the tasks."""
    plugin = plugins("environments")[config.environment.type].value
    if not plugin.splits.quick_to_list(config.environment):
        return ()
    sentences: Sequence[str] = plugin.splits.left_out(config.environment)
    return sentences
