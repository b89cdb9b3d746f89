"""Attempts in an environment under examination, with turns that are fixed in advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, repeat

from erl_pipeline.qualification.environment_process import EnvironmentProcess, ProcessLost
from erl_pipeline.qualification.hostile_answers import HostileAnswer
from erl_pipeline.qualification.leaks import Later
from erl_pipeline.qualification.served_environment import AttemptFailure, Opening, Place, Split, TaskSign

MOST_TURNS = 64
"""The most turns of an attempt; it is then abandoned. In a rollout the policy's context would end it."""
WRONG_ANSWERS = ("xyz", "[xyz]", "<answer>xyz</answer>", "\\boxed{xyz}", "I do not know.", "xyz 917468203")

_SHOWN = 60


@dataclass
class Seen:
    """What all attempts have shown, whichever check made them. Problems are counter-examples that name the
    task.

    `told` maps a task to what the environment said after its prompt.
    """

    finished: int = 0
    calls: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    told: dict[Place, list[Later]] = field(default_factory=dict)
    feedback_problem: str | None = None
    late_problem: str | None = None

    def called(self, seconds: float) -> None:
        """Count a call that returned in time."""
        self.calls += 1
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)


@dataclass(frozen=True)
class Played:
    """The result of one attempt. `problem` says what the environment did if it could not go on."""

    reward: float
    over: bool
    turns: int
    problem: str | None = None


class Attempts:
    """Plays attempts in an examinee.

    Args:
        names: gives the id of a task, for messages.
    """

    def __init__(self, examinee: EnvironmentProcess, names: Callable[[Place], str], seen: Seen) -> None:
        self._examinee = examinee
        self._names = names
        self._seen = seen

    def opening(self, place: Place) -> Opening | str:
        """Begin an attempt; returns its opening, or the problem if it cannot begin. Raises ProcessLost."""
        opening = self._examinee.open(place)
        if isinstance(opening, AttemptFailure):
            return self._failed(place, "", opening)
        self._seen.called(opening.seconds)
        return opening

    def play(self, place: Place, turns: Sequence[str], *, secret: bool = False) -> Played:
        """Play an attempt with these turns, and then abandon it. In a `secret` attempt, what the environment
        says need not hide the answer. Raises ProcessLost."""
        opening = self.opening(place)
        if isinstance(opening, str):
            return Played(0.0, False, 0, opening)
        return self._go_on(place, iter(turns), secret)

    def repeat(self, place: Place, answer: str) -> Played:
        """Play an attempt that gives the same answer in each turn. Raises ProcessLost."""
        return self.play(place, list(repeat(answer, MOST_TURNS)))

    def use_up(self, place: Place, answers: Sequence[HostileAnswer]) -> Played:
        """Play an attempt that gives these answers, as many as it can. Raises ProcessLost."""
        opening = self.opening(place)
        if isinstance(opening, str):
            return Played(0.0, False, 0, opening)
        turns = (answer.after(opening.prompt) for answer in answers[:MOST_TURNS])
        return self._go_on(place, turns, secret=False)

    def _go_on(self, place: Place, turns: Iterator[str], secret: bool) -> Played:
        reward, number, over = 0.0, 0, False
        said: list[str] = []
        told: list[str] = []
        for text in turns:
            number += 1
            said.append(text)
            try:
                stepped = self._examinee.step(text)
            except ProcessLost as gone:
                raise ProcessLost(
                    f"task {self._names(place)}: answer {shown(text)}: {gone}", hung=gone.hung
                ) from gone
            if isinstance(stepped, AttemptFailure):
                return Played(0.0, False, number, self._failed(place, text, stepped))
            self._seen.called(stepped.seconds)
            reward += stepped.reward
            told.append(stepped.told)
            over = stepped.done
            if over:
                break
        if over:
            try:
                finished = self._examinee.finish()
            except ProcessLost as gone:
                text = f"task {self._names(place)}: after {shown(said[-1])}: {gone}"
                raise ProcessLost(text, hung=gone.hung) from gone
            if isinstance(finished, AttemptFailure):
                return Played(0.0, False, number, self._failed(place, said[-1], finished))
            self._seen.called(finished.seconds)
            self._seen.finished += 1
            if not finished.feedback.strip() and self._seen.feedback_problem is None:
                self._seen.feedback_problem = (
                    f"task {self._names(place)}: the feedback after {shown(said[-1])} is empty"
                )
            told += [finished.feedback, finished.trace]
        if not secret:
            self._seen.told.setdefault(place, []).append(Later("\n".join(told), "\n".join(said)))
        return Played(reward, over, number)

    def _failed(self, place: Place, text: str, failure: AttemptFailure) -> str:
        after = f" after {shown(text)}" if text else ""
        problem = f"task {self._names(place)}{after}: {failure.text}"
        if failure.kind == "late" and self._seen.late_problem is None:
            self._seen.late_problem = problem
        if failure.kind == "not finite" and self._seen.feedback_problem is None:
            self._seen.feedback_problem = problem
        return problem


def shown(text: str) -> str:
    """A text in the form used in counter-examples: escaped, and cut if it is long."""
    return ascii(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!a}... ({len(text):,} characters)"


def first_difference(
    tasks: Sequence[TaskSign], again: Sequence[TaskSign], split: Split, when: str
) -> str | None:
    """A sentence on the first task of a split that is different when made again; None if all are the same.

    `when` says in the sentence how the tasks were made again.
    """
    for number, (one, other) in enumerate(zip(tasks, again, strict=False), start=1):
        if one != other:
            what = f"is {other.task_id}" if one.task_id != other.task_id else "is another problem"
            return f"{split} task {number}, {one.task_id}, {what} {when}"
    if len(tasks) != len(again):
        return f"there are {len(tasks)} {split} tasks, and {len(again)} {when}"
    return None


def find_overlap(splits: Mapping[Split, Sequence[TaskSign]]) -> str | None:
    """A sentence on the first problem in two splits, by the environment's `task_key`; None without any."""
    for (name, tasks), (other_name, others) in combinations(splits.items(), 2):
        known = {task.key: task.task_id for task in tasks}
        for task in others:
            if task.key in known:
                return f"{other_name} task {task.task_id} is the {name} task {known[task.key]}"
    return None
