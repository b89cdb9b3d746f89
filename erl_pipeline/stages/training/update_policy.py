"""The stage that updates the policy by reinforcement learning, on fresh trajectories and on those that are
replayed: of older policies, in an artifact of kind `replay`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.episodes.roles import NEVER_TRAINED, is_trainable, trainable
from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import BASE, CHECKPOINT, StoredPolicy, checkpoint_parts
from erl_pipeline.stages.names import ROLLOUTS, further_sequence_files, trajectory_files
from erl_pipeline.stages.training import distillation, training_stage
from erl_pipeline.stages.training.replay.plan import replayed_in
from erl_pipeline.stages.training.replay.replayed import REPLAY, read_replayed, weighed
from erl_pipeline.stages.training.score_teacher import SCORE_TEACHER, SCORES, token_advantages
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import TrainingSequence, supervised_sequence, trajectory_sequence
from storage.artifacts.artifact import Artifact
from storage.artifacts.recipe import derive_seed
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
TEACHER = "teacher"
"""Name of the input through which an update gets the scores of self-distillation."""
GROUPS, ZERO_ADVANTAGE_GROUPS = "groups", "zero_advantage_groups"
"""Counters, each followed by `_` and a role."""


class UpdateSettings(training_stage.TrainingSettings):
    """The part of the configuration that an update reads."""

    objective: ObjectiveConfig
    update: UpdateConfig
    replay: ReplayLoss | None = None
    """The loss of replayed trajectories; None where there are none."""


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
        scored = {**state.model_inputs(model), ROLLOUTS: rollouts}
        seed = derive_seed(planner.config.seed, iteration, SCORE_TEACHER.name)
        inputs[TEACHER] = planner.add(SCORE_TEACHER, scored, iteration=iteration, seed=seed)
    if planner.config.objective.needs_reference:
        inputs[REFERENCE] = state.initial[model]
    form = planner.config.distillation_form
    if form == "joint":
        inputs |= distillation.plan_datasets(planner, iteration, rollouts)
    state = training_stage.plan_training(planner, state, iteration, UPDATE_POLICY, inputs, model, settings)
    if form == "separate":
        state = distillation.plan_distillation(planner, state, iteration, rollouts, model)
    return state


def _slice(config: RunConfig, _sources: Sources) -> UpdateSettings:
    read: dict[str, Any] = {
        "objective": config.objective,
        "update": config.update,
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
    sequences = _taught(training_sequences(given, settings.objective), call.inputs.get(TEACHER))
    distilled = distillation.read_datasets(call.inputs)
    own = weighed([*sequences, *further_sequences(further, sequences, settings.objective)], replayed)
    work = Reinforcement(
        sequences=[*own, *map(supervised_sequence, distilled)],
        objective=settings.objective,
        update=settings.update,
        seed=call.seed,
        reference=reference_policy(call),
        replay=settings.replay if replayed.begun else None,
    )
    counters = {**groups_by_role(given, settings.objective), **dropped_before_training(rows, old)}
    return training_stage.reinforce(call, work, rows, counters, old, distilled)


def _taught(sequences: Sequence[TrainingSequence], scored: Artifact | None) -> Sequence[TrainingSequence]:
    """The sequences with what self-distillation adds to the advantages of their tokens."""
    from storage.tables.parquet import read_rows
    from storage.tables.teacher_scores import TEACHER_SCORES

    if scored is None:
        return sequences
    added = token_advantages(read_rows([scored.path(SCORES)], TEACHER_SCORES))
    return [replace(each, token_advantages=added.get(each.trajectory_id, ())) for each in sequences]


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
    return [_sequence(row, advantage, objective) for row, advantage in zip(trained, advantages, strict=True)]


def _sequence(row: Trajectory, advantage: float, objective: ObjectiveConfig) -> TrainingSequence:
    sequence = trajectory_sequence(row, advantage)
    left_out = row.truncated and objective.truncated == "leave_out"
    return replace(sequence, weight=0.0) if left_out else sequence


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
    for row, advantage in zip(trained, _advantages(trained, objective), strict=True):
        groups.setdefault(_group(row, objective), []).append(advantage)
    counters: dict[str, int] = {}
    for role in dict.fromkeys(roles.values()):
        found = [any(advantages) for (group, _), advantages in groups.items() if roles[group] == role]
        counters[f"{GROUPS}_{role}"] = len(found)
        counters[f"{ZERO_ADVANTAGE_GROUPS}_{role}"] = found.count(False)
    return counters


def _advantages(trained: Sequence[Trajectory], objective: ObjectiveConfig) -> list[float]:
    keys = [_group(row, objective) for row in trained]
    penalty = objective.length_penalty
    if penalty is not None:
        trained = [replace(row, reward=row.reward - penalty.of(sum(row.response_mask))) for row in trained]
    return group_advantages(trained, keys, objective.advantage_normalization)


def _group(row: Trajectory, objective: ObjectiveConfig) -> tuple[str, str | None]:
    """The key of a row's group: rows whose rewards are compared have the same one."""
    return row.group_id, row.subgroup if objective.advantages_per == "subgroup" else None


def reference_policy(call: StageCall[UpdateSettings]) -> StoredPolicy | Literal["own_base"] | None:
    """Where the reference policy of the KL term is; the base of an adapter is in memory already."""
    if REFERENCE not in call.inputs:
        return None
    reference = call.inputs[REFERENCE]
    if BASE in call.inputs and call.inputs[BASE].manifest.artifact_id == reference.manifest.artifact_id:
        return "own_base"
    return StoredPolicy(checkpoint_parts({CHECKPOINT: reference}), call.settings.weights)


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
