"""A stage of the method's own: which attempts are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from erl_pipeline.stages.training.distillation import DATASET, count_rows, distilled_row
from storage.tables.scored import scored

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory


class SelectionSettings(Settings):
    """What the selection depends on, besides the rollouts."""

    keep: int
    prefer: Literal["shortest", "first"]


def best_attempts(rows: Sequence[Trajectory], settings: SelectionSettings) -> list[Trajectory]:
    """The best successful attempts at each task, all different; tasks in the order of the rows. Attempts that
    the environment or its scorer failed are left out: their reward means nothing."""
    by_task: dict[str, list[Trajectory]] = {}
    for row in scored(rows):
        if row.success and not row.truncated:
            by_task.setdefault(row.task_id, []).append(row)
    return [row for group in by_task.values() for row in _best(group, settings)]


def _best(rows: Sequence[Trajectory], settings: SelectionSettings) -> list[Trajectory]:
    def rank(row: Trajectory) -> tuple[float, int, int]:
        length = sum(row.response_mask) if settings.prefer == "shortest" else 0
        return -row.reward, length, row.sample_index

    different: dict[tuple[int, ...], Trajectory] = {}
    for row in sorted(rows, key=rank):
        different.setdefault(row.response_token_ids, row)
    return list(different.values())[: settings.keep]


def _compute(call: StageCall[SelectionSettings]) -> StageResult:
    """Write the best attempts as supervised rows, each on its own prompt."""
    # Imported here, so that a plan can be made without them.
    from storage.tables.training import write_sft_rows
    from storage.tables.trajectories import read_trajectories

    rollouts = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))
    best = best_attempts(rollouts, call.settings)
    rows = [distilled_row(attempt) for attempt in best]
    write_sft_rows(call.folder / DATASET, rows)
    return StageResult(
        counters={**count_rows(rows), "tasks_solved": len({row.task_id for row in rows})},
        rows={DATASET: len(rows)},
    )


SELECT_BEST = Stage(
    name="select_best",
    version=2,
    output="sft_dataset",
    settings=SelectionSettings,
    compute=_compute,
    # An edited selection gives another artifact, without a new version.
    code=("method",),
)
