"""The stage that updates the policy by reinforcement learning, on fresh trajectories and on those that are
replayed: of older policies, in an artifact of kind `replay`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.config.self_distillation import SelfDistillationConfig
from erl_pipeline.episodes.roles import NEVER_TRAINED, is_trainable, trainable
from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT, StoredPolicy
from erl_pipeline.stages.names import ROLLOUTS, further_sequence_files, trajectory_files
from erl_pipeline.stages.training import distillation, training_stage
from erl_pipeline.stages.training.replay.plan import replayed_in
from erl_pipeline.stages.training.replay.replayed import REPLAY, read_replayed, weighed
from erl_pipeline.stages.training.score_teacher import plan_scores, taught_sequences
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import (
    TrainingSequence,
    observed_sequence,
    supervised_sequence,
    trajectory_sequence,
)
from storage.errors import InputError
from storage.tables.scored import NOT_SCORED, is_scored

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.artifacts.manifest import Manifest
    from storage.artifacts.store import ArtifactStore
    from storage.tables.trajectories import Trajectory


def young_policies(store: ArtifactStore, checkpoint: Manifest, max_age: int) -> dict[str, int]:
    """Id -> age of a checkpoint and of those it was trained from, up to `max_age` iterations before it.

    The age counts iterations back along the line of checkpoints; all checkpoints of one iteration have the
    same age. A stage that comes again begins another iteration, even where both have the same number, as in
    runs that go on from each other. Only the manifests that are needed for this are read.
    """
    ages: dict[str, int] = {}
    age, newer, at = 0, checkpoint, checkpoint
    stages: set[str] = set()
    while True:
        if at.iteration != newer.iteration or at.stage in stages:
            age, stages = age + 1, set()
        stages.add(at.stage)
        if age > max_age:
            return ages
        ages[at.artifact_id] = age
        before = store.find(at.inputs[CHECKPOINT]) if CHECKPOINT in at.inputs else None
        if before is None:
            return ages
        newer, at = at, before


def too_old(rows: Iterable[Trajectory], young: Iterable[str]) -> frozenset[str]:
    """Ids of the trainable trajectories that none of the `young` policies sampled."""
    policies = set(young)
    return frozenset(
        row.trajectory_id for row in rows if is_trainable(row) and row.policy_version not in policies
    )


REFERENCE = "reference"
SCORED = "teacher"
"""Name of the input through which an update gets the scores of self-distillation."""
GROUPS, ZERO_ADVANTAGE_GROUPS = "groups", "zero_advantage_groups"
"""Counters, each followed by `_` and a role."""


class UpdateSettings(training_stage.TrainingSettings):
    """The part of the configuration that an update reads."""

    objective: ObjectiveConfig
    update: UpdateConfig
    replay: ReplayLoss | None = None
    """The loss of replayed trajectories; None where there are none."""
    self_distillation: SelfDistillationConfig | None = Field(default=None, exclude_if=lambda how: how is None)
    """How scores of teachers are combined with the objective; None where an update needs only what they add
    to advantages."""


class AgedUpdateSettings(UpdateSettings):
    """The same for an update that leaves out what is too old (`pipeline.too_old: drop`)."""

    max_age: int


def plan_update(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    model: str = POLICY,
) -> RunState:
    """Plan the training of a model on rollouts, with what the configuration adds to the update of any method:
    replay, self-distillation, distillation. Returns the state after it. The reference of the KL term, where
    it is on, is the checkpoint that the model began with."""
    inputs = {ROLLOUTS: rollouts}
    settings = None
    replayed = replayed_in(planner, iteration)
    if replayed is not None:
        inputs[REPLAY], loss = replayed
        settings = planner.shared(planner.settings(UPDATE_POLICY).model_copy(update={"replay": loss}))
    if planner.config.self_distillation is not None:
        inputs[SCORED] = plan_scores(planner, state, iteration, rollouts, model)
    if planner.config.objective.needs_reference:
        inputs[REFERENCE] = state.initial[model]
    form = planner.config.distillation_form
    if form == "joint":
        inputs |= distillation.plan_datasets(planner, iteration, rollouts)
    state = training_stage.plan_training(planner, state, iteration, UPDATE_POLICY, inputs, model, settings)
    if form == "separate":
        datasets = distillation.plan_datasets(planner, iteration, rollouts)
        state = training_stage.plan_training(
            planner, state, iteration, distillation.FINE_TUNE, datasets, model
        )
    return state


def _slice(config: RunConfig, _sources: Sources) -> UpdateSettings:
    how = config.self_distillation
    read: dict[str, Any] = {
        "objective": config.objective,
        "update": config.update,
        "self_distillation": None if how is None else how.for_update,
        **training_stage.training_settings(config),
    }
    pipeline = config.pipeline
    if pipeline.too_old == "drop":
        return AgedUpdateSettings(**read, max_age=pipeline.max_age)
    return UpdateSettings(**read)


def _compute(call: StageCall[UpdateSettings]) -> StageResult:
    """Train on the trajectories of the rollouts and on those replayed beside them; write the new checkpoint.
    Roles that are never trained, and trajectories that were not scored or are too old, are left out."""
    from storage.tables.trajectories import read_trajectories

    settings = call.settings
    replayed = read_replayed(call.inputs.get(REPLAY))
    rollouts, store = call.inputs[ROLLOUTS], call.resources.store
    attempts = [*read_trajectories(trajectory_files(rollouts, store)), *replayed.rows]
    further = read_trajectories(further_sequence_files(rollouts, store))
    rows = [*attempts, *further]
    old = _too_old(call, rows)
    given = [row for row in attempts if row.trajectory_id not in old]
    sequences = taught_sequences(
        training_sequences(given, settings.objective), call.inputs.get(SCORED), settings.self_distillation
    )
    if settings.objective.subgroup_losses == "averaged":
        sequences = averaged_subgroups(trainable(given), sequences, settings.objective)
    distilled = distillation.read_datasets(call.inputs)
    own = weighed([*sequences, *further_sequences(further, sequences, settings.objective)], replayed)
    observed = observed_sequences(given, settings.objective.observation_coefficient)
    work = Reinforcement(
        sequences=[*own, *map(supervised_sequence, distilled), *observed],
        objective=settings.objective,
        update=settings.update,
        seed=call.seed,
        reference=reference_policy(call),
        replay=settings.replay if replayed.begun else None,
        distillation=None if settings.self_distillation is None else settings.self_distillation.objective,
    )
    counters = {**groups_by_role(given, settings.objective), **dropped_before_training(rows, old)}
    if observed:
        counters["observed_sequences"] = len(observed)
    return training_stage.reinforce(call, work, rows, counters, old, distilled)


def _too_old(call: StageCall[UpdateSettings], rows: Sequence[Trajectory]) -> frozenset[str]:
    """Ids of the trajectories that are left out for their age; none without a limit on age."""
    if not isinstance(call.settings, AgedUpdateSettings):
        return frozenset()
    checkpoint = call.inputs[CHECKPOINT].manifest
    return too_old(rows, young_policies(call.resources.store, checkpoint, call.settings.max_age))


def dropped_before_training(trajectories: Sequence[Trajectory], old: Collection[str] = ()) -> dict[str, int]:
    """Counters, without those that are 0: trajectories of roles that are never trained, those that were not
    scored, by reason, and those whose ids are in `old`."""
    left_out = [row for row in trajectories if row.role not in NEVER_TRAINED and not is_scored(row)]
    counters = {
        "dropped_never_trained": sum(row.role in NEVER_TRAINED for row in trajectories),
        **{
            f"dropped_{reason}": sum(row.finish_reason == reason for row in left_out) for reason in NOT_SCORED
        },
        "dropped_too_old": sum(row.trajectory_id in old for row in trajectories),
    }
    return {name: count for name, count in counters.items() if count}


def training_sequences(
    trajectories: Sequence[Trajectory], objective: ObjectiveConfig
) -> list[TrainingSequence]:
    """The sequences of trajectories, with their advantages. Groups are those of the rows, one for each task
    and role, or their subgroups where the objective compares those. Roles that are never trained and
    trajectories that were not scored are in no group and give no sequence. Those that a limit cut off have
    weight 0 where the objective leaves them out."""
    trained = trainable(trajectories)
    advantages = _advantages(trained, objective)
    return [
        _sequence(row, of_turns[0], objective) if len(of_turns) == 1 else _by_turn(row, of_turns, objective)
        for row, of_turns in zip(trained, advantages, strict=True)
    ]


def _by_turn(row: Trajectory, advantages: Sequence[float], objective: ObjectiveConfig) -> TrainingSequence:
    """The sequence of an attempt whose turns have advantages of their own. What is recorded as its advantage
    is their mean over tokens. Raises InputError where its tokens do not show as many turns."""
    turns = list(accumulate(starts_turn(row.response_mask)))
    if turns[-1] != len(advantages):
        raise InputError(
            f"objective.credit: turn; trajectory {row.trajectory_id} has rewards of {len(advantages)} turns, "
            f"and {turns[-1]} runs of sampled tokens; use credit: episode"
        )
    of_tokens = [
        advantages[turn - 1] if bit else 0.0 for turn, bit in zip(turns, row.response_mask, strict=True)
    ]
    mean = math.fsum(of_tokens) / sum(row.response_mask)
    added = tuple(
        advantage - mean if bit else 0.0 for advantage, bit in zip(of_tokens, row.response_mask, strict=True)
    )
    return replace(_sequence(row, mean, objective), token_advantages=added)


def starts_turn(mask: Sequence[int]) -> list[int]:
    """1 for each token that is the first that the policy sampled in a turn, else 0."""
    return [int(bit > before) for before, bit in zip((0, *mask), mask, strict=False)]


def _sequence(row: Trajectory, advantage: float, objective: ObjectiveConfig) -> TrainingSequence:
    sequence = trajectory_sequence(row, advantage)
    left_out = row.truncated and objective.truncated == "leave_out"
    return replace(sequence, weight=0.0) if left_out else sequence


def averaged_subgroups(
    rows: Sequence[Trajectory], sequences: Sequence[TrainingSequence], objective: ObjectiveConfig
) -> list[TrainingSequence]:
    """The sequences of these rows, with weights by which the loss of a role is the mean of its subgroups'
    losses.

    A role with n tokens in s subgroups, of which one has m, gives that one's sequences the weight n / (s m),
    since its loss is normalised by n. Only rows with an advantage count in n and m, but all subgroups in s.
    Where `loss_normalization` counts sequences, they count here in place of tokens.
    """
    sizes: Counter[tuple[str, str | None]] = Counter()
    of_roles: Counter[str] = Counter()
    subgroups: defaultdict[str, set[str | None]] = defaultdict(set)
    for row, sequence in zip(rows, sequences, strict=True):
        subgroups[row.role].add(row.subgroup)
        if sequence.has_advantage and sequence.weight:
            size = sequence.trained_tokens if objective.loss_normalization == "token_mean" else 1
            sizes[row.role, row.subgroup] += size
            of_roles[row.role] += size

    def weight(row: Trajectory) -> float:
        own = len(subgroups[row.role]) * sizes[row.role, row.subgroup]
        return of_roles[row.role] / own if own else 1.0  # without an advantage: no policy loss to weigh

    return [
        replace(sequence, weight=sequence.weight * weight(row))
        for row, sequence in zip(rows, sequences, strict=True)
    ]


def observed_sequences(trajectories: Sequence[Trajectory], weight: float) -> list[TrainingSequence]:
    """What environments said in trajectories, to be predicted with this weight; none without weight. What was
    not scored is left out, since the environment itself may have failed."""
    if not weight:
        return []
    found = (observed_sequence(row, weight) for row in trainable(trajectories))
    return [each for each in found if each is not None]


def further_sequences(
    rows: Sequence[Trajectory], attempts: Sequence[TrainingSequence], objective: ObjectiveConfig
) -> list[TrainingSequence]:
    """Further token sequences of agents' attempts, each with the advantage of its attempt: groups compare
    attempts, however many sequences an attempt has. One whose attempt is not trained gives none."""
    advantages = {each.trajectory_id: each.advantage for each in attempts}
    return [
        _sequence(row, advantages[row.parent_trajectory_id], objective)
        for row in rows
        if row.parent_trajectory_id in advantages
    ]


def groups_by_role(trajectories: Sequence[Trajectory], objective: ObjectiveConfig) -> dict[str, int]:
    """Counters: groups of each role that is trained (`groups_ROLE`), and those of them that give no advantage
    (`zero_advantage_groups_ROLE`). A group's role is that of its first row, whatever is replayed beside
    it."""
    trained = trainable(trajectories)
    roles: dict[str, str] = {}
    for row in trained:
        roles.setdefault(row.group_id, row.role)
    groups: dict[tuple[str, str | None], list[float]] = {}
    for row, of_turns in zip(trained, _advantages(trained, objective), strict=True):
        groups.setdefault(_group(row, objective), []).extend(of_turns)
    counters: dict[str, int] = {}
    for role in dict.fromkeys(roles.values()):
        found = [any(advantages) for (group, _), advantages in groups.items() if roles[group] == role]
        counters[f"{GROUPS}_{role}"] = len(found)
        counters[f"{ZERO_ADVANTAGE_GROUPS}_{role}"] = found.count(False)
    return counters


def _advantages(trained: Sequence[Trajectory], objective: ObjectiveConfig) -> list[tuple[float, ...]]:
    """The advantages of each row: one for each turn where the objective gives them by turn, else one."""
    penalty = objective.length_penalty
    rows: list[Trajectory] = []
    keys: list[tuple[str, str | None, int]] = []
    counts: list[int] = []
    for row in trained:
        lost = 0.0 if penalty is None else penalty.of(sum(row.response_mask))
        rewards = (row.turn_rewards if objective.credit == "turn" else None) or (row.reward,)
        counts.append(len(rewards))
        for turn in range(len(rewards)):
            rows.append(replace(row, reward=math.fsum(rewards[turn:]) - lost))
            keys.append((*_group(row, objective), turn))
    found = iter(group_advantages(rows, keys, objective.advantage_normalization))
    return [tuple(islice(found, count)) for count in counts]


def _group(row: Trajectory, objective: ObjectiveConfig) -> tuple[str, str | None]:
    """The key of a row's group: rows whose rewards are compared have the same one."""
    return row.group_id, row.subgroup if objective.advantages_per == "subgroup" else None


def reference_policy(call: StageCall[UpdateSettings]) -> StoredPolicy | Literal["own_base"] | None:
    """Where the reference policy of the KL term is."""
    return training_stage.other_policy(call, REFERENCE)


UPDATE_POLICY = Stage(
    name="update_policy",
    version=9,
    output="checkpoint",
    settings=UpdateSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer", "objective"),
    needs="training",
)
