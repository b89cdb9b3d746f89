"""The stage that evaluates a checkpoint on held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.memory import state_evaluated
from erl_pipeline.stages.names import HELD_OUT, MEMORY, TASKS
from erl_pipeline.stages.rollouts.counts import count_rollouts, replaced_texts
from erl_pipeline.stages.rollouts.playing import (
    PlaySettings,
    play_settings,
    play_with_checkpoint,
    write_beside_attempts,
)
from erl_pipeline.stages.tasks import prepare_tasks
from erl_pipeline.stages.tasks.environment_stages import built_inputs
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError
from storage.texts import StorableTexts

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources

EVALUATION = "evaluation.parquet"
WITH_MEMORY = "with_memory.parquet"
"""Greedy episodes of the tasks whose first attempt failed, played again with the memory."""


class EvaluationSettings(Settings):
    """What an evaluation depends on, besides the checkpoint and the tasks."""

    play: PlaySettings
    samples_per_task: int
    whole_episodes: bool
    all_sequences: bool = Field(default=False, exclude_if=lambda kept: not kept)
    """Whether agents play, of whose attempts all token sequences and calls are kept. Without agents there is
    nothing of the kind, so that it stands in no recipe."""


def plan_evaluation(planner: Planner, state: RunState, iteration: int, model: str = POLICY) -> str:
    """Plan first attempts of a checkpoint on the run's held-out tasks, without memory. Where whole episodes
    are asked for, plan these too, without memory and with the memory of the state."""
    state = state_evaluated(planner, state, iteration, EVALUATE.name)
    inputs = evaluation_inputs(planner, state, state.tasks, model)
    seed = derive_seed(planner.config.seed, EVALUATE.name)
    index = {"iteration": iteration}
    return planner.add(EVALUATE, inputs, iteration=iteration, seed=seed, index=index)


def evaluation_inputs(planner: Planner, state: RunState, tasks: str, model: str = POLICY) -> dict[str, str]:
    """The inputs of an evaluation on these tasks; they include the memory only where whole episodes are
    played."""
    inputs = {**state.model_inputs(model), TASKS: tasks}
    if planner.config.evaluation.whole_episodes and MEMORY in state.memories:
        inputs[MEMORY] = state.memories[MEMORY]
    return inputs


def _slice(config: RunConfig, _sources: Sources) -> EvaluationSettings:
    play, whole_episodes = play_settings(config), config.evaluation.whole_episodes
    retrieval = None
    # Without retrieval from a memory, the settings of its search change nothing.
    if whole_episodes and play.retrieval is not None:
        # Every task is played with memory and without, so it is withheld from no episode with memory.
        retrieval = play.retrieval.model_copy(update={"withhold": 0.0, "withdrawal": None})
    episode = play.episode
    if not whole_episodes:
        episode = plugins("methods")[config.method.type].value.first_attempt_settings(episode)
    play = play.model_copy(update={"episode": episode, "retrieval": retrieval})
    return EvaluationSettings(
        play=play,
        samples_per_task=config.evaluation.samples_per_task,
        whole_episodes=whole_episodes,
        all_sequences=plugins("environments")[config.environment.type].value.has_agents(config.environment),
    )


def _evaluate(call: StageCall[EvaluationSettings]) -> StageResult:
    """Make greedy attempts at every task, and sampled ones where the settings ask; write rows and scores.

    A first attempt never sees memory, so an episode with memory differs only where its first attempt failed.
    These episodes are played again, and have a file of their own.
    """
    from erl_pipeline.stages.evaluation import scores
    from storage.tables.trajectories import scan_trajectories, write_trajectories

    settings = call.settings
    tasks = prepare_tasks.read_tasks(call.inputs[TASKS], HELD_OUT, call.resources)
    samples = settings.samples_per_task
    call.progress.begin(len(tasks) * (1 + samples), "episodes")
    play = partial(
        play_with_checkpoint, call, settings.play, iteration=call.index["iteration"], run_seed=call.seed
    )
    first_only = not settings.whole_episodes
    played = play(tasks, range(1), temperature=0.0, first_only=first_only, with_memory=False)
    rows, plays = played.rows, [played]
    if samples:
        plays.append(play(tasks, range(1, 1 + samples), first_only=True, with_memory=False))
        rows += plays[-1].rows
    written = {EVALUATION: write_trajectories(call.folder / EVALUATION, rows)}
    first = scan_trajectories([call.folder / EVALUATION])
    remembering = None
    if MEMORY in call.inputs:
        solved = scores.greedy_outcomes(first.select(scores.SCORED_COLUMNS).collect())
        failed = [task for task in tasks if solved.get(task.task_id) is False]
        call.progress.begin(len(failed), "episodes with memory")
        # An index of its own, since ids are derived from it.
        again = play(failed, range(1 + samples, 2 + samples), temperature=0.0)
        written[WITH_MEMORY] = write_trajectories(call.folder / WITH_MEMORY, again.rows)
        remembering = scan_trajectories([call.folder / WITH_MEMORY])
        rows = [*rows, *again.rows]
        plays.append(again)
    if settings.all_sequences:
        written |= write_beside_attempts(call.folder, plays)
    memory = call.inputs.get(MEMORY)
    by_part = {}
    if plugins("environments")[settings.play.environment.type].value.parts(settings.play.environment):
        by_part = scores.greedy_success_by_part(first)
    return StageResult(
        counters={**count_rollouts(rows), **replaced_texts(plays)},
        metrics={**scores.score_evaluation(first, remembering).metrics(), **by_part},
        rows=written,
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        memory_version=None if memory is None else memory.manifest.artifact_id,
        determinism=played.determinism,
        environment=played.environment,
    )


EVALUATE = Stage(
    name="evaluate",
    version=13,
    output="evaluation",
    settings=EvaluationSettings,
    compute=_evaluate,
    slice=_slice,
    code=("environment", "method", "engine"),
    needs="sampling",
)

EVALUATE_ON_REQUEST = replace(EVALUATE, name="evaluate_on_request")
"""An evaluation that somebody asked for, outside the training."""


def _test_tasks(call: StageCall[prepare_tasks.TaskSettings]) -> StageResult:
    """Write the environment's test tasks.

    Raises InputError where there are none, or where one is the problem of a training or a held-out task.
    """
    settings = call.settings
    plugin, environment = prepare_tasks.located_environment(call)
    texts = StorableTexts()
    tasks = prepare_tasks.storable_tasks(plugin.splits.test_tasks(environment, settings.seed), texts)
    if not tasks:
        raise InputError(no_test_split(environment.type, plugin.splits.test_needs))
    for name, others in (
        ("training", plugin.training_tasks(environment, settings.seed)),
        ("held-out", plugin.held_out_tasks(environment, settings.seed, settings.held_out)),
    ):
        _require_apart(plugin.splits.task_key, tasks, name, others)
    lines = "".join(prepare_tasks.task_line(task) + "\n" for task in tasks)
    (call.folder / HELD_OUT).write_text(lines, encoding="utf-8")
    return StageResult(counters={"test_tasks": len(tasks), **texts.counters()})


TEST_TASKS = Stage(
    name="test_tasks",
    version=1,
    output="tasks",
    settings=prepare_tasks.TaskSettings,
    compute=_test_tasks,
    slice=prepare_tasks.PREPARE_TASKS.slice,
    code=("environment",),
)

EVALUATE_ON_TEST = replace(EVALUATE, name="evaluate_on_test")
"""An evaluation on tasks that neither training nor the tuning of settings has seen."""


def plan_test_tasks(planner: Planner) -> str:
    """Plan the tasks of the third split."""
    return planner.add(TEST_TASKS, built_inputs(planner), iteration=None)


def plan_test_evaluation(planner: Planner, state: RunState, iteration: int, tasks: str) -> str:
    """Plan first attempts of a checkpoint at test tasks, as an evaluation makes them at held-out ones."""
    return planner.add(
        EVALUATE_ON_TEST,
        evaluation_inputs(planner, state, tasks),
        iteration=iteration,
        settings=planner.settings(EVALUATE),
        seed=derive_seed(planner.config.seed, EVALUATE_ON_TEST.name),
        index={"iteration": iteration},
    )


def no_test_split(environment: str, needed: str) -> str:
    """What to tell a user whose settings give no test tasks."""
    advice = f"set environment.{needed}" if needed else f"environment {environment} offers no such split"
    return (
        "a comparison reports on a third split of the tasks, which no setting was tuned on, and there is "
        f"none; {advice}"
    )


def _require_apart(
    task_key: Callable[[Mapping[str, Any]], str], tasks: Sequence[Task], name: str, others: Sequence[Task]
) -> None:
    """Raise InputError for a test task whose problem is also one of the others."""
    known = {task_key(task.payload): task.task_id for task in others}
    for task in tasks:
        twin = known.get(task_key(task.payload))
        if twin is not None:
            raise InputError(
                f"test task {task.task_id} is the same problem as the {name} task {twin}; nothing can be "
                "reported on it"
            )
