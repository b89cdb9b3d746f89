"""What stages would make, without making it, and which settings a branch may change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from erl_pipeline.config.differences import changed_settings
from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.iteration import run_iteration, stage_rank
from erl_pipeline.pipeline.outcome import Silent, StageOutcome
from erl_pipeline.pipeline.stored_run import PREPARATIONS, StoredRun, stored_outcome
from erl_pipeline.stages.bootstrap import bootstrap
from erl_pipeline.stages.prepare_tasks import prepare_tasks
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import Artifact, ArtifactStore, Staging
from storage.errors import ConfigError
from storage.runs.run import config_differences

T = TypeVar("T")
Place = tuple[str, str]
"""Stage and key."""

_EXAMPLES = 3


def refuse_earlier_changes(
    old: RunConfig, new: RunConfig, store: ArtifactStore, stored: StoredRun, iteration: int, stage: str
) -> None:
    """Raise ConfigError, with the stage it belongs to, for a setting that a branch cannot change.

    These are the settings that something before the branch was made with: the preparations of the run,
    and the stages of its iteration before `stage`. Both configurations are planned on the stored inputs,
    and their recipes compared. Earlier iterations keep the settings that they were made with.
    """
    before = planned_recipes(old, store, stored, iteration, stage)
    after = planned_recipes(new, store, stored, iteration, stage)
    for place, recipe in before.items():
        changed = after.get(place)
        if changed is not None and changed.artifact_id == recipe.artifact_id:
            continue
        # A recipe also holds what follows from settings, such as the tasks that were drawn.
        given = changed_settings(old, new)
        found = [] if changed is None else config_differences(recipe.settings, changed.settings)
        reason = "; ".join(([each for each in found if each in given] or given)[:_EXAMPLES])
        name = place[0]
        if name in PREPARATIONS:
            advice = "it is made once for all iterations: train a new run with `train --name`"
        else:
            first = "generate_rollouts" if name == "rollout_shard" else name
            advice = f"begin the branch there with --from {first}, or in a later iteration"
        raise ConfigError(
            f"the settings change {name}, which comes before {stage} in iteration {iteration} and is shared "
            f"({reason}); {advice}"
        )


def planned_recipes(
    config: RunConfig, store: ArtifactStore, stored: StoredRun, iteration: int, stage: str
) -> dict[Place, Recipe]:
    """Recipes that a configuration gives the preparations and the stages of an iteration before `stage`.

    Each is planned on the inputs that the stored run had there.
    """
    context = RunContext(config, _PlanningStore(store), stored.run, Silent(), threading.Event())
    runner = _PlanningRunner(store, stored, iteration, stage)
    try:
        runner.prepare("prepare_tasks", prepare_tasks, context)
        runner.prepare("bootstrap", bootstrap, context)
        run_iteration(context, iteration, stored.state_before(iteration), runner, last=False)
    except _PlannedEnough:
        pass
    finally:
        context.close()
    return dict(runner.recipes)


class _Planned(Exception):
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe


class _PlannedEnough(Exception):
    pass


class _PlanningStore(ArtifactStore):
    """A store in which nothing is found and nothing is made: a stage that begins to write says its recipe."""

    def __init__(self, stored: ArtifactStore) -> None:
        super().__init__(stored.uri, stored.threads)
        self._stored = stored

    def find(self, artifact_id: str, stage: str | None = None) -> Manifest | None:
        return None

    def open(self, artifact_id: str) -> Artifact:
        return self._stored.open(artifact_id)

    def create(self, recipe: Recipe, *, run: str, iteration: int | None) -> Staging:
        raise _Planned(recipe)


class _PlanningRunner:
    def __init__(self, store: ArtifactStore, stored: StoredRun, iteration: int, stage: str) -> None:
        self.recipes: dict[Place, Recipe] = {}
        self._store = store
        self._stored = stored
        self._iteration = iteration
        self._end = stage_rank(stage)

    def prepare(self, stage: str, function: Callable[..., StageOutcome], context: RunContext) -> None:
        self._plan((stage, ""), function, context)

    def call(self, stage: str, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome:
        if stage_rank(stage) >= self._end:
            raise _PlannedEnough
        self._plan((stage, ""), function, *args)
        return stored_outcome(self._store, self._stored.entry(self._iteration, stage))

    def map(
        self, stage: str, function: Callable[..., StageOutcome], context: RunContext, items: Sequence[Any]
    ) -> list[StageOutcome]:
        if stage_rank(stage) >= self._end:
            raise _PlannedEnough
        for number, item in enumerate(items):
            self._plan((stage, f"{number:04d}"), function, context, item)
        return [stored_outcome(self._store, entry) for entry in self._stored.shards(self._iteration)]

    def iteration(self, iteration: int, body: Callable[[], T]) -> T:
        return body()

    def _plan(self, place: Place, function: Callable[..., StageOutcome], *args: Any) -> None:
        try:
            function(*args)
        except _Planned as planned:
            self.recipes[place] = planned.recipe
