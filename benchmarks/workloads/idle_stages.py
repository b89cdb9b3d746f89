"""A chain of stages that compute nothing, so that their time is only that of the runner and the commit."""

from __future__ import annotations

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.plan import Plan, PlannedStage, RunState
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from storage.artifacts.recipe import Recipe


class IdleSettings(Settings):
    """The stage's number in the chain."""

    number: int


def _compute(call: StageCall[IdleSettings]) -> StageResult:
    (call.folder / "number.txt").write_text(str(call.settings.number))
    return StageResult()


IDLE = Stage(name="idle", version=1, output="table", settings=IdleSettings, compute=_compute)


def idle_plan(length: int) -> Plan:
    """A plan of stages that each wait for the one before."""
    nodes: list[PlannedStage] = []
    for number in range(length):
        settings = IdleSettings(number=number)
        recipe = Recipe(
            stage=IDLE.name,
            stage_version=IDLE.version,
            settings=settings.model_dump(mode="json"),
            inputs={"before": nodes[-1].artifact_id} if nodes else {},
            seed=0,
            kind=IDLE.output,
        )
        nodes.append(PlannedStage(IDLE, settings, recipe, 1, str(number), recipe.artifact_id))
    return Plan(tuple(nodes), (RunState(tasks="", models={}, initial={}),))
