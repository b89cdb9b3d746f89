"""The stage of the variant `weights`: it scores stored trajectories, trains the scorer, and draws the
trajectories that are trained on again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.environments.messages import words_of
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.methods.complementary import settings as complementary
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.memory import opened_memory
from erl_pipeline.stages.names import ROLLOUTS, TRAJECTORIES, trajectory_files
from erl_pipeline.stages.training import training_stage
from erl_pipeline.stages.training.advantages import groups_by_role, training_sequences
from erl_pipeline.stages.training.update_policy import (
    REFERENCE,
    UPDATE_POLICY,
    UpdateSettings,
    dropped_before_training,
)
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.methods.complementary.scorer import WeightScorer
    from erl_pipeline.methods.complementary.tables import StoredTrajectories
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.trainers.interface import Trainer
    from storage.tables.trajectories import Trajectory


class ScoreSettings(training_stage.TrainingSettings):
    """What scores depend on, besides the policy and the trajectories."""

    scoring: complementary.WeightsExperienceConfig
    objective: ObjectiveConfig
    """For the advantages of the trajectories that are trained on again."""
    microbatch_tokens: int


def _slice(config: RunConfig, _sources: Sources) -> ScoreSettings:
    assert isinstance(config.method, complementary.ComplementaryConfig)
    assert isinstance(config.method.experience, complementary.WeightsExperienceConfig)
    return ScoreSettings(
        scoring=config.method.experience,
        objective=config.objective,
        microbatch_tokens=config.update.microbatch_tokens,
        **training_stage.training_settings(config),
    )


def _compute(call: StageCall[ScoreSettings]) -> StageResult:
    """Label stored trajectories under the policy, train the scorer on them, weigh the fresh ones
    with it, and draw stored ones by weight."""
    from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES, drawn_by_weight, read_stored
    from storage.tables.parquet import write_rows
    from storage.tables.trajectories import read_trajectories, write_trajectories

    settings, scoring, store = call.settings, call.settings.scoring, call.resources.store
    before = call.inputs.get(complementary.SCORES)
    stored = read_stored(store, before, scoring.capacity)
    fresh = _sampled(read_trajectories(trajectory_files(call.inputs[ROLLOUTS], store)))
    ids = stored.newest(scoring.rescored)
    if scoring.rescore == "random":
        ids = stored.random(scoring.rescored, derive_seed(call.seed, call.index["iteration"], "rescore"))
    old = _in_order(_sampled(read_trajectories(stored.files_of(ids))), ids)
    with training_stage.borrowed_trainer(call) as trainer:
        now = _mean_logprobs(trainer, old, settings.microbatch_tokens)

    scorer = _scorer(call)
    table, metrics = score(scorer, call, old, now, fresh)
    known = {row["trajectory_id"]: row for row in table}
    ids = stored.newest(scoring.capacity)
    weights = [known[one]["weight"] if one in known else stored.weight(one, scoring.neutral) for one in ids]
    seed = derive_seed(call.seed, call.index["iteration"], "replay")
    drawn = [ids[place] for place in drawn_by_weight(weights, scoring.sampled, seed)]
    replayed, advantages = _replayed(call, stored, drawn)
    for row, source, advantage in zip(replayed, drawn, advantages, strict=True):
        if source not in known:
            known[source] = _row(row, stored.weight(source, scoring.neutral), source)
            table.append(known[source])
        known[source]["advantage"] = advantage
    write_rows(call.folder / complementary.SCORES_FILE, table, EXPERIENCE_SCORES)
    write_trajectories(call.folder / TRAJECTORIES, replayed)
    scorer.save(call.folder / complementary.SCORER_FILE)
    return StageResult(
        counters={
            "stored": len(stored.files),
            "rescored": len(old),
            "replayed": len(replayed),
        },
        metrics=metrics,
        rows={complementary.SCORES_FILE: len(table), TRAJECTORIES: len(replayed)},
        determinism=trainer.determinism,
    )


def score(
    scorer: WeightScorer,
    call: StageCall[ScoreSettings],
    old: Sequence[Trajectory],
    now: Sequence[float],
    fresh: Sequence[Trajectory],
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Train the scorer on stored trajectories and weigh all. Returns the rows of stored and of fresh ones,
    and the metrics."""
    import numpy as np

    from erl_pipeline.methods.complementary.scorer import improved

    scoring = call.settings.scoring
    embedder = opened_memory(call.resources, scoring.embedding_model).embedder
    labels = [improved(later, mean_behaviour_logprob(row)) for later, row in zip(now, old, strict=True)]
    rows: list[dict[str, Any]] = []
    metrics: dict[str, float] = {}
    # Before its first training the scorer knows nothing.
    fresh_weights = [scoring.neutral] * len(fresh)
    if old:
        vectors = embedder.embed([trajectory_text(row) for row in old])
        first, last = scorer.train(
            vectors,
            np.array(labels, dtype=np.float32),
            scoring.steps,
            loss_weight=scoring.loss_weight,
            distance_weight=scoring.distance_weight,
        )
        metrics |= {"scorer_first_loss": first, "scorer_loss": last, "improved": sum(labels) / len(labels)}
        weights = scorer.weights(vectors)
        for row, weight, label, later in zip(old, weights, labels, now, strict=True):
            rows.append(_row(row, weight, row.trajectory_id, label, later))
        if fresh:
            fresh_weights = scorer.weights(embedder.embed([trajectory_text(row) for row in fresh]))
    rows += [_row(row, weight, row.trajectory_id) for row, weight in zip(fresh, fresh_weights, strict=True)]
    if fresh:
        metrics["weight_mean"] = sum(fresh_weights) / len(fresh)
    return rows, metrics


def trajectory_text(row: Trajectory) -> str:
    """The text of a trajectory that is embedded: all its messages with their tool calls, and its feedback."""
    said = [words_of(message) for message in json.loads(row.messages)]
    return "\n".join([*said, row.feedback])


def mean_behaviour_logprob(row: Trajectory) -> float:
    """Mean log-probability of the tokens that the policy sampled, in nats a token."""
    sampled = [value for value, bit in zip(row.behaviour_logprobs, row.response_mask, strict=True) if bit]
    return sum(sampled) / len(sampled)


def _row(
    row: Trajectory, weight: float, source: str, label: float | None = None, now: float | None = None
) -> dict[str, Any]:
    return {
        "trajectory_id": source,
        "weight": weight,
        "label": label,
        "mean_logprob_then": mean_behaviour_logprob(row),
        "mean_logprob_now": now,
        "advantage": None,
    }


def _scorer(call: StageCall[ScoreSettings]) -> WeightScorer:
    """The scorer of the previous iteration, or a fresh one."""
    from erl_pipeline.methods.complementary.scorer import WeightScorer

    scoring = call.settings.scoring
    dimension = opened_memory(call.resources, scoring.embedding_model).embedder.embed([""]).shape[1]
    scorer = WeightScorer(dimension, scoring.layers, scoring.width, scoring.learning_rate, call.seed)
    if complementary.SCORES in call.inputs:
        scorer.load(call.inputs[complementary.SCORES].path(complementary.SCORER_FILE))
    return scorer


def _mean_logprobs(trainer: Trainer, rows: Sequence[Trajectory], microbatch_tokens: int) -> list[float]:
    if not rows:
        return []
    found = trainer.logprobs([trajectory_sequence(row) for row in rows], microbatch_tokens)
    return [float(values.mean()) for values in found]


def _replayed(
    call: StageCall[ScoreSettings], stored: StoredTrajectories, ids: Sequence[str]
) -> tuple[list[Trajectory], list[float]]:
    """New rows whose parents are the trajectories with these ids, and the advantages that these had in their
    own groups."""
    from storage.tables.trajectories import read_trajectories, trajectory_id

    rows = read_trajectories(stored.files_of(ids))
    advantages = {
        sequence.trajectory_id: sequence.advantage
        for sequence in training_sequences(rows, call.settings.objective)
    }
    again = [
        replace(
            row,
            trajectory_id=trajectory_id(call.artifact_id, row.trajectory_id),
            parent_trajectory_id=row.trajectory_id,
            role=complementary.REPLAY,
        )
        for row in _in_order(rows, ids)
    ]
    return again, [advantages[one] for one in ids]


def _sampled(rows: Sequence[Trajectory]) -> list[Trajectory]:
    return [row for row in trainable(rows) if any(row.response_mask)]


def _in_order(rows: Sequence[Trajectory], ids: Sequence[str]) -> list[Trajectory]:
    by_id = {row.trajectory_id: row for row in rows}
    return [by_id[one] for one in ids if one in by_id]


SCORE_EXPERIENCE = Stage(
    name="score_experience",
    version=7,
    output="table",
    settings=ScoreSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer", "method", "objective"),
    needs="training",
)


def weighted_sequences(
    fresh: Sequence[TrainingSequence],
    replayed: Sequence[Trajectory],
    advantages: Mapping[str, float],
    weights: Mapping[str, float],
    objective: ObjectiveConfig,
) -> list[TrainingSequence]:
    """All sequences, with their losses multiplied by constant weights. A sequence without such a weight,
    because none of its tokens was sampled, stays unchanged. Stored attempts that a limit cut off are left out
    where the objective leaves out fresh ones.

    Args:
        replayed: rows whose parents are the stored trajectories.
        advantages, weights: by the ids of fresh and of stored trajectories.
    """
    sources = {row.trajectory_id: row.parent_trajectory_id or "" for row in replayed}
    left_out = objective.truncated == "leave_out"
    again = [
        replace(
            trajectory_sequence(row, advantages[sources[row.trajectory_id]]),
            weight=0.0 if left_out and row.truncated else 1.0,
        )
        for row in replayed
    ]
    return [
        replace(
            each, weight=each.weight * weights.get(sources.get(each.trajectory_id, each.trajectory_id), 1.0)
        )
        for each in (*fresh, *again)
    ]


def _update(call: StageCall[UpdateSettings]) -> StageResult:
    """Train on the iteration's trajectories and on those that were drawn; write the new checkpoint."""
    from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES
    from storage.tables.parquet import read_rows
    from storage.tables.trajectories import read_trajectories

    settings, scores = call.settings, call.inputs[complementary.SCORES]
    rows = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))
    replayed = read_trajectories([scores.path(TRAJECTORIES)])
    table = list(read_rows([scores.path(complementary.SCORES_FILE)], EXPERIENCE_SCORES))
    sequences = weighted_sequences(
        training_sequences(rows, settings.objective),
        replayed,
        {row["trajectory_id"]: row["advantage"] for row in table},
        {row["trajectory_id"]: row["weight"] for row in table},
        settings.objective,
    )
    reference = training_stage.other_policy(call, REFERENCE)
    work = Reinforcement(sequences, settings.objective, settings.update, call.seed, reference)
    counters = {**groups_by_role(rows, settings.objective), **dropped_before_training(rows)}
    return training_stage.reinforce(call, work, [*rows, *replayed], counters)


WEIGHTED_UPDATE = Stage(
    name=UPDATE_POLICY.name,
    version=9,
    output="checkpoint",
    settings=UpdateSettings,
    compute=_update,
    slice=UPDATE_POLICY.slice,
    code=("trainer", "method", "objective"),
    needs="training",
)
