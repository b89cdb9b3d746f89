"""What is carried along a stream of tasks, and the scores of a streamed evaluation: one row for each task and
condition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from erl_pipeline.statistics import paired_difference, success_rate
from realms.encounters import (
    CONDITIONS,
    STREAMED_ATTEMPT,
    STREAMED_REFLECTION,
    STREAMED_RETRY,
    Condition,
)
from realms.tasks import StreamedTask
from storage.tables.parquet import TableFormat, read_rows, write_rows
from storage.tables.scored import is_scored
from storage.tables.trajectories import Trajectory

STREAM_SCORE_SCHEMA = pa.schema(
    [
        pa.field("condition", pa.string(), nullable=False),
        pa.field("encounter", pa.int32(), nullable=False),
        pa.field("realm", pa.string(), nullable=False),  # the held-out realm
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("first_attempt_success", pa.bool_()),  # null: not scored
        pa.field("retry_success", pa.bool_()),  # null: not made, or not scored
        pa.field("first_trajectory_id", pa.string(), nullable=False),  # the first attempt
        pa.field("reflection_trajectory_id", pa.string()),  # null: there was none
    ]
)
STREAM_SCORES = TableFormat(
    name="stream_scores",
    version=2,
    schema=STREAM_SCORE_SCHEMA,
    dictionary=("condition", "realm", "note"),
)


@dataclass(frozen=True)
class StreamScore:
    """One task of a stream under one condition."""

    condition: str
    """The kind of note that was given: `none`, `own`, `oracle` or `other`."""
    encounter: int
    """The task's place in its stream, from 1."""
    realm: str
    stream: int
    """Which stream of the realm, from 0."""
    task_id: str
    note: str | None
    """The note that was given; None if there was none (yet)."""
    first_attempt_success: bool | None
    """Success of the attempt that was given the note; None if it was not scored."""
    retry_success: bool | None
    """Success of a second attempt, after a reflection that was given the note as memory; also False after an
    ill-formed reflection. None if there was no second attempt, since the attempt without a note succeeded or
    was not scored, and if the second attempt was not scored."""
    first_trajectory_id: str
    reflection_trajectory_id: str | None


def write_stream_scores(path: Path, scores: Iterable[StreamScore]) -> int:
    """Write scores and return how many. Equal scores give equal bytes."""
    return write_rows(path, (asdict(score) for score in scores), STREAM_SCORES)


def read_stream_scores(paths: Sequence[Path]) -> list[StreamScore]:
    """The scores of files, in order. Raises StoreError for a file that is not in this format."""
    return [StreamScore(**row) for row in read_rows(paths, STREAM_SCORES)]


NONE, OWN = CONDITIONS[0], CONDITIONS[1]


class StreamMemory:
    """For each stream, the latest reflection that led to success."""

    def __init__(self) -> None:
        self._notes: dict[tuple[int, int], str] = {}

    def notes(self, met: StreamedTask) -> Mapping[Condition, str | None]:
        """The note that each condition gets at a task."""
        return {
            "none": None,
            "own": self._notes.get((met.realm, met.stream)),
            "oracle": met.lesson,
            "other": met.foreign,
        }

    def remember(self, met: StreamedTask, rows: Iterable[Trajectory]) -> None:
        """Keep the reflection that was written with the stream's own note, if it led to success."""
        for row in rows:
            own = CONDITIONS[row.sample_index] == OWN
            if own and row.role == STREAMED_REFLECTION and row.success and row.text is not None:
                self._notes[met.realm, met.stream] = row.text


def score_encounter(
    met: StreamedTask, notes: Mapping[Condition, str | None], rows: Sequence[Trajectory]
) -> list[StreamScore]:
    """The scores of one task, a row for each condition, in their order."""
    by_place = {(row.sample_index, row.role): row for row in rows}
    retried = any(row.role == STREAMED_REFLECTION for row in rows)
    scores = []
    for number, condition in enumerate(CONDITIONS):
        first = by_place[number, STREAMED_ATTEMPT]
        reflection = by_place.get((number, STREAMED_REFLECTION))
        retry = by_place.get((number, STREAMED_RETRY))
        scores.append(
            StreamScore(
                condition=condition,
                encounter=met.encounter,
                realm=met.task.task_type,
                stream=met.stream,
                task_id=met.task.task_id,
                note=notes[condition],
                first_attempt_success=_success(first),
                retry_success=_success(retry) if retry is not None else False if retried else None,
                first_trajectory_id=first.trajectory_id,
                reflection_trajectory_id=None if reflection is None else reflection.trajectory_id,
            )
        )
    return scores


def _success(attempt: Trajectory) -> bool | None:
    return attempt.success if is_scored(attempt) else None


def stream_metrics(scores: Sequence[StreamScore]) -> dict[str, float]:
    """Success by condition in the second half of the encounters, when streams have notes of their own.

    `first_NAME` is that of first attempts given the note, `retry_NAME` that of retries. `first_own_gain` and
    `retry_own_gain` are the differences to no note at the same tasks, with 95 % intervals. Tasks are the
    sampling unit: the intervals ignore that tasks of one stream share its note. Attempts that were not scored
    are left out, and so is a rate without outcomes; a difference is over the tasks that both conditions have.
    """
    last = max(score.encounter for score in scores)
    late = [score for score in scores if score.encounter > last // 2]
    metrics: dict[str, float] = {}
    for name in ("first", "retry"):
        outcomes = {condition: _outcomes(late, condition, name) for condition in CONDITIONS}
        for condition, of_condition in outcomes.items():
            if of_condition:
                metrics[f"{name}_{condition}"] = success_rate(list(of_condition.values())).value
        both = outcomes[NONE].keys() & outcomes[OWN].keys()
        if both:
            none, own = ({task: outcomes[each][task] for task in sorted(both)} for each in (NONE, OWN))
            gain = paired_difference(none, own)
            metrics[f"{name}_own_gain"] = gain.difference
            metrics |= {f"{name}_own_gain_low": gain.low, f"{name}_own_gain_high": gain.high}
    return metrics


def _outcomes(scores: Sequence[StreamScore], condition: str, name: str) -> dict[str, bool]:
    """Task -> success of first attempts or of retries, under a condition."""
    found: dict[str, bool] = {}
    for score in scores:
        success = score.first_attempt_success if name == "first" else score.retry_success
        if score.condition == condition and success is not None:
            found[score.task_id] = success
    return found
