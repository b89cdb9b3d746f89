"""The stage in which a policy scores its own attempts with hindsight, before it is trained on them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.prompts import render
from erl_pipeline.config.self_distillation import SelfDistillationConfig, SelfDistilledRoles
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint
from erl_pipeline.stages.training import training_stage
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    import numpy.typing as npt

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.messages import Message
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.plan.sources import Sources
    from storage.tables.teacher_scores import TeacherScores
    from storage.tables.trajectories import Trajectory

SCORES = "teacher_scores.parquet"


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
        self_distillation=config.self_distillation,
        roles=roles,
        microbatch_tokens=config.update.microbatch_tokens,
        **training_stage.training_settings(config),
    )


@dataclass(frozen=True)
class Hindsight:
    """A prompt that holds more than that of the attempt, and where this comes from."""

    prompt_token_ids: tuple[int, ...]
    source_trajectory_id: str


def _compute(call: StageCall[TeacherSettings]) -> StageResult:
    """Write the scores of every first attempt, or why it has none."""
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from storage.tables.parquet import write_rows
    from storage.tables.teacher_scores import TEACHER_SCORES, TeacherScores
    from storage.tables.trajectories import read_trajectories

    settings = call.settings
    rows = trainable(read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store)))
    policy = sampled_checkpoint(call, settings.weights, POLICY)
    found = hindsight_of(rows, settings, ChatTokenizer(policy.tokenizer), policy.context_length, call.seed)
    by_id = {row.trajectory_id: row for row in rows}
    taught = {id_: each for id_, each in found.items() if isinstance(each, Hindsight)}
    sequences = [
        replace(trajectory_sequence(by_id[id_]), prompt_token_ids=each.prompt_token_ids)
        for id_, each in taught.items()
    ]
    with training_stage.borrowed_trainer(call) as trainer:
        logprobs = trainer.logprobs(sequences, settings.microbatch_tokens)
        determinism = trainer.determinism
    limits = settings.self_distillation
    scored = {
        sequence.trajectory_id: scores(sequence, given, taught[sequence.trajectory_id], limits)
        for sequence, given in zip(sequences, logprobs, strict=True)
    }
    table = [
        scored[id_] if isinstance(each, Hindsight) else TeacherScores(id_, None, each)
        for id_, each in found.items()
    ]
    count = write_rows(call.folder / SCORES, map(vars, table), TEACHER_SCORES)
    return StageResult(
        counters={
            "scored": len(sequences),
            "teacher_tokens": sum(len(sequence.token_ids) for sequence in sequences),
            **Counter(f"not_scored_{each}" for each in found.values() if isinstance(each, str)),
        },
        metrics=gap_metrics([(by_id[each.trajectory_id], each) for each in scored.values()], limits),
        rows={SCORES: count},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        determinism=determinism,
    )


SCORE_TEACHER = Stage(
    name="score_teacher",
    version=1,
    output="table",
    settings=TeacherSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="training",
)


def hindsight_of(
    rows: Sequence[Trajectory],
    settings: TeacherSettings,
    chat: ChatTokenizer,
    context_length: int,
    seed: int,
) -> dict[str, Hindsight | str]:
    """For each first attempt its prompt with hindsight, or a word for why it has none.

    The tokens that were sampled follow the prompt as they are, so nothing is tokenized again behind it.
    Prompts that are rendered anew begin from the messages of the attempt, and only where these give its very
    tokens.
    """
    how, roles = settings.self_distillation, settings.roles
    attempts = [row for row in rows if row.role == roles.attempt]
    found: dict[str, Hindsight | str] = {}
    retries = {row.episode_id: row for row in reversed(rows) if row.role == roles.retry}
    succeeded: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for row in attempts:
        if row.success:
            succeeded[row.group_id].append(row)
    for row in attempts:
        hindsight: Hindsight | str
        if how.rows == "failed" and row.success:
            hindsight = "succeeded"
        elif how.hindsight == "reflection":
            hindsight = _of_retry(row, retries.get(row.episode_id))
        elif how.hindsight == "feedback":
            hindsight = _rendered(row, row, row.feedback, chat, how.template)
        else:
            others = [each for each in succeeded[row.group_id] if each is not row]
            if others:
                chosen = others[derive_seed(seed, row.trajectory_id) % len(others)]
                hindsight = _rendered(row, chosen, _said(chosen), chat, how.template)
            else:
                hindsight = "no_sibling"
        if not any(row.response_mask):
            hindsight = "no_tokens"
        elif isinstance(hindsight, Hindsight):
            tokens = len(hindsight.prompt_token_ids) + len(row.response_token_ids)
            hindsight = hindsight if tokens <= context_length else "too_long"
        found[row.trajectory_id] = hindsight
    return found


def _of_retry(row: Trajectory, retry: Trajectory | None) -> Hindsight | str:
    if retry is None:
        return "no_retry"
    if retry.prompt_token_ids == row.prompt_token_ids:
        return "no_text"
    return Hindsight(retry.prompt_token_ids, retry.parent_trajectory_id or retry.trajectory_id)


def _rendered(
    row: Trajectory, source: Trajectory, text: str, chat: ChatTokenizer, template: str
) -> Hindsight | str:
    if not text.strip():
        return "no_text"
    messages: list[Message] = list(
        takewhile(lambda each: each["role"] != "assistant", json.loads(row.messages))
    )
    if not messages or chat.prompt(messages) != row.prompt_token_ids:
        return "other_prompt"
    last = messages[-1]
    told: Message = {**last, "content": render(template, {"task": last["content"], "text": text})}
    return Hindsight(chat.prompt([*messages[:-1], told]), source.trajectory_id)


def _said(row: Trajectory) -> str:
    return "\n".join(each["content"] for each in json.loads(row.messages) if each["role"] == "assistant")


def scores(
    sequence: TrainingSequence,
    logprobs: npt.NDArray[np.float32],
    hindsight: Hindsight,
    settings: SelfDistillationConfig,
) -> TeacherScores:
    """The scores of a sequence from the log-probabilities of its trained tokens, `[trained]`, in nats."""
    from storage.tables.teacher_scores import TeacherScores

    gaps = np.asarray(logprobs, dtype=np.float64) - sequence.trained_behaviour_logprobs
    added = settings.coefficient * gaps.clip(-settings.gap_limit, settings.gap_limit)
    return TeacherScores(
        trajectory_id=sequence.trajectory_id,
        source_trajectory_id=hindsight.source_trajectory_id,
        not_scored="",
        logprobs=_by_token(sequence, logprobs),
        advantages=_by_token(sequence, added),
    )


def _by_token(sequence: TrainingSequence, values: npt.NDArray[np.floating]) -> tuple[float, ...]:
    """Values of the trained tokens at their places among all response tokens."""
    column = np.zeros(len(sequence.response_mask))
    column[sequence.trained_offsets] = values
    return tuple(column.tolist())


def gap_metrics(
    scored: Iterable[tuple[Trajectory, TeacherScores]], settings: SelfDistillationConfig
) -> Mapping[str, float]:
    """How the policy with hindsight differs from the one that sampled, in nats a token: the mean gap, that of
    attempts that succeeded and of those that failed, the share of tokens beyond the limit, and how much of
    all gaps the hundredth of tokens with the largest have. A teacher that knows something finds the tokens of
    successes more likely than those of failures."""
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for row, each in scored:
        pairs = zip(row.response_mask, each.logprobs, row.behaviour_logprobs, strict=True)
        gaps[row.success].extend(taught - stored for bit, taught, stored in pairs if bit)
    every = np.array(gaps[True] + gaps[False])
    if not len(every):
        return {}
    sizes = np.sort(np.abs(every))[::-1]
    top = sizes[: max(1, len(sizes) // 100)]
    return {
        "gap_mean": float(every.mean()),
        "gap_beyond_limit": float((sizes > settings.gap_limit).mean()),
        "gap_of_top_hundredth": float(top.sum() / sizes.sum()) if sizes.sum() else 0.0,
        **{
            f"gap_of_{name}": float(np.mean(gaps[success]))
            for name, success in (("successes", True), ("failures", False))
            if gaps[success]
        },
    }


def token_advantages(table: Iterable[Mapping[str, object]]) -> dict[str, tuple[float, ...]]:
    """Trajectory -> what is added to the advantage of each response token, for those that were scored."""
    from storage.tables.teacher_scores import TeacherScores

    rows = (TeacherScores(**row) for row in table)  # type: ignore[arg-type]
    return {row.trajectory_id: row.advantages for row in rows if not row.not_scored}
