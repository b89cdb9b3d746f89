"""Evaluations on request, outside the training of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from erl_pipeline.config.rollouts import StreamConfig
from erl_pipeline.config.run import RunConfig, require_streams
from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.plan import POLICY, Plan, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.runs.driver import OpenRun, carry_out
from erl_pipeline.runs.planning import stages_as_made
from erl_pipeline.stages.evaluation.evaluate import EVALUATE_ON_REQUEST
from erl_pipeline.stages.evaluation.evaluate_stream import plan_stream
from erl_pipeline.stages.rollouts.playing import TASKS
from erl_pipeline.stages.tasks.build_environment_files import built_inputs
from erl_pipeline.stages.tasks.prepare_tasks import plan_requested_tasks
from storage.artifacts.recipe import derive_seed
from storage.errors import ConfigError, InputError


def evaluate_on_request(
    opened: OpenRun,
    iteration: int,
    checkpoint_id: str,
    base_id: str | None,
    samples: int,
    *,
    count: int | None = None,
    file: Path | None = None,
) -> StageOutcome:
    """Evaluate a checkpoint of a run, on generated held-out tasks or on those of a file.

    Args:
        iteration: the checkpoint's iteration; 0 for the one with which the run began.
        base_id: the weights below the adapter, if the run trains one.
        samples: sampled attempts of each task besides the greedy one.
        count: number of held-out tasks; default: as in the run's own evaluations.
        file: a task file, instead of generated tasks.

    Raises InputError for a file that cannot be read, or whose tasks the environment refuses.
    """
    config = opened.config
    evaluation = config.evaluation.model_copy(
        update={"samples_per_task": samples, "tasks": count or config.evaluation.tasks}
    )
    config = config.model_copy(update={"evaluation": evaluation})
    sources = _with_file(read_sources(config), file)
    external = frozenset({checkpoint_id, base_id or checkpoint_id})
    planner = Planner(config, sources, external=external)
    digest = None if file is None else sources.files[str(file)]
    tasks = plan_requested_tasks(planner, digest, built_inputs(planner))
    bases = {} if base_id is None else {POLICY: base_id}
    state = RunState(tasks=tasks, models={POLICY: checkpoint_id}, initial={}, bases=bases)
    inputs = {**state.model_inputs(POLICY), TASKS: tasks}
    seed = derive_seed(config.seed, EVALUATE_ON_REQUEST.name)
    wanted = planner.add(
        EVALUATE_ON_REQUEST,
        inputs,
        iteration=iteration,
        seed=seed,
        index={"iteration": iteration},
        key=tasks,
    )
    found: list[StageOutcome] = []
    _carry_out(opened, Plan(tuple(planner.nodes), (state,)), found.append)
    return next(each for each in found if each.artifact_id == wanted)


def evaluate_stream_on_request(
    opened: OpenRun, iteration: int, checkpoint_id: str, base_id: str | None
) -> StageOutcome:
    """Evaluate a checkpoint of a run on streams of tasks in held-out realms, with the stream settings of its
    configuration or else the default ones.

    Args: as for `evaluate_on_request`.

    Raises ConfigError if streams are not possible in this run, such as with too few held-out realms.
    """
    config = with_streams(opened.config)
    planner = Planner(
        config, read_sources(config), external=frozenset({checkpoint_id, base_id or checkpoint_id})
    )
    bases = {} if base_id is None else {POLICY: base_id}
    state = RunState(tasks="", models={POLICY: checkpoint_id}, initial={}, bases=bases)
    wanted = plan_stream(planner, state, iteration, on_request=True)
    found: list[StageOutcome] = []
    _carry_out(opened, Plan(tuple(planner.nodes), (state,)), found.append)
    return next(each for each in found if each.artifact_id == wanted)


def _carry_out(opened: OpenRun, plan: Plan, on_outcome: Callable[[StageOutcome], None]) -> None:
    """Execute the plan of an evaluation; the run's stages make again what retention has removed."""
    makers = partial(stages_as_made, opened.store.uri, opened.run)
    carry_out(opened, plan, frozenset(), on_outcome, makers)


def with_streams(config: RunConfig) -> RunConfig:
    """The same configuration with streamed evaluation; with the default streams if it does not set them.

    Raises ConfigError if its environment or method cannot be evaluated in streams.
    """
    stream = config.evaluation.stream or StreamConfig()
    evaluation = config.evaluation.model_copy(update={"stream": stream})
    try:
        require_streams(config, stream)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return config.model_copy(update={"evaluation": evaluation})


def _with_file(sources: Sources, file: Path | None) -> Sources:
    if file is None:
        return sources
    try:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"task file {file} cannot be read: {error}") from error
    return sources.with_file(file, sha256)
