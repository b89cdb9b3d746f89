"""What an update trains on: trajectories as sequences, with the advantages that their groups give them."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.replay import REPLAYED
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence
from storage.errors import InputError

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

GROUPS, ZERO_ADVANTAGE_GROUPS = "groups", "zero_advantage_groups"
"""Counters, each followed by `_` and a role."""


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
    starts = starts_turn(row.response_mask)
    if sum(starts) != len(advantages):
        raise InputError(
            f"objective.credit: turn; trajectory {row.trajectory_id} has rewards of {len(advantages)} turns, "
            f"and {sum(starts)} runs of sampled tokens; use credit: episode"
        )
    turns = list(zip(accumulate(starts), row.response_mask, strict=True))
    sampled = sum(row.response_mask)
    mean = math.fsum(advantages[turn - 1] for turn, bit in turns if bit) / sampled
    added = tuple(advantages[turn - 1] - mean if bit else 0.0 for turn, bit in turns)
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
    since its loss is normalised by n. All subgroups count in s; in n and m count the rows that `normalizer`
    says. Where `loss_normalization` counts sequences, they count here in place of tokens.
    """
    sizes: Counter[tuple[str, str | None]] = Counter()
    of_roles: Counter[str] = Counter()
    subgroups: defaultdict[str, set[str | None]] = defaultdict(set)
    for row, sequence in zip(rows, sequences, strict=True):
        subgroups[row.role].add(row.subgroup)
        # KL in the reward gives tokens that were sampled an advantage later.
        penalized = row.role != REPLAYED and objective.penalizes(row.role)
        has_loss = sequence.has_advantage or penalized or objective.normalizer == "all_rows"
        if sequence.weight and has_loss:
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
    """The advantages of each row: one for each turn where the objective gives them by turn, else one. A turn
    is compared with the same turn of the other attempts."""
    penalty = objective.length_penalty
    rows: list[Trajectory] = []
    keys: list[tuple[str, str | None, int]] = []
    counts: list[int] = []
    for row in trained:
        lost = 0.0 if penalty is None else penalty.of(sum(row.response_mask))
        rewards = (row.turn_rewards if objective.credit == "turn" else None) or (row.reward,)
        counts.append(len(rewards))
        # Turns that a second attempt took over from the first have no rewards of its own.
        kept = int(json.loads(row.metrics).get("kept_turns", 0)) if objective.credit == "turn" else 0
        for turn in range(len(rewards)):
            rows.append(replace(row, reward=math.fsum(rewards[turn:]) - lost))
            keys.append((*_group(row, objective), kept + turn))
    found = iter(group_advantages(rows, keys, objective.advantage_normalization))
    return [tuple(islice(found, count)) for count in counts]


def _group(row: Trajectory, objective: ObjectiveConfig) -> tuple[str, str | None]:
    """The key of a row's group: rows whose rewards are compared have the same one."""
    return row.group_id, row.subgroup if objective.advantages_per == "subgroup" else None
