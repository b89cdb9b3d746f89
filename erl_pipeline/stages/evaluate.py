"""The stage that evaluates a checkpoint on held-out tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.playing import TASKS, PlaySettings, play_episodes, play_settings
from erl_pipeline.stages.prepare_tasks import HELD_OUT, read_tasks
from erl_pipeline.stages.rollout_counts import count_rollouts
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources

EVALUATION = "evaluation.parquet"


class EvaluationSettings(Settings):
    """What an evaluation follows from, beside the checkpoint and the tasks."""

    play: PlaySettings
    samples_per_task: int
    whole_episodes: bool


def plan_evaluation(planner: Planner, state: RunState, iteration: int, model: str = POLICY) -> str:
    """First attempts of a checkpoint on the run's held-out tasks, without memory."""
    inputs = {**state.model_inputs(model), TASKS: state.tasks}
    seed = derive_seed(planner.config.seed, EVALUATE.name)
    index = {"iteration": iteration}
    return planner.add(EVALUATE, inputs, iteration=iteration, seed=seed, index=index)


def _slice(config: RunConfig, _sources: Sources) -> EvaluationSettings:
    return EvaluationSettings(
        # No memory is retrieved from, so how it is searched changes nothing.
        play=play_settings(config).model_copy(update={"retrieval": None}),
        samples_per_task=config.evaluation.samples_per_task,
        whole_episodes=config.evaluation.whole_episodes,
    )


def _evaluate(call: StageCall[EvaluationSettings]) -> StageResult:
    """Greedy attempts at every task, and sampled ones where the settings ask; write rows and scores."""
    from erl_pipeline.stages.scores import score_evaluation
    from storage.tables.trajectories import scan_trajectories, write_trajectories

    settings = call.settings
    tasks = read_tasks(call.inputs[TASKS], HELD_OUT, call.resources)
    samples = settings.samples_per_task
    call.progress.begin(len(tasks) * (1 + samples), "episodes")
    played = play_episodes(
        call,
        settings.play,
        tasks,
        range(1),
        iteration=call.index["iteration"],
        run_seed=call.seed,
        temperature=0.0,
        first_only=not settings.whole_episodes,
    )
    rows = played.rows
    if samples:
        rows += play_episodes(
            call,
            settings.play,
            tasks,
            range(1, 1 + samples),
            iteration=call.index["iteration"],
            run_seed=call.seed,
            first_only=True,
        ).rows
    write_trajectories(call.folder / EVALUATION, rows)
    scores = score_evaluation(scan_trajectories([call.folder / EVALUATION]))
    return StageResult(
        counters=count_rollouts(rows),
        metrics=scores.metrics(),
        rows={EVALUATION: len(rows)},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        determinism=played.determinism,
    )


EVALUATE = Stage(
    name="evaluate",
    version=2,
    output="evaluation",
    settings=EvaluationSettings,
    compute=_evaluate,
    slice=_slice,
    code=("environment", "method"),
    needs="device",
)

EVALUATE_ON_REQUEST = replace(EVALUATE, name="evaluate_on_request")
"""An evaluation that somebody asked for, outside the training."""
