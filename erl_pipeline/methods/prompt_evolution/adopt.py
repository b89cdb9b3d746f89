"""The stage that ends an iteration: the policy for the next one, with the weights that it had and the best
instruction."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT, INSTRUCTION, MODEL
from erl_pipeline.stages.names import NOTE_TRIALS

TRIALS = "trials"
"""The input with what the trials of proposals showed."""


class AdoptSettings(Settings):
    """Nothing: the checkpoint and the trials are inputs."""


def best_proposal(trials: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of the proposal, among those that beat the instruction so far by the margin, that has gained
    most mean reward on its tasks; of equal ones the first. None where none did.

    All are tried on the same tasks, so it also has the highest mean reward, but for attempts that were not
    scored: a task without both kinds does not count.
    """
    kept = [row for row in trials if row["kept"]]
    return max(kept, key=lambda row: row["reward"] - row["reward_without"], default=None)


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
    best = best_proposal(read_rows([trials.path(NOTE_TRIALS)], TABLE))
    if best is not None:
        # The proposal's iteration, and its parent, are in its row of the rollouts.
        written = {name: best[name] for name in ("text", "source_trajectory_id", "reward", "reward_without")}
        text = json.dumps(written, ensure_ascii=False, indent=2)
        (call.folder / INSTRUCTION).write_text(f"{text}\n", encoding="utf-8")
    return StageResult(
        counters={"adopted": int(best is not None)},
        policy_version=call.artifact_id,
        unchanged=CHECKPOINT,
    )


ADOPT_INSTRUCTION = Stage(
    name="adopt_instruction",
    version=1,
    output="checkpoint",
    settings=AdoptSettings,
    compute=_adopt,
)
