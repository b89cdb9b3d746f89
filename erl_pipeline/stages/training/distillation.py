"""The stages that build a dataset of attempts that went well, and train the policy on it by supervision."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.config.distillation import DISTILLED, DistilledRoles
from erl_pipeline.config.optimizer import FineTuneConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from erl_pipeline.stages.training.training_stage import (
    TrainingSettings,
    count_steps,
    open_trainer,
    plan_training,
    supervised_rows,
    training_result,
    training_settings,
)
from erl_pipeline.trainers.interface import SupervisedTraining
from erl_pipeline.trainers.sequences import supervised_sequence
from storage.tables.scored import is_scored

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.artifacts.artifact import Artifact
    from storage.tables.training import SftRow
    from storage.tables.trajectories import Trajectory

DATASET = "sft.parquet"


class DistillationSettings(Settings):
    """What a dataset depends on, besides the rollouts."""

    roles: DistilledRoles
    reward_above: float | None
    max_rows_per_task: int | None
    weight: Literal["one", "reward"] = Field(default="one", exclude_if=lambda weight: weight == "one")


def _build(call: StageCall[DistillationSettings]) -> StageResult:
    """Write the dataset: attempts that went well, on the prompt of the first attempt of their episode."""
    from storage.tables.training import write_sft_rows
    from storage.tables.trajectories import read_trajectories

    files = trajectory_files(call.inputs[ROLLOUTS], call.resources.store)
    rows = list(distilled_rows(read_trajectories(files), call.settings))
    write_sft_rows(call.folder / DATASET, rows)
    return StageResult(counters=count_rows(rows), rows={DATASET: len(rows)})


BUILD_DISTILLATION = Stage(
    name="build_distillation",
    version=6,
    output="sft_dataset",
    settings=DistillationSettings,
    compute=_build,
)


def distilled_rows(trajectories: Sequence[Trajectory], settings: DistillationSettings) -> Iterator[SftRow]:
    """Supervised rows of the attempts of a role that went well.

    The prompt is token for token that of the episode's attempt of `prompt_role`, which is the prompt that
    evaluation uses; the response is token for token what was sampled, of an agent's attempt in its first
    sequence. With `chain` two rows follow, each on its own prompt: the text that led to the attempt, where it
    is whole and well-formed, and the attempt itself, where its own prompt is another.

    An attempt gives no row where it was not scored, where its episode's first attempt was not, and where it
    would be trained on that one's prompt though an agent began one of them otherwise. Where a task has more
    such attempts than `max_rows_per_task`, the first in the order of the trajectories are kept. With
    `weight: reward` a row is weighed by the reward of its trajectory, at least 0.
    """
    from storage.tables.trajectories import OTHER_OPENING

    roles, most = settings.roles, settings.max_rows_per_task
    by_id = {row.trajectory_id: row for row in trajectories}
    firsts = {row.episode_id: row for row in trajectories if row.role == roles.prompt_role}
    attempts_at: Counter[str] = Counter()
    for row in trajectories:
        if row.role != roles.role or row.truncated or not _went_well(row, settings.reward_above):
            continue
        if not any(row.response_mask):  # An environment that failed at once may count as a reward of 0.
            continue
        first = firsts[row.episode_id]
        if not is_scored(row) or not is_scored(first):
            continue
        if row is not first and any(OTHER_OPENING in json.loads(each.metrics) for each in (row, first)):
            continue
        if most is not None and attempts_at[row.task_id] >= most:
            continue
        attempts_at[row.task_id] += 1
        parent = by_id.get(row.parent_trajectory_id or "")
        via = parent if parent is not None and parent.role == roles.via_role else None
        found = [distilled_row(row, first, via)]
        if roles.chain:
            if via is not None and via.text is not None and not via.truncated:
                found.append(_chain_row(via, first, via))
            if row.prompt_token_ids != first.prompt_token_ids:
                found.append(_chain_row(row, first, via))
        # A reflection has the reward of the attempt that it led to.
        weight = 1.0 if settings.weight == "one" else max(row.reward, 0.0)
        yield from (replace(each, weight=weight) for each in found)


def _went_well(row: Trajectory, reward_above: float | None) -> bool:
    """Whether a trajectory succeeded or, with a threshold, has a reward above it.

    A reflection has the reward and the success of the attempt that it led to.
    """
    if reward_above is None:
        return row.success
    # A reward is stored in 32 bits, in which .3 is more than .3.
    import numpy as np

    return bool(np.float32(row.reward) > np.float32(reward_above))


def distilled_row(row: Trajectory, asked: Trajectory | None = None, via: Trajectory | None = None) -> SftRow:
    """The supervised row of an attempt: its response, token for token as it was sampled.

    Args:
        asked: the attempt whose prompt the response is trained on; None: its own.
        via: the text between the two that led to it, such as a reflection.
    """
    from erl_pipeline.episodes.supervised_rows import supervised_row

    first = asked or row
    return supervised_row(f"s-{row.trajectory_id}", DISTILLED, row, asked=first, first=first, via=via)


def count_rows(rows: Sequence[SftRow]) -> dict[str, int]:
    """The counters of a dataset: rows on the prompt that evaluation uses, rows of the chain, and the trained
    tokens of both."""
    distilled = sum(row.role == DISTILLED for row in rows)
    chain = {"sft_chain_rows": len(rows) - distilled} if len(rows) > distilled else {}
    return {"sft_rows": distilled, "sft_tokens": sum(sum(row.loss_mask) for row in rows), **chain}


def _chain_row(row: Trajectory, first: Trajectory, via: Trajectory | None) -> SftRow:
    """The row of a trajectory on the prompt that it was sampled on."""
    from erl_pipeline.episodes.supervised_rows import supervised_row

    return supervised_row(f"s-own-{row.trajectory_id}", row.role, row, asked=row, first=first, via=via)


NEWEST = "dataset"


class FineTuneSettings(TrainingSettings):
    """The part of the configuration that supervised training reads."""

    fine_tune: FineTuneConfig


def plan_datasets(planner: Planner, iteration: int, rollouts: str) -> dict[str, str]:
    """Plan the dataset of an iteration; returns the inputs of a training on it and on earlier ones in the
    window."""
    config = planner.config.distillation
    roles: DistilledRoles = plugins("methods")[planner.config.method.type].value.distilled
    settings = DistillationSettings(
        roles=roles.model_copy(update={"chain": config.chain}),
        reward_above=config.reward_above,
        max_rows_per_task=config.max_rows_per_task,
        weight=config.weight,
    )
    dataset = planner.add(
        BUILD_DISTILLATION, {ROLLOUTS: rollouts}, iteration=iteration, settings=planner.shared(settings)
    )
    older = {
        f"{NEWEST}-{age:04d}": made
        for age in range(1, config.window)
        if (made := planner.planned(BUILD_DISTILLATION, iteration - age)) is not None
    }
    return {NEWEST: dataset, **older}


def plan_fine_tune(planner: Planner, state: RunState, iteration: int, dataset: str) -> RunState:
    """Plan the training of the policy on a dataset, an artifact of kind `sft_dataset` from any stage. Returns
    the state after it."""
    return plan_training(planner, state, iteration, FINE_TUNE, {NEWEST: dataset}, POLICY)


def read_datasets(inputs: Mapping[str, Artifact]) -> list[SftRow]:
    """The rows of the datasets among a stage's inputs, from the newest to the oldest; none without one."""
    from storage.tables.training import read_sft_rows

    datasets = [inputs[name] for name in sorted(inputs) if name.startswith(NEWEST)]
    return read_sft_rows([dataset.path(DATASET) for dataset in datasets]) if datasets else []


def _fine_tune(call: StageCall[FineTuneSettings]) -> StageResult:
    """Take supervised steps on the datasets. Without rows the weights do not change, but are committed
    too."""
    rows = read_datasets(call.inputs)
    settings = call.settings.fine_tune
    sequences = [supervised_sequence(row) for row in rows]
    work = SupervisedTraining(sequences, settings, call.seed)
    with open_trainer(call) as trainer:
        metrics = trainer.fine_tune_supervised(work, count_steps(call, settings.optimizer_steps(len(rows))))
        return training_result(call, trainer, metrics, supervised_rows(rows, sequences, metrics.records))


def _fine_tune_slice(config: RunConfig, _sources: Sources) -> FineTuneSettings:
    return FineTuneSettings(fine_tune=config.fine_tune, **training_settings(config))


FINE_TUNE = Stage(
    name="fine_tune",
    version=8,
    output="checkpoint",
    settings=FineTuneSettings,
    compute=_fine_tune,
    slice=_fine_tune_slice,
    code=("trainer",),
    needs="training",
)
