"""Evaluations of a run on the test tasks: the third split, which training never uses."""

from __future__ import annotations

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import POLICY, Place, Plan
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.runs.driver import OpenRun, execute_run
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from erl_pipeline.stages.evaluation.evaluate_on_test import plan_test_evaluation, plan_test_tasks


def plan_on_test(config: RunConfig, sources: Sources, trained: Plan) -> Plan:
    """Plan evaluations on the test tasks, after each iteration that has an evaluation on the held-out tasks.

    Args:
        trained: the plan of the run, whose checkpoints are in the store when this one is executed.
    """
    states = {
        iteration: state
        for iteration, state in enumerate(trained.states)
        if Place(iteration, EVALUATE.name, "") in trained.by_place
    }
    checkpoints = {state.models[POLICY] for state in states.values()}
    bases = {each for state in states.values() for each in state.bases.values()}
    memories = {each for state in states.values() for each in state.memories.values()}
    planner = Planner(config, sources, external=frozenset(checkpoints | bases | memories))
    tasks = plan_test_tasks(planner)
    for iteration, state in states.items():
        plan_test_evaluation(planner, state, iteration, tasks)
    return Plan(tuple(planner.nodes), trained.states)


def evaluate_on_test(opened: OpenRun, trained: Plan) -> None:
    """Execute these evaluations for a run whose training is done; what is committed is reused."""
    plan = plan_on_test(opened.config, read_sources(opened.config), trained)
    execute_run(opened, plan, frozenset(), makers=lambda: trained.nodes)
