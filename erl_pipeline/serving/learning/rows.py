"""Rows of a served episode: ordinary trajectories, and beside each what traffic it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from statistics import fmean
from typing import Any

from erl_pipeline.serving.learning.sequences import TurnSequence, turn_sequences
from storage.artifacts.recipe import digest
from storage.serving.collected import ServedCorrection, ServedTrajectory
from storage.serving.traffic import Feedback, Record
from storage.tables.scored import NOT_RATED, NOT_TRAINABLE, is_scored
from storage.tables.trajectories import Trajectory, trajectory_id

ENVIRONMENT = "served"
UNRATED = "nobody rated it"
COMMENT, CORRECTION = "comment", "correction"


@dataclass(frozen=True)
class Batch:
    """What the rows of one artifact have in common.

    `asked` says what a conversation asks that may not be trained on, such as a held-out task; None for
    nothing of the kind.
    """

    artifact_id: str
    iteration: int
    role: str
    success_threshold: float
    asked: Callable[[Sequence[Mapping[str, str]]], str | None]


@dataclass(frozen=True)
class EpisodeRows:
    """The sequences of one episode; the first of them stands for it, as with agents' attempts."""

    trajectories: Sequence[Trajectory]
    served: Sequence[ServedTrajectory]
    corrections: Sequence[ServedCorrection] = ()

    @property
    def is_scored(self) -> bool:
        return is_scored(self.trajectories[0])

    @property
    def task_type(self) -> str:
        return self.trajectories[0].task_type


def episode_rows(batch: Batch, episode_id: str, records: Sequence[Record]) -> EpisodeRows:
    """The rows of an episode with at least one turn, from its records in the order of the log.

    Its reward is the mean of its numbers, of which the newest counts for each call and metric. It is not
    scored where there is none, where no token can be trained, or where it asks what is held out. The group
    is one of its own.
    """
    feedback = [record for record in records if record.type == "feedback"]
    sequences = turn_sequences([record for record in records if record.type == "turn"])
    first = sequences[0].turns[0]
    # The episode's first sequence stands for it, which has to be one that is trained.
    sequences.sort(key=lambda each: bool(each.not_trainable))
    said = [_said(sequence.messages) for sequence in sequences]
    rewards, comments = _newest(feedback), _comments(feedback)
    feedback_ids = tuple(each.feedback_id for each in feedback)
    reason = UNRATED if not rewards else sequences[0].not_trainable
    if not reason:
        asked = next(filter(None, map(batch.asked, said)), None)
        reason = "" if asked is None else f"it asks {asked}"
    reward = fmean(rewards) if rewards else 0.0
    finish = "done" if not reason else NOT_TRAINABLE if rewards else NOT_RATED
    task_id = f"{ENVIRONMENT}-{digest(_said(first.messages))[:12]}"
    rows: list[Trajectory] = []
    served: list[ServedTrajectory] = []
    for number, (sequence, messages) in enumerate(zip(sequences, said, strict=True)):
        begun, ended = sequence.turns[0], sequence.turns[-1]
        row = Trajectory(
            trajectory_id=trajectory_id(batch.artifact_id, episode_id, number),
            episode_id=episode_id,
            parent_trajectory_id=rows[0].trajectory_id if rows else None,
            iteration=batch.iteration,
            task_id=task_id,
            task_type=first.task_type,
            environment=ENVIRONMENT,
            role=batch.role,
            revision_index=0,
            sample_index=0,
            group_id=trajectory_id(batch.artifact_id, episode_id, "group"),
            subgroup=None,
            prompt_token_ids=sequence.prompt,
            response_token_ids=tuple(sequence.response),
            response_mask=tuple(sequence.mask),
            behaviour_logprobs=tuple(sequence.logprobs),
            temperature=begun.temperature,
            policy_version=begun.policy_version,
            tokenizer_digest=begun.tokenizer_digest,
            reward=reward,
            success=not reason and reward >= batch.success_threshold,
            finish_reason=finish,
            truncated=ended.finish_reason == "length",
            feedback=comments,
            messages=_json(messages),
            memory_version=begun.memory_version,
            memory_entry_ids=begun.memory_entry_ids,
            seed=begun.seed,
            task_payload="{}",
        )
        rows.append(row)
        served.append(
            ServedTrajectory(
                trajectory_id=row.trajectory_id,
                episode_id=begun.episode_id,
                user=begun.user,
                tenant=begun.tenant,
                alias=begun.alias,
                turn_ids=tuple(turn.turn_id for turn in sequence.turns),
                call_ids=tuple(dict.fromkeys(turn.call_id for turn in sequence.turns)),
                feedback_ids=feedback_ids,
                not_trainable=reason or sequence.not_trainable,
            )
        )
    return EpisodeRows(rows, served, list(_corrections(batch, rows, sequences, feedback)))


def _corrections(
    batch: Batch, rows: Sequence[Trajectory], sequences: Sequence[TurnSequence], feedback: Sequence[Feedback]
) -> Iterator[ServedCorrection]:
    """The newest correction of each call, unless the call asks what is held out, or what came before its
    answer is not known. Of several choices, which have the same prompt, the first one is named."""
    newest = {
        each.call_id: each
        for each in sorted(feedback, key=lambda each: each.received)
        if each.metric == CORRECTION and str(each.value).strip()
    }
    for row, sequence in zip(rows, sequences, strict=True) if newest else ():
        said = _said(sequence.messages)
        for turn, place in zip(sequence.turns, sequence.answers, strict=True):
            if sequence.is_lost or turn.call_id not in newest:
                continue
            given = newest.pop(turn.call_id)
            text = str(given.value).strip()
            if batch.asked([*said[: place.messages], {"role": "assistant", "content": text}]) is None:
                yield ServedCorrection(
                    given.feedback_id,
                    row.trajectory_id,
                    turn.call_id,
                    place.messages,
                    place.tokens,
                    text,
                )


def _newest(feedback: Sequence[Feedback]) -> list[float]:
    """The newest reward of each call (or of the episode as a whole) and metric."""
    newest: dict[tuple[str | None, str], float] = {}
    for each in sorted(feedback, key=lambda each: each.received):
        if each.reward is not None:
            newest[each.call_id, each.metric] = each.reward
    return list(newest.values())


def _comments(feedback: Sequence[Feedback]) -> str:
    return "\n".join(str(each.value) for each in feedback if each.metric == COMMENT)


def _said(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Messages with roles and texts alone."""
    return [{"role": str(each["role"]), "content": _text(each)} for each in messages]


def _json(said: Sequence[Mapping[str, str]]) -> str:
    """What `json.dumps(said, ensure_ascii=False)` gives, in half its time."""
    texts = [
        f'{{"role": {encode_basestring(each["role"])}, "content": {encode_basestring(each["content"])}}}'
        for each in said
    ]
    return f"[{', '.join(texts)}]"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) and not message.get("tool_calls"):
        return content
    return "\n".join(_texts(message))


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    """The text of a message, and its tool calls."""
    content = message.get("content")
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        yield str(part.get("text", ""))
    for call in message.get("tool_calls") or ():
        yield f"{call['function']['name']}({call['function']['arguments']})"
