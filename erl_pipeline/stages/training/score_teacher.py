"""The stage in which a teacher scores a policy's attempts with hindsight, before the policy is trained on
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.self_distillation import SelfDistillationConfig, SelfDistilledRoles
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.objectives.self_distillation import contrast, modulated_addition, modulation
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.names import GENERATED, HELD_OUT, ROLLOUTS, TASKS, trajectory_files
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks
from erl_pipeline.stages.training import training_stage
from erl_pipeline.stages.training.average_teacher import TEACHER, plan_teacher
from erl_pipeline.stages.training.gaps import gap_metrics, token_class
from erl_pipeline.stages.training.hindsight import Hindsight, HindsightSources, hindsight_of
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence, trajectory_sequence
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    import numpy.typing as npt

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.trainers.interface import Trainer
    from storage.artifacts.artifact import Artifact
    from storage.tables.teacher_scores import TeacherScores
    from storage.tables.trajectories import Trajectory

SCORES = "teacher_scores.parquet"
_EARLIER = "earlier"


class TeacherSettings(training_stage.TrainingSettings):
    """The part of the configuration that the scores depend on."""

    self_distillation: SelfDistillationConfig
    roles: SelfDistilledRoles
    microbatch_tokens: int


def _slice(config: RunConfig, _sources: Sources) -> TeacherSettings:
    roles = plugins("methods")[config.method.type].value.self_distilled
    assert config.self_distillation is not None
    assert roles is not None
    return TeacherSettings(
        self_distillation=config.self_distillation.for_scores,
        roles=roles,
        microbatch_tokens=config.update.microbatch_tokens,
        **training_stage.training_settings(config),
    )


def plan_scores(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    model: str,
    how: SelfDistillationConfig,
) -> str:
    """Plan the scores of an iteration, and what its teacher is made by; returns their artifact. `how`: as the
    iteration has it."""
    inputs = {
        **state.model_inputs(model),
        ROLLOUTS: rollouts,
        **plan_teacher(planner, state, iteration, model),
    }
    if how.hindsight == "demonstration":
        inputs[TASKS] = state.tasks
        window = how.demonstration.window if how.demonstration.source == "own_success" else 0
        for age in range(1, window + 1):
            earlier = planner.planned(GENERATED, iteration - age)
            if earlier is not None:
                inputs[f"{_EARLIER}-{age:04d}"] = earlier
    seed = derive_seed(planner.config.seed, iteration, SCORE_TEACHER.name)
    scored = planner.settings(SCORE_TEACHER).model_copy(update={"self_distillation": how.for_scores})
    return planner.add(SCORE_TEACHER, inputs, iteration=iteration, settings=planner.shared(scored), seed=seed)


def _compute(call: StageCall[TeacherSettings]) -> StageResult:
    """Write the scores of every first attempt, or why it has none."""
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from storage.tables.teacher_scores import TeacherScores, write_teacher_scores

    settings = call.settings
    rows = _rows(call, ROLLOUTS)
    policy = sampled_checkpoint(call, settings.weights, POLICY)
    # Sorted by name, earlier iterations go from the latest to the first.
    before = sorted((name for name in call.inputs if name.startswith(_EARLIER)), reverse=True)
    sources = HindsightSources(
        settings.self_distillation,
        settings.roles,
        rows,
        earlier=[row for name in before for row in _rows(call, name)],
        held_out=read_tasks(call.inputs[TASKS], HELD_OUT, call.resources) if TASKS in call.inputs else (),
    )
    found = hindsight_of(sources, ChatTokenizer(policy.tokenizer), policy.context_length, call.seed)
    by_id = {row.trajectory_id: row for row in rows}
    taught = [
        Taught(trajectory_sequence(by_id[id_]), each)
        for id_, each in found.items()
        if isinstance(each, Hindsight)
    ]
    with training_stage.borrowed_trainer(call) as trainer:
        read = _read(call, trainer, taught)
        determinism = trainer.determinism
    scored = dict(zip([each.sequence.trajectory_id for each in taught], read, strict=True))
    table = []
    for id_, each in found.items():
        if isinstance(each, Hindsight):
            table += scores(trajectory_sequence(by_id[id_]), each, scored[id_], settings.self_distillation)
        else:
            table.append(TeacherScores(id_, 0, None, each))
    count = write_teacher_scores(call.folder / SCORES, table)
    return StageResult(
        counters={
            "scored": len(taught),
            "teacher_tokens": sum(_tokens_read(each, settings.self_distillation) for each in taught),
            **Counter(f"not_scored_{each}" for each in found.values() if isinstance(each, str)),
        },
        metrics=gap_metrics(
            [(by_id[each.trajectory_id], each) for each in table if not each.branch and not each.not_scored],
            settings.self_distillation,
            partial(token_class, policy.tokenizer),
        ),
        rows={SCORES: count},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        determinism=determinism,
    )


SCORE_TEACHER = Stage(
    name="score_teacher",
    version=6,
    output="table",
    settings=TeacherSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="training",
)


def _rows(call: StageCall[TeacherSettings], name: str) -> list[Trajectory]:
    from storage.tables.trajectories import read_trajectories

    return trainable(read_trajectories(trajectory_files(call.inputs[name], call.resources.store)))


@dataclass(frozen=True)
class Taught:
    """An attempt that a teacher reads."""

    sequence: TrainingSequence
    hindsight: Hindsight

    @property
    def behind_prompts(self) -> list[TrainingSequence]:
        """Its tokens behind each prompt, that with right hints first."""
        prompts = (self.hindsight, *self.hindsight.wrong)
        return [replace(self.sequence, prompt_token_ids=each.prompt_token_ids) for each in prompts]


def _read(
    call: StageCall[TeacherSettings], trainer: Trainer, taught: Sequence[Taught]
) -> list[list[TokenScores]]:
    """What the teacher says of each attempt, behind each of its prompts."""
    how, tokens = call.settings.self_distillation, call.settings.microbatch_tokens
    if not taught:
        return []
    asked = [each.behind_prompts for each in taught]
    if how.scores_student:
        own = trainer.token_scores([each.sequence for each in taught], tokens, how.compared_tokens)
        asked = [
            [replace(each, teacher=said) for each in prompts]
            for prompts, said in zip(asked, own, strict=True)
        ]
    flat = [each for prompts in asked for each in prompts]
    teacher = training_stage.other_policy(call, TEACHER)
    read = iter(trainer.token_scores(flat, tokens, how.compared_tokens, teacher))
    return [[next(read) for _ in prompts] for prompts in asked]


def _tokens_read(taught: Taught, how: SelfDistillationConfig) -> int:
    read = sum(len(each.token_ids) for each in taught.behind_prompts)
    return read + (len(taught.sequence.token_ids) if how.scores_student else 0)


def scores(
    sequence: TrainingSequence, hindsight: Hindsight, read: Sequence[TokenScores], how: SelfDistillationConfig
) -> list[TeacherScores]:
    """The scores of an attempt, from what a teacher says of its trained tokens behind the prompt with right
    hints, and those with wrong ones."""
    from storage.tables.teacher_scores import TeacherScores

    logprobs = [np.asarray(each.logprobs, dtype=np.float64) for each in read]
    if how.combination == "advantage":
        gaps = logprobs[0] - sequence.trained_behaviour_logprobs
        added = _by_token(sequence, how.coefficient * gaps.clip(-how.gap_limit, how.gap_limit))
    elif how.combination == "modulate":
        evidence = contrast(logprobs[0], logprobs[1:])
        settings = how.contrast
        change = modulation(
            evidence, strength=settings.strength, temperature=settings.temperature, limit=settings.limit
        )
        added = _by_token(sequence, np.where(np.abs(change) > settings.threshold, change, 0.0))
    else:
        added = np.zeros(0)
    return [
        TeacherScores(
            trajectory_id=sequence.trajectory_id,
            branch=branch,
            source_trajectory_id=prompt.source_trajectory_id,
            not_scored="",
            logprobs=_by_token(sequence, said.logprobs),
            advantages=np.zeros(0) if branch else added,
            entropies=said.entropies,
            support_ids=said.ids.ravel(),
            support_logprobs=said.id_logprobs.ravel(),
            tail_logprobs=said.tail_logprobs if how.compared_tokens else np.zeros(0),
        )
        for branch, (prompt, said) in enumerate(zip((hindsight, *hindsight.wrong), read, strict=True))
    ]


def _by_token(sequence: TrainingSequence, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values of the trained tokens at their places among all response tokens."""
    column = np.zeros(len(sequence.response_mask))
    column[sequence.trained_offsets] = values
    return column


def taught_sequences(
    sequences: Sequence[TrainingSequence], scored: Artifact | None, how: SelfDistillationConfig | None
) -> list[TrainingSequence]:
    """The sequences of an update with what teachers say of them: added to the advantages of their tokens, or
    for a loss of its own."""
    from storage.tables.teacher_scores import read_teacher_scores

    if scored is None:
        return list(sequences)
    by_id = {
        each.trajectory_id: each
        for each in read_teacher_scores(scored.path(SCORES))
        if not each.branch and not each.not_scored
    }
    return [
        taught(sequence, by_id[sequence.trajectory_id], how) if sequence.trajectory_id in by_id else sequence
        for sequence in sequences
    ]


def taught(
    sequence: TrainingSequence, said: TeacherScores, how: SelfDistillationConfig | None
) -> TrainingSequence:
    """A sequence with the scores of its tokens. `how`: None where they are only added to advantages.

    Raises ValueError where these are not of its tokens.
    """
    if len(said.logprobs) != len(sequence.response_token_ids):
        raise ValueError(
            f"trajectory {sequence.trajectory_id} has {len(sequence.response_token_ids)} response tokens and "
            f"{len(said.logprobs)} scores"
        )
    if how is None:
        return replace(sequence, token_advantages=tuple(said.advantages.tolist()))
    if how.combination == "modulate":
        added = modulated_addition(sequence.advantage, said.advantages.astype(np.float64))
        apart = np.where(said.advantages != 0, how.contrast.selected_weight, 0.0)
        return replace(sequence, token_advantages=tuple(added.tolist()), apart=tuple(apart.tolist()))
    shape = (sequence.trained_tokens, -1)
    scores_of_tokens = TokenScores(
        logprobs=said.logprobs[sequence.trained_offsets],
        entropies=said.entropies,
        ids=said.support_ids.reshape(shape),
        id_logprobs=said.support_logprobs.reshape(shape),
        tail_logprobs=said.tail_logprobs,
    )
    return replace(sequence, teacher=scores_of_tokens)
