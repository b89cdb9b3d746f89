"""The stage that selects what an iteration replays, and so how often each of its tasks is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.replay import EXPERIENCE, DrawSettings, Entropy, Importance, Pick
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.names import HELD_OUT, TASKS, TRAINING
from erl_pipeline.stages.tasks.draw_tasks import SAMPLES_FILE, task_order, write_samples
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks, read_weights
from erl_pipeline.stages.training.measure_staleness import require_readable
from erl_pipeline.stages.training.replay.replayed import BEGUN, ON_POLICY_WEIGHT
from erl_pipeline.stages.training.training_stage import TrainingSettings, borrowed_trainer, policy_here
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Task
    from erl_pipeline.stages.training.replay.draw import Drawn, Selected
    from erl_pipeline.stages.training.replay.experience import Candidate, Experience
    from erl_pipeline.trainers.interface import Trainer
    from storage.tables.trajectories import Trajectory

SPARE_TASKS = 20
"""Retired tasks are left out only where this many more tasks remain than an iteration draws (official
code)."""


class ReplaySelectSettings(DrawSettings, TrainingSettings):
    """What a selection depends on, besides the experience, the policy and the tasks."""

    entropy: Entropy
    importance: Importance
    draw_retired: bool
    microbatch_tokens: int


def _compute(call: StageCall[ReplaySelectSettings]) -> StageResult:
    """Draw tasks, choose a stored attempt of each, and plan the fresh attempts of the iteration around it."""
    import random

    from erl_pipeline.stages.training.replay.draw import draw_replay, replay_row, write_replay
    from erl_pipeline.stages.training.replay.experience import kept_experience

    settings, iteration = call.settings, call.index["iteration"]
    experience = kept_experience(call.resources, call.inputs[EXPERIENCE])
    chance = random.Random(derive_seed(call.seed, iteration, SELECT_REPLAY.name))
    drawn = draw_replay(experience, settings, iteration, chance)
    scored = bool(drawn) and settings.pick != "random"
    selected, determinism = _choose(call, drawn, experience, scored)
    version = call.inputs[CHECKPOINT].manifest.artifact_id
    slot = settings.group_size - 1
    rows = [replay_row(each.chosen.row, call.artifact_id, iteration, slot) for each in selected]
    written = write_replay(call.folder, rows, selected, settings.entropy if scored else None, version)
    tasks = read_tasks(call.inputs[TASKS], TRAINING, call.resources)
    samples = _samples(tasks, [row.task_id for row in rows], experience, call)
    written[SAMPLES_FILE] = write_samples(call.folder / SAMPLES_FILE, samples)
    return StageResult(
        counters={
            BEGUN: int(experience.begun),
            "replayed": len(rows),
            "candidates": sum(each.drawn.candidates for each in selected),
            "tokens_saved": sum(sum(row.response_mask) for row in rows),
        },
        metrics={
            "share_replayed": len(rows) / settings.tasks_per_iteration,
            **_numbers(selected, iteration),
            **(_fresh_weight(tasks, iteration, settings) if rows else {}),
        },
        rows=written,
        policy_version=version,
        determinism=determinism,
    )


SELECT_REPLAY = Stage(
    name="select_replay",
    version=4,
    output="replay",
    settings=ReplaySelectSettings,
    compute=_compute,
    code=("trainer",),
    needs="training",
)


def _choose(
    call: StageCall[ReplaySelectSettings], drawn: Sequence[Drawn], experience: Experience, scored: bool
) -> tuple[list[Selected], Any]:
    """The attempt that is replayed for each drawn task, and how reproducible the choice is."""
    from erl_pipeline.stages.training.replay.draw import Selected

    settings = call.settings
    if not drawn:
        return [], "bytes"
    candidates = _candidates(call, drawn, experience)
    found = [[candidates[row_id] for row_id in each.members["trajectory_id"]] for each in drawn]
    if not scored:
        return [Selected(of_task[0], each) for each, of_task in zip(drawn, found, strict=True)], "bytes"
    rows = [candidate.row for of_task in found for candidate in of_task]
    with borrowed_trainer(call) as trainer:
        values = iter(mean_entropies(rows, trainer, settings.entropy, settings.microbatch_tokens))
        determinism = trainer.determinism
    selected = []
    for each, of_task in zip(drawn, found, strict=True):
        entropies = [next(values) for _ in of_task]
        place = pick_one(entropies, settings.pick)
        picked = entropies.pop(place)
        selected.append(Selected(of_task[place], each, (picked, *entropies)))
    return selected, determinism


def _candidates(
    call: StageCall[ReplaySelectSettings], drawn: Sequence[Drawn], experience: Experience
) -> Mapping[str, Candidate]:
    """Id -> attempt, of the stored attempts that may be replayed; all have been checked."""
    import polars as pl

    from erl_pipeline.stages.training.replay.experience import (
        read_candidates,
        require_trainable,
        with_quality_as_reward,
        with_trainer_logprobs,
    )

    found = read_candidates(call.resources.store, pl.concat([each.members for each in drawn]))
    held_out = read_tasks(call.inputs[TASKS], HELD_OUT, call.resources)
    training = {task.task_id for task in read_tasks(call.inputs[TASKS], TRAINING, call.resources)}
    require_trainable(found, training, held_out)
    require_readable([each.row for each in found], policy_here(call))
    if call.settings.importance == "trainer":
        ids = [each.row.trajectory_id for each in found]
        found = with_trainer_logprobs(found, experience.trainer_logprobs(ids))
    if call.settings.sampler == "tiers" and call.settings.tiers.reward == "quality":
        found = with_quality_as_reward(found, experience.qualities(each.row.trajectory_id for each in found))
    return {each.row.trajectory_id: each for each in found}


def _samples(
    tasks: Sequence[Task],
    replayed: Sequence[str],
    experience: Experience,
    call: StageCall[ReplaySelectSettings],
) -> list[tuple[Task, int]]:
    """K - 1 fresh attempts at each task that is replayed, and K at each of the other tasks that fill the
    iteration."""
    settings = call.settings
    weights = read_weights(call.inputs[TASKS])
    order = task_order(tasks, settings.tasks_per_iteration, call.seed, call.index["iteration"], weights)
    by_id = {task.task_id: task for task in tasks}
    retired = set() if settings.draw_retired else experience.retired()
    if len(tasks) - len(retired) < settings.tasks_per_iteration + SPARE_TASKS:
        retired = set()
    fresh = [task for task in order if task.task_id not in {*replayed, *retired}]
    wanted = settings.tasks_per_iteration - len(replayed)
    beside = [(by_id[task_id], settings.group_size - 1) for task_id in replayed]
    return beside + [(task, settings.group_size) for task in fresh[:wanted]]


def _numbers(selected: Sequence[Selected], iteration: int) -> dict[str, float]:
    if not selected:
        return {}
    ages = [iteration - each.chosen.row.iteration for each in selected]
    numbers = {"age_mean": fmean(ages), "age_max": float(max(ages))}
    if any(each.entropies for each in selected):
        numbers["entropy_picked"] = fmean(each.entropies[0] for each in selected)
        numbers["entropy_candidates"] = fmean(value for each in selected for value in each.entropies)
    return numbers


def _fresh_weight(tasks: Sequence[Task], iteration: int, settings: ReplaySelectSettings) -> dict[str, float]:
    """The weight of fresh rows, which `tiers` lowers with each pass over the tasks."""
    from erl_pipeline.stages.training.replay.draw import on_policy_weight

    if settings.sampler != "tiers":
        return {}
    epoch = (iteration - 1) // (len(tasks) // settings.tasks_per_iteration)
    return {ON_POLICY_WEIGHT: on_policy_weight(epoch, settings.tiers)}


def mean_entropies(
    rows: Sequence[Trajectory], trainer: Trainer, kind: Entropy, microbatch_tokens: int
) -> list[float]:
    """Mean entropy over the trained tokens of each row, in nats, under the trainer's policy; see
    `ReplayConfig.entropy`. Padding and the environment's tokens are left out."""
    import numpy as np

    sequences = [trajectory_sequence(row) for row in rows]
    if kind == "vocabulary":
        values = trainer.entropies(sequences, microbatch_tokens)
    else:
        logprobs = trainer.logprobs(sequences, microbatch_tokens)
        values = [-each if kind == "nll" else -each * np.exp(each) for each in logprobs]
    return [float(each.astype(np.float64).mean()) for each in values]


def pick_one(entropies: Sequence[float], pick: Pick) -> int:
    """Index of the lowest or highest entropy; among equal ones, the first."""
    places = range(len(entropies))
    if pick == "highest":
        return max(places, key=lambda place: (entropies[place], -place))
    return min(places, key=lambda place: (entropies[place], place))
