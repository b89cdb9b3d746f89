"""Whole plans: of a run from its beginning, of a branch of another run, of training on stored rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import changed_settings
from erl_pipeline.plan.forecast import recipe_differences
from erl_pipeline.plan.plan import POLICY, Plan, PlannedStage, RunState, StageKey, stage_names
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import NO_CODE, Sources
from erl_pipeline.plan.stage import Stage
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.stages.evaluation.evaluate import EVALUATE, plan_evaluation
from erl_pipeline.stages.extractor.plan import plan_extractor, plan_lessons
from erl_pipeline.stages.memory import FORGET_MEMORY
from erl_pipeline.stages.rollouts.reflect_on_feedback import plan_reflections
from erl_pipeline.stages.tasks.environment_stages import built_inputs
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS
from erl_pipeline.stages.training.corrections import plan_corrections
from erl_pipeline.stages.training.measure_staleness import MEASURE_STALENESS
from erl_pipeline.stages.training.replay.plan import plan_experience
from storage.artifacts.recipe import Recipe
from storage.errors import ConfigError, InputError
from storage.memory.versions import ForgetRequest
from storage.runs.documents import BranchOrigin, OfflineOrigin

_EXAMPLES = 3
_TASKS, _FIRST, _ROLLOUTS = "tasks", "first policy", "rollouts"
"""What stands for the artifacts before an iteration where only its shape is planned."""


def plan_run(
    config: RunConfig,
    sources: Sources,
    *,
    iterations: int | None = None,
    requests: Mapping[int, tuple[ForgetRequest, ...]] | None = None,
    recorded: Mapping[StageKey, str] | None = None,
    partial: bool = False,
) -> Plan:
    """The plan of a run that does not begin from another.

    Args:
        iterations: number of iterations; default: the configuration's.
        requests, recorded, partial: see `Planner`.
    """
    planner = Planner(config, sources, requests=requests, recorded=recorded, partial=partial)
    states = [_begin(planner)]
    _plan_evaluation(planner, states[0], 0, last=False)
    target = config.iterations if iterations is None else iterations
    for iteration in range(1, target + 1):
        states.append(_plan_iteration(planner, states, iteration, last=iteration == target))
    return Plan(tuple(planner.nodes), tuple(states))


def plan_branch(
    config: RunConfig,
    sources: Sources,
    source: Plan,
    source_config: RunConfig,
    origin: BranchOrigin,
    *,
    iterations: int,
    requests: Mapping[int, tuple[ForgetRequest, ...]] | None = None,
    recorded: Mapping[StageKey, str] | None = None,
    partial: bool = False,
) -> Plan:
    """The plan of a branch: it shares another run's artifacts up to a stage of an iteration, and has its own
    from that stage on.

    Args:
        source: the plan of the other run, as it was made.
        iterations: where the branch ends; before its first iteration the plan has nothing of its own.

    Raises:
        ConfigError: a setting differs on which something before the branch depends; names the stage.
        InputError: the iteration has no such stage.
    """
    at = origin.iteration
    if iterations < at:
        return source.through(iterations)
    shared = {node.place: node for node in shared_stages(source, at, origin.stage)}
    beginning = Planner(config, sources, shared=shared)
    _begin(beginning)
    planner = Planner(config, sources, requests=requests, recorded=recorded, partial=partial, shared=shared)
    for node in source.nodes:
        if (node.iteration or 0) < at:
            planner.take(node)
    states = list(source.states[:at])
    states.append(_plan_iteration(planner, states, at, last=at == iterations))
    changed = changed_settings(source_config, config)
    _refuse_shared_changes(beginning.displaced, changed, origin)
    _refuse_shared_changes(planner.displaced, changed, origin)
    asked_for = {node.place for node, _ in planner.displaced}
    for node in shared.values():
        # Requests to forget take effect with the first memory that the branch makes itself.
        if node.iteration == at and node.place not in asked_for and node.stage is not FORGET_MEMORY:
            raise _shared_change(node, changed, origin)
    for iteration in range(at + 1, iterations + 1):
        states.append(_plan_iteration(planner, states, iteration, last=iteration == iterations))
    return Plan(tuple(planner.nodes), tuple(states))


def plan_offline(
    config: RunConfig,
    sources: Sources,
    origin: OfflineOrigin,
    rollouts: Mapping[int, str],
    beginning: RunState | None,
    *,
    iterations: int,
    recorded: Mapping[StageKey, str] | None = None,
    partial: bool = False,
) -> Plan:
    """The plan of a run that generates no rollouts, but trains on stored ones, one iteration for each.

    Staleness is measured before each update. The KL term, if it is on, refers to the checkpoint with which
    training begins. No memory is kept.

    Args:
        rollouts: stored iteration -> artifact of kind `rollouts`.
        beginning: tasks and first checkpoint of the stored run; None if it has none.
    """
    external = {*rollouts.values(), origin.checkpoint_id or ""}
    if beginning is not None:
        external |= {beginning.tasks, *beginning.models.values(), *beginning.bases.values()}
    planner = Planner(config, sources, recorded=recorded, partial=partial, external=frozenset(external))
    state = _begin(planner) if beginning is None else beginning
    if origin.checkpoint_id is not None:
        first = {**state.models, POLICY: origin.checkpoint_id}
        state = replace(state, models=first, initial=first)
    state = replace(state, memories={})
    if origin.evaluates:
        _plan_evaluation(planner, state, 0, last=False)
    states = [state]
    for iteration in range(1, iterations + 1):
        stored = rollouts[origin.first_iteration + iteration - 1]
        inputs = {**state.model_inputs(POLICY), "rollouts": stored}
        planner.add(MEASURE_STALENESS, inputs, iteration=iteration)
        if config.served_feedback.reflect is not None:
            plan_reflections(planner, states[0], iteration, stored)
        state = _plan_learning_offline(planner, state, iteration, stored)
        if origin.evaluates:
            _plan_evaluation(planner, state, iteration, last=iteration == iterations)
        states.append(state)
    return Plan(tuple(planner.nodes), tuple(states))


def policy_stages(config: RunConfig) -> tuple[Stage[Any], Stage[Any]]:
    """The stages that make the first policy of a run, and the last one of each iteration.

    Only what the method does with rollouts is planned, and no environment is asked for anything.
    """
    sources = Sources(code=NO_CODE, read=False)
    planner = Planner(config, sources, external=frozenset({_TASKS, _FIRST, _ROLLOUTS}))
    adapted = policy_traits(config.policy).lora is not None
    models = {POLICY: _FIRST}
    begun = RunState(_TASKS, models, models, models if adapted else {})
    method = plugins("methods")[config.method.type].value
    state = _plan_learning_offline(planner, method.plan_beginning(planner, begun), 1, _ROLLOUTS)
    last = next(node.stage for node in planner.nodes if node.artifact_id == state.models[POLICY])
    return plugins("policies")[config.policy.type].value.first_stage(config.policy), last


def _plan_learning_offline(planner: Planner, state: RunState, iteration: int, rollouts: str) -> RunState:
    """Plan what an iteration learns from stored rollouts; returns the state after it."""
    method = plugins("methods")[planner.config.method.type].value
    learned: RunState = method.plan_learning(planner, state, iteration, rollouts, remember=False)
    if planner.config.served_feedback.corrections:
        learned = plan_corrections(planner, learned, iteration, rollouts)
    return learned


def shared_stages(source: Plan, iteration: int, stage: str) -> list[PlannedStage]:
    """The stages that a branch shares with the run it comes from: all before `stage` of `iteration`.

    Raises InputError when the iteration has no such stage.
    """
    of_iteration = source.of_iteration(iteration)
    names = stage_names(of_iteration)
    if stage not in names:
        raise InputError(f"--from {stage}: the stages of iteration {iteration} are {', '.join(names)}")
    earlier = set(names[: names.index(stage)])
    shared: list[PlannedStage] = []
    own: set[str] = set()
    for node in source.nodes:
        if (node.iteration or 0) > iteration:
            continue
        # What was forgotten after a merge is shown as part of the memory that comes before the merge.
        after_own = own.intersection(node.recipe.inputs.values())
        if (node.iteration or 0) == iteration and (node.stage.shown_as not in earlier or after_own):
            own.add(node.artifact_id)
        else:
            shared.append(node)
    return shared


def _begin(planner: Planner) -> RunState:
    """Plan what comes before the first iteration: tasks, and the first checkpoint of every model."""
    config = planner.config
    tasks = planner.add(PREPARE_TASKS, built_inputs(planner), iteration=None)
    first: str = plugins("policies")[config.policy.type].value.plan_first(planner)
    bases = {} if policy_traits(config.policy).lora is None else {POLICY: first}
    state = RunState(tasks=tasks, models={POLICY: first}, initial={POLICY: first}, bases=bases)
    method = plugins("methods")[config.method.type].value
    return plan_extractor(planner, method.plan_beginning(planner, state))


def _plan_iteration(planner: Planner, states: Sequence[RunState], iteration: int, last: bool) -> RunState:
    """Plan an iteration: generate, learn, and evaluate if it is due; `last`: the run ends here."""
    config = planner.config
    for setting, value in config.served_feedback:
        if value:
            raise ConfigError(
                f"served_feedback.{setting}: only served traffic has what people said; set it for "
                "`learn`, or for `replay --offline` of a run that holds traffic"
            )
    method = plugins("methods")[config.method.type].value
    before = states[iteration - 1]
    acting = replace(before, models=states[max(0, iteration - 1 - config.pipeline.lag)].models)
    rollouts = method.plan_rollouts(planner, acting, iteration)
    stored = plan_lessons(planner, plan_experience(planner, before, iteration, rollouts), iteration, rollouts)
    state: RunState = method.plan_learning(planner, stored, iteration, rollouts, remember=True)
    _plan_evaluation(planner, state, iteration, last=last)
    return state


def _plan_evaluation(planner: Planner, state: RunState, iteration: int, *, last: bool) -> None:
    evaluation = planner.config.evaluation
    if planner.evaluation_due(EVALUATE, iteration, last=last, every=evaluation.every):
        plan_evaluation(planner, state, iteration)
    method = plugins("methods")[planner.config.method.type].value
    method.plan_evaluation(planner, state, iteration, last=last)


def _refuse_shared_changes(
    displaced: Sequence[tuple[PlannedStage, Recipe]], changed: Sequence[str], origin: BranchOrigin
) -> None:
    """Raise ConfigError if a shared artifact would be another one with this configuration."""
    for node, recipe in displaced:
        if recipe.artifact_id == node.recipe.artifact_id:
            continue
        # A recipe also holds values derived from settings; the message names what the user has set.
        found = recipe_differences(node.recipe, recipe)
        raise _shared_change(node, [each for each in found if each in changed] or changed, origin)


def _shared_change(node: PlannedStage, changed: Sequence[str], origin: BranchOrigin) -> ConfigError:
    reason = "; ".join(changed[:_EXAMPLES])
    if node.iteration is None:
        advice = "it is made once for all iterations: train a new run with `train --name`"
    else:
        advice = f"begin the branch there with --from {node.stage.shown_as}, or in a later iteration"
    return ConfigError(
        f"the settings change {node.stage.name}, which comes before {origin.stage} in iteration "
        f"{origin.iteration} and is shared ({reason}); {advice}"
    )
