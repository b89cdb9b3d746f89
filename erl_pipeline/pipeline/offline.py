"""Training on rollouts that are stored, with none of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.iteration import IterationState
from erl_pipeline.pipeline.outcome import DirectRunner, StageRunner
from erl_pipeline.pipeline.resumption import go_over, newest_whole_iteration
from erl_pipeline.pipeline.run_state import latest_checkpoint
from erl_pipeline.pipeline.stored_run import PREPARATIONS, StoredRun
from erl_pipeline.stages.bootstrap import bootstrap
from erl_pipeline.stages.build_distillation import build_distillation
from erl_pipeline.stages.evaluate import evaluate
from erl_pipeline.stages.fine_tune import fine_tune
from erl_pipeline.stages.measure_staleness import measure_staleness
from erl_pipeline.stages.prepare_tasks import prepare_tasks
from erl_pipeline.stages.update_policy import update_policy
from storage.errors import ConfigError, InputError
from storage.runs.origin import OfflineOrigin
from storage.runs.run import RunStore


def require_correction(config: RunConfig) -> None:
    """Raise ConfigError when the objective takes stored data for the policy's own."""
    if not isinstance(config.objective.correction, DecoupledCorrection):
        raise ConfigError(
            "objective.correction.type: bypass cannot be trained offline: it takes the ratio against the "
            "policy that sampled, so that on old data most tokens lie outside the clip range from the first "
            "step and are left out in silence; use decoupled, which weighs each token by how likely the "
            "policy at hand makes it"
        )


def train_offline(
    context: RunContext, origin: OfflineOrigin, iterations: int, runner: StageRunner, check: bool = False
) -> IterationState:
    """One iteration for each stored one, in order: measure staleness, update, distil, fine-tune, evaluate.

    The KL term, where it is on, refers to the checkpoint that training begins with. Nothing is generated
    but the attempts of an evaluation, and no memory is kept.

    Raises:
        ConfigError: the objective has no importance correction.
        InputError: the stored run lacks an iteration, its rows are not this policy's, or more iterations
            are asked for than there are.
    """
    require_correction(context.config)
    if iterations > origin.iterations:
        raise InputError(
            f"run {context.run.name} has the stored rollouts of {origin.iterations} iterations of "
            f"{origin.run}; it cannot go on to {iterations}"
        )
    stored = StoredRun(RunStore(context.store.uri).open(origin.run))
    whole = 0 if check else newest_whole_iteration(context, iterations)
    if whole:
        going_over = partial(_go_over, context, origin, stored, whole, whole == iterations)
        state = go_over(context, whole, going_over)
        if state is not None:
            return _go_on(context, origin, stored, range(whole + 1, iterations + 1), state, runner)
    state = _begin(context, origin, stored, runner)
    return _go_on(context, origin, stored, range(1, iterations + 1), state, runner)


def _go_over(
    context: RunContext, origin: OfflineOrigin, stored: StoredRun, iteration: int, last: bool
) -> IterationState:
    """The stages of an iteration that is whole."""
    runner = DirectRunner()
    state = _begin(context, origin, stored, runner)
    if iteration > 1:
        checkpoint = latest_checkpoint(context.stages(), iteration - 1)
        assert checkpoint is not None
        state = replace(state, checkpoint_id=checkpoint.artifact_id)
    return _run_iteration(context, origin, stored, iteration, state, runner, last)


def _go_on(
    context: RunContext,
    origin: OfflineOrigin,
    stored: StoredRun,
    iterations: range,
    state: IterationState,
    runner: StageRunner,
) -> IterationState:
    for iteration in iterations:
        last = iteration == iterations[-1]
        body = partial(_run_iteration, context, origin, stored, iteration, state, runner, last)
        state = runner.iteration(iteration, body)
    return state


def _begin(
    context: RunContext, origin: OfflineOrigin, stored: StoredRun, runner: StageRunner
) -> IterationState:
    """Tasks and first checkpoint, which is evaluated: those of the stored run, or, where it has none, of the
    configuration."""
    if stored.find(0, "bootstrap") is None:
        tasks = runner.call("prepare_tasks", prepare_tasks, context).artifact_id
        first = runner.call("bootstrap", bootstrap, context).artifact_id
    else:
        context.share([stored.entry(0, stage) for stage in PREPARATIONS])
        tasks = stored.entry(0, "prepare_tasks").artifact_id
        first = stored.entry(0, "bootstrap").artifact_id
    first = origin.checkpoint_id or first
    if origin.evaluates:
        runner.call("evaluate", evaluate, context, 0, first, tasks)
    return IterationState(tasks, first, first, None)


def _run_iteration(
    context: RunContext,
    origin: OfflineOrigin,
    stored: StoredRun,
    iteration: int,
    state: IterationState,
    runner: StageRunner,
    last: bool,
) -> IterationState:
    stored_iteration = origin.first_iteration + iteration - 1
    rollouts = stored.entry(stored_iteration, "generate_rollouts")
    taken = [*stored.shards(stored_iteration), rollouts]
    context.share([entry.model_copy(update={"iteration": iteration}) for entry in taken])
    checkpoint = state.checkpoint_id
    runner.call("measure_staleness", measure_staleness, context, iteration, checkpoint, rollouts.artifact_id)
    checkpoint = runner.call(
        "update_policy",
        update_policy,
        context,
        iteration,
        checkpoint,
        rollouts.artifact_id,
        state.reference_id,
    ).artifact_id
    if context.config.distillation is not None:
        dataset = runner.call(
            "build_distillation", build_distillation, context, iteration, rollouts.artifact_id
        )
        checkpoint = runner.call(
            "fine_tune", fine_tune, context, iteration, checkpoint, dataset.artifact_id
        ).artifact_id
    if origin.evaluates and (last or iteration % context.config.evaluation.every == 0):
        runner.call("evaluate", evaluate, context, iteration, checkpoint, state.tasks_id)
    return IterationState(state.tasks_id, state.reference_id, checkpoint, None)
