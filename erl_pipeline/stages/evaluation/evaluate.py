"""The stage that evaluates a checkpoint on held-out tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.names import HELD_OUT, MEMORY, TASKS
from erl_pipeline.stages.rollouts.counts import count_rollouts, replaced_texts
from erl_pipeline.stages.rollouts.playing import PlaySettings, play_episodes, play_settings
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources

EVALUATION = "evaluation.parquet"
WITH_MEMORY = "with_memory.parquet"
"""Greedy episodes of the tasks whose first attempt failed, played again with the memory."""


class EvaluationSettings(Settings):
    """What an evaluation depends on, besides the checkpoint and the tasks."""

    play: PlaySettings
    samples_per_task: int
    whole_episodes: bool


def plan_evaluation(planner: Planner, state: RunState, iteration: int, model: str = POLICY) -> str:
    """Plan first attempts of a checkpoint on the run's held-out tasks, without memory. Where whole episodes
    are asked for, plan these too, without memory and with the memory of the state."""
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
        retrieval = play.retrieval.model_copy(update={"withhold": 0.0})
    episode = play.episode
    if not whole_episodes:
        episode = plugins("methods")[config.method.type].value.first_attempt_settings(episode)
    play = play.model_copy(update={"episode": episode, "retrieval": retrieval})
    return EvaluationSettings(
        play=play,
        samples_per_task=config.evaluation.samples_per_task,
        whole_episodes=whole_episodes,
    )


def _evaluate(call: StageCall[EvaluationSettings]) -> StageResult:
    """Make greedy attempts at every task, and sampled ones where the settings ask; write rows and scores.

    A first attempt never sees memory, so an episode with memory differs only where its first attempt failed.
    These episodes are played again, and have a file of their own.
    """
    from erl_pipeline.stages.evaluation.scores import (
        SCORED_COLUMNS,
        greedy_outcomes,
        greedy_success_by_part,
        score_evaluation,
    )
    from storage.tables.trajectories import scan_trajectories, write_trajectories

    settings = call.settings
    tasks = read_tasks(call.inputs[TASKS], HELD_OUT, call.resources)
    samples, iteration = settings.samples_per_task, call.index["iteration"]
    call.progress.begin(len(tasks) * (1 + samples), "episodes")
    played = play_episodes(
        call,
        settings.play,
        tasks,
        range(1),
        iteration=iteration,
        run_seed=call.seed,
        temperature=0.0,
        first_only=not settings.whole_episodes,
        with_memory=False,
    )
    rows, plays = played.rows, [played]
    if samples:
        sampled = play_episodes(
            call,
            settings.play,
            tasks,
            range(1, 1 + samples),
            iteration=iteration,
            run_seed=call.seed,
            first_only=True,
            with_memory=False,
        )
        rows += sampled.rows
        plays.append(sampled)
    written = {EVALUATION: write_trajectories(call.folder / EVALUATION, rows)}
    first = scan_trajectories([call.folder / EVALUATION])
    remembering = None
    if MEMORY in call.inputs:
        solved = greedy_outcomes(first.select(SCORED_COLUMNS).collect())
        failed = [task for task in tasks if solved.get(task.task_id) is False]
        call.progress.begin(len(failed), "episodes with memory")
        again = play_episodes(
            call,
            settings.play,
            failed,
            # An index of its own, since ids are derived from it.
            range(1 + samples, 2 + samples),
            iteration=iteration,
            run_seed=call.seed,
            temperature=0.0,
        )
        written[WITH_MEMORY] = write_trajectories(call.folder / WITH_MEMORY, again.rows)
        remembering = scan_trajectories([call.folder / WITH_MEMORY])
        rows = [*rows, *again.rows]
        plays.append(again)
    memory = call.inputs.get(MEMORY)
    by_part = {}
    if plugins("environments")[settings.play.environment.type].value.parts(settings.play.environment):
        by_part = greedy_success_by_part(first)
    return StageResult(
        counters={**count_rollouts(rows), **replaced_texts(plays)},
        metrics={**score_evaluation(first, remembering).metrics(), **by_part},
        rows=written,
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        memory_version=None if memory is None else memory.manifest.artifact_id,
        determinism=played.determinism,
    )


EVALUATE = Stage(
    name="evaluate",
    version=6,
    output="evaluation",
    settings=EvaluationSettings,
    compute=_evaluate,
    slice=_slice,
    code=("environment", "method", "engine"),
    needs="device",
)

EVALUATE_ON_REQUEST = replace(EVALUATE, name="evaluate_on_request")
"""An evaluation that somebody asked for, outside the training."""
