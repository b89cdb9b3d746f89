"""The stage that ends an iteration: the policy for the next one, with the weights that it had and the best
instructions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import ANY_TYPE, CHECKPOINT, INSTRUCTION, MODEL, read_instructions
from erl_pipeline.stages.names import NOTE_TRIALS

TRIALS = "trials"
"""The input with what the trials of proposals showed."""


class AdoptSettings(Settings):
    """Nothing: the checkpoint and the trials are inputs."""


def best_proposals(trials: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Task type -> the row of the proposal, among those that beat the instruction so far by the margin, that
    has gained most mean reward on its tasks; of equal ones the first. Types without such a row are left out.

    All proposals for a type are tried on the same tasks, so it also has the highest mean reward, but for
    attempts that were not scored: a task without both kinds does not count.
    """
    best: dict[str, Mapping[str, Any]] = {}
    for row in trials:
        before = best.get(row["task_type"])
        if row["kept"] and (before is None or _gain(row) > _gain(before)):
            best[row["task_type"]] = row
    return best


def instructions_after(
    before: Mapping[str, Mapping[str, Any]], best: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """The policy's instructions by type of task, once the best proposals are adopted."""
    # The proposal's iteration, and its parent, are in its row of the rollouts.
    kept = ("text", "source_trajectory_id", "reward", "reward_without")
    adopted = {task_type: {name: row[name] for name in kept} for task_type, row in best.items()}
    # One for all tasks has beaten those of single types, which a task would be shown instead of it.
    return {**({} if ANY_TYPE in adopted else before), **adopted}


def _gain(row: Mapping[str, Any]) -> float:
    gain: float = row["reward"] - row["reward_without"]
    return gain


def _adopt(call: StageCall[AdoptSettings]) -> StageResult:
    """Write the checkpoint again, without the state of an optimizer: nothing is trained. Where a store has
    links, the weights take no space."""
    from erl_pipeline.engines.probe_file import PROBE_FILE
    from storage.memory.trials import NOTE_TRIALS as TABLE
    from storage.tables.parquet import read_rows

    checkpoint, trials = call.inputs[CHECKPOINT], call.inputs[TRIALS]
    for entry in checkpoint.manifest.files:
        if entry.path == PROBE_FILE or entry.path.startswith(f"{MODEL}/"):
            target = call.folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint.path(entry.path), target)
    best = best_proposals(read_rows([trials.path(NOTE_TRIALS)], TABLE))
    if best:
        next_ones = instructions_after(read_instructions(checkpoint), best)
        text = json.dumps(next_ones, ensure_ascii=False, indent=2)
        (call.folder / INSTRUCTION).write_text(f"{text}\n", encoding="utf-8")
    return StageResult(
        counters={"adopted": len(best)},
        policy_version=call.artifact_id,
        unchanged=CHECKPOINT,
    )


ADOPT_INSTRUCTION = Stage(
    name="adopt_instruction",
    version=2,
    output="checkpoint",
    settings=AdoptSettings,
    compute=_adopt,
)
