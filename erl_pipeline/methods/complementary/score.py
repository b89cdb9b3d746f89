"""The stage of the variant `weights`: it scores stored trajectories, trains the scorer, and draws the
trajectories that are trained on again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.methods.complementary.artifacts import SCORER_FILE, SCORES, SCORES_FILE
from erl_pipeline.methods.complementary.settings import (
    REPLAY,
    ComplementaryConfig,
    WeightsExperienceConfig,
)
from erl_pipeline.methods.complementary.stored import Stored, drawn_by_weight, read_stored
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.rollouts.generate_rollouts import TRAJECTORIES, trajectory_files
from erl_pipeline.stages.training.training_stage import (
    ROLLOUTS,
    TrainingSettings,
    borrowed_trainer,
    training_settings,
)
from erl_pipeline.stages.training.update_policy import training_sequences
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.methods.complementary.scorer import Scorer
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.trainers.interface import Trainer
    from storage.tables.trajectories import Trajectory


class ScoreSettings(TrainingSettings):
    """What scores depend on, besides the policy and the trajectories."""

    scoring: WeightsExperienceConfig
    objective: ObjectiveConfig
    """For the advantages of the trajectories that are trained on again."""
    microbatch_tokens: int


def _slice(config: RunConfig, _sources: Sources) -> ScoreSettings:
    assert isinstance(config.method, ComplementaryConfig)
    assert isinstance(config.method.experience, WeightsExperienceConfig)
    return ScoreSettings(
        scoring=config.method.experience,
        objective=config.objective,
        microbatch_tokens=config.update.microbatch_tokens,
        **training_settings(config),
    )


def _compute(call: StageCall[ScoreSettings]) -> StageResult:
    """Label the newest stored trajectories under the policy, train the scorer on them, weigh the fresh ones
    with it, and draw stored ones by weight."""
    from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES
    from storage.tables.parquet import write_rows
    from storage.tables.trajectories import read_trajectories, write_trajectories

    settings, scoring, store = call.settings, call.settings.scoring, call.resources.store
    before = call.inputs.get(SCORES)
    stored = read_stored(store, before, scoring.capacity)
    fresh = _sampled(read_trajectories(trajectory_files(call.inputs[ROLLOUTS], store)))
    ids = stored.newest(scoring.rescored)
    old = _in_order(_sampled(read_trajectories(stored.files_of(ids))), ids)
    with borrowed_trainer(call) as trainer:
        now = _mean_logprobs(trainer, old, settings.microbatch_tokens)

    scorer = _scorer(call)
    rows, metrics = score(scorer, call, old, now, fresh)
    drawn = _draw(call, stored, {row["trajectory_id"]: row["weight"] for row in rows})
    replayed, advantages = _replayed(call, stored, drawn)
    of_drawn = dict(zip(drawn, advantages, strict=True))
    table = [{**row, "advantage": of_drawn.get(row["trajectory_id"])} for row in rows]
    known = {row["trajectory_id"] for row in rows}
    table += [
        {
            "trajectory_id": source,
            "weight": stored.weights.get(source, scoring.neutral),
            "label": None,
            "mean_logprob_then": mean_behaviour_logprob(row),
            "mean_logprob_now": None,
            "advantage": of_drawn[source],
        }
        for row, source in zip(replayed, drawn, strict=True)
        if source not in known
    ]
    write_rows(call.folder / SCORES_FILE, table, EXPERIENCE_SCORES)
    write_trajectories(call.folder / TRAJECTORIES, replayed)
    scorer.save(call.folder / SCORER_FILE)
    return StageResult(
        counters={
            "stored": sum(len(shelf.trajectory_ids) for shelf in stored.shelves),
            "rescored": len(old),
            "replayed": len(replayed),
        },
        metrics=metrics,
        rows={SCORES_FILE: len(table), TRAJECTORIES: len(replayed)},
        determinism=trainer.determinism,
    )


def score(
    scorer: Scorer,
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
    embedder = call.resources.memory(scoring.embedding_model).embedder
    then = [mean_behaviour_logprob(row) for row in old]
    labels = [improved(later, earlier) for later, earlier in zip(now, then, strict=True)]
    rows: list[dict[str, Any]] = []
    metrics: dict[str, float] = {}
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
        for row, weight, label, earlier, later in zip(
            old, scorer.weights(vectors), labels, then, now, strict=True
        ):
            rows.append(_row(row, weight, earlier, label, later))
    # Before its first training the scorer knows nothing.
    fresh_weights = [scoring.neutral] * len(fresh)
    if old and fresh:
        fresh_weights = scorer.weights(embedder.embed([trajectory_text(row) for row in fresh]))
    rows += [
        _row(row, weight, mean_behaviour_logprob(row), None, None)
        for row, weight in zip(fresh, fresh_weights, strict=True)
    ]
    if fresh:
        metrics["weight_mean"] = sum(fresh_weights) / len(fresh)
    return rows, metrics


def trajectory_text(row: Trajectory) -> str:
    """The text of a trajectory that is embedded: all its messages, and its feedback."""
    said = [message["content"] for message in json.loads(row.messages)]
    return "\n".join([*said, row.feedback])


def mean_behaviour_logprob(row: Trajectory) -> float:
    """Mean log-probability of the tokens that the policy sampled, in nats a token."""
    sampled = [value for value, bit in zip(row.behaviour_logprobs, row.response_mask, strict=True) if bit]
    return sum(sampled) / len(sampled)


def _row(
    row: Trajectory, weight: float, then: float, label: float | None, now: float | None
) -> dict[str, Any]:
    return {
        "trajectory_id": row.trajectory_id,
        "weight": weight,
        "label": label,
        "mean_logprob_then": then,
        "mean_logprob_now": now,
    }


def _scorer(call: StageCall[ScoreSettings]) -> Scorer:
    """The scorer of the previous iteration, or a fresh one."""
    from erl_pipeline.methods.complementary.scorer import Scorer

    scoring = call.settings.scoring
    dimension = call.resources.memory(scoring.embedding_model).embedder.embed([""]).shape[1]
    scorer = Scorer(dimension, scoring.layers, scoring.width, scoring.learning_rate, call.seed)
    if SCORES in call.inputs:
        scorer.load(call.inputs[SCORES].path(SCORER_FILE))
    return scorer


def _mean_logprobs(trainer: Trainer, rows: Sequence[Trajectory], microbatch_tokens: int) -> list[float]:
    from erl_pipeline.trainers.sequences import trajectory_sequence

    if not rows:
        return []
    found = trainer.logprobs([trajectory_sequence(row) for row in rows], microbatch_tokens)
    return [float(values.mean()) for values in found]


def _draw(call: StageCall[ScoreSettings], stored: Stored, newest: Mapping[str, float]) -> list[str]:
    """Ids of the stored trajectories that are trained on again."""
    scoring = call.settings.scoring
    ids = stored.newest(scoring.capacity)
    weights = [newest.get(one, stored.weights.get(one, scoring.neutral)) for one in ids]
    seed = derive_seed(call.seed, call.index["iteration"], "replay")
    return [ids[place] for place in drawn_by_weight(weights, scoring.sampled, seed)]


def _replayed(
    call: StageCall[ScoreSettings], stored: Stored, ids: Sequence[str]
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
            role=REPLAY,
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
    version=4,
    output="table",
    settings=ScoreSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer", "method", "objective"),
    needs="device",
)
