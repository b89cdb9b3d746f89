"""The stage that removes from a memory what somebody asked to have forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.memory.index_memory import INDEX_MEMORY
from erl_pipeline.stages.names import MEMORY
from storage.memory.versions import FORGET_STAGE, FORGET_VERSION, REQUEST_INPUT

if TYPE_CHECKING:
    from erl_pipeline.plan.planner import Planner


class ForgetSettings(Settings):
    """Nothing: what is forgotten is in the request, which is an input."""


def _compute(call: StageCall[ForgetSettings]) -> StageResult:
    """Write the memory version without the entry that the request names."""
    from storage.memory.chain import OPERATIONS_FILE
    from storage.memory.forgetting import write_forgotten

    parent = call.inputs[MEMORY].manifest.artifact_id
    request = call.inputs[REQUEST_INPUT].manifest
    removed = write_forgotten(call.resources.store, call.folder, parent, request, call.artifact_id)
    return StageResult(
        counters={"entries_forgotten": removed},
        rows={OPERATIONS_FILE: removed},
        memory_version=call.artifact_id,
    )


def plan_forgetting(planner: Planner, version: str, iteration: int) -> str:
    """Plan the removal of what was asked to be forgotten after an iteration; returns the id of the version
    after it."""
    for number, request in enumerate(planner.requests.get(iteration, ())):
        inputs = {MEMORY: version, REQUEST_INPUT: request}
        version = planner.add(
            FORGET_MEMORY, inputs, iteration=iteration, settings=_NOTHING, key=f"{number:04d}"
        )
    return version


_NOTHING = ForgetSettings()

FORGET_MEMORY = Stage(
    name=FORGET_STAGE,
    version=FORGET_VERSION,
    output="memory",
    settings=ForgetSettings,
    compute=_compute,
    part_of=INDEX_MEMORY.name,
)
