"""Evaluations outside the training of a run: on request, and on the test split."""

import hashlib
from functools import partial
from pathlib import Path

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import POLICY, Plan, RunState, StageKey
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.runs.driver import OpenRun, execute_run
from erl_pipeline.runs.planning import stages_as_made
from erl_pipeline.stages.evaluation import evaluate
from erl_pipeline.stages.names import TASKS
from erl_pipeline.stages.tasks.environment_stages import built_inputs
from erl_pipeline.stages.tasks.prepare_tasks import plan_requested_tasks
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError


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
    seed = derive_seed(config.seed, evaluate.EVALUATE_ON_REQUEST.name)
    wanted = planner.add(
        evaluate.EVALUATE_ON_REQUEST,
        inputs,
        iteration=iteration,
        seed=seed,
        index={"iteration": iteration},
        key=tasks,
    )
    return execute_on_request(opened, Plan(tuple(planner.nodes), (state,)), wanted)


def execute_on_request(opened: OpenRun, plan: Plan, wanted: str) -> StageOutcome:
    """Execute the plan of an evaluation; returns the outcome of the artifact `wanted`. The run's stages make
    again what retention has removed."""
    found: list[StageOutcome] = []
    makers = partial(stages_as_made, opened.store.uri, opened.run)
    execute_run(opened, plan, frozenset(), found.append, makers)
    return next(each for each in found if each.artifact_id == wanted)


def _with_file(sources: Sources, file: Path | None) -> Sources:
    if file is None:
        return sources
    try:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"task file {file} cannot be read: {error}") from error
    return sources.with_file(file, sha256)


def plan_on_test(config: RunConfig, sources: Sources, trained: Plan) -> Plan:
    """Plan evaluations on the test tasks after each iteration that has one on the held-out tasks."""
    states = {
        iteration: state
        for iteration, state in enumerate(trained.states)
        if StageKey(iteration, evaluate.EVALUATE.name, "") in trained.by_place
    }
    checkpoints = {state.models[POLICY] for state in states.values()}
    bases = {each for state in states.values() for each in state.bases.values()}
    memories = {each for state in states.values() for each in state.memories.values()}
    planner = Planner(config, sources, external=frozenset(checkpoints | bases | memories))
    tasks = evaluate.plan_test_tasks(planner)
    for iteration, state in states.items():
        evaluate.plan_test_evaluation(planner, state, iteration, tasks)
    return Plan(tuple(planner.nodes), trained.states)


def evaluate_on_test(opened: OpenRun, trained: Plan) -> None:
    """Execute these evaluations for a run whose training is done; what is committed is reused."""
    plan = plan_on_test(opened.config, read_sources(opened.config), trained)
    execute_run(opened, plan, frozenset(), makers=lambda: trained.nodes)
