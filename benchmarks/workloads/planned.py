"""Executing chosen stages of a run's plan in this process; what stages share is kept between calls."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.config.plugins import operational_part
from erl_pipeline.config.rollouts import RolloutConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.runner import InProcessRunner
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.plan.stage import Listener, Resources, StageOutcome, WorkerSettings
from erl_pipeline.runs.driver import OpenRun, open_run
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards


@dataclass
class PlannedRun:
    """An open run, the plan of all its iterations, and the outcomes of the stages executed so far."""

    opened: OpenRun
    plan: Plan
    resources: Resources
    outcomes: dict[str, StageOutcome] = field(default_factory=dict)
    """The latest outcome of each stage."""

    def execute_run(
        self, nodes: Iterable[PlannedStage], runner: type[InProcessRunner] = InProcessRunner
    ) -> list[StageOutcome]:
        """Execute these stages of the plan as the driver does; what is in the store is reused."""
        found: list[StageOutcome] = []

        def record(node: PlannedStage, outcome: StageOutcome) -> None:
            self.opened.record(node, outcome)
            self.outcomes[outcome.stage] = outcome
            found.append(outcome)

        opened, resources = self.opened, self.resources
        execute(
            Plan(tuple(nodes), self.plan.states),
            Execution(
                store=opened.store,
                runner=runner(resources, opened.listener),
                worker=resources.settings,
                resources=ResourcesConfig(),
                listener=opened.listener,
                record=record,
                stopped=opened.stop.is_set,
                background_bytes=opened.config.store.background_bytes(),
                state_every=opened.config.retention.optimizer_every,
            ),
        )
        return found

    def begin(self) -> list[StageOutcome]:
        """Execute what a run has before its first iteration, without its evaluation."""
        before = self.plan.of_iteration(0)
        return self.execute_run(node for node in before if node.stage.output != "evaluation")

    def first_shards(self, iteration: int, rollouts: RolloutConfig | None = None) -> list[PlannedStage]:
        """The shards of an iteration, sampled from the first policy; with other `rollouts` settings, if
        given."""
        config, state = self.opened.config, self.plan.states[0]
        if rollouts is not None:
            config = config.model_copy(update={"rollouts": rollouts})
        made = {state.tasks, *state.models.values(), *state.bases.values()}
        planner = Planner(config, read_sources(config), external=frozenset(made))
        plan_shards(planner, state, iteration, memory=None)
        return [node for node in planner.nodes if node.stage.output == "trajectories"]

    def files(self, outcomes: Iterable[StageOutcome], name: str) -> list[Path]:
        """A file of each of these artifacts."""
        return [self.opened.store.open(one.artifact_id).path(name) for one in outcomes]


@contextmanager
def planned_run(config: RunConfig, store: str, listener: Listener | None = None) -> Iterator[PlannedRun]:
    """Open a run of a store, to execute parts of its plan."""
    stop = threading.Event()
    with open_run(config, store, listener or Listener(), stop) as opened:
        worker = WorkerSettings(
            opened.store.uri,
            opened.run.name,
            config.resources.threads,
            operational_part("engines", config.engine),
        )
        with Resources(worker, stop) as resources:
            yield PlannedRun(opened, plan_run(config, read_sources(config)), resources)
