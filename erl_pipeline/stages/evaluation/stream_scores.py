"""What is carried along a stream of tasks, and the scores of a streamed evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from erl_pipeline.episodes.encounters import (
    CONDITIONS,
    STREAMED_ATTEMPT,
    STREAMED_REFLECTION,
    STREAMED_RETRY,
    Condition,
)
from erl_pipeline.stages.evaluation.stream_tasks import StreamedTask
from erl_pipeline.statistics import paired_difference, success_rate
from storage.tables.scored import is_scored
from storage.tables.stream_scores import StreamScore
from storage.tables.trajectories import Trajectory

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
