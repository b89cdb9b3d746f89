"""The examination of an environment: its processes, the attempts in them, and a result for each check."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, zip_longest

from erl_pipeline.environments.messages import ToolSchema
from erl_pipeline.qualification.check import (
    MEANINGS,
    CheckName,
    CheckResult,
    Qualification,
    Told,
    find_leak,
    passed_or_failed,
)
from erl_pipeline.qualification.environment_process import (
    WRONG_ANSWERS,
    Attempts,
    EnvironmentProcess,
    Played,
    ProcessLost,
    Raised,
    Seen,
    shown,
)
from erl_pipeline.qualification.hostile_answers import hostile_answers
from erl_pipeline.qualification.learning import MOST_ANSWERS
from erl_pipeline.qualification.served_environment import (
    AttemptFailure,
    EnvironmentSpec,
    Opening,
    Place,
    Prepared,
    Solution,
    Split,
    TaskSign,
)
from storage.artifacts.recipe import derive_seed

_HASH_SEED, _OTHER_HASH_SEED = 0, 1


@dataclass(frozen=True)
class Examined:
    """What was found. `tasks` is the number of tasks attempted, `answers` that of hostile answers given.
    `mean_seconds` and `slowest_seconds` are times of calls of the environment."""

    qualification: Qualification
    tasks: int
    answers: int
    mean_seconds: float
    slowest_seconds: float


def examine(
    subject: EnvironmentSpec,
    tasks: int,
    answers: int,
    advance: Callable[[int], None] = lambda count: None,
    stopped: Callable[[], None] = lambda: None,
) -> Examined:
    """Examine an environment in separate processes.

    Args:
        advance: is called with the number of tasks attempted or answers given since the last call.
        stopped: raises when the user wants to stop; it is called all the time.

    Raises InputError for a mistake in the settings, or in a file that they name.
    """
    examination = _Examination(subject, advance, stopped)
    try:
        return examination.of(tasks, answers)
    finally:
        examination.end()


class _Examination:
    """The state of one examination. A process that hung or died is replaced for the next check."""

    def __init__(
        self, subject: EnvironmentSpec, advance: Callable[[int], None], stopped: Callable[[], None]
    ) -> None:
        self._subject = subject
        self._advance = advance
        self._stopped = stopped
        self._seen = Seen()
        self._prepared = Prepared({}, ())
        self._places: Sequence[Place] = ()
        self._openings: dict[Place, Opening] = {}
        self._solutions: dict[Place, Solution] = {}
        self._process: EnvironmentProcess | None = None

    def of(self, tasks: int, answers: int) -> Examined:
        """Make all checks, in the order of `MEANINGS`; without tasks only the first applies."""
        try:
            results = [self._same_tasks(tasks)]
        except (Raised, ProcessLost) as error:
            results = [passed_or_failed("same_tasks", 0, "tasks", f"no tasks could be made: {error}")]
        given = 0
        if self._places:
            results += [self._tasks_apart(), self._gold_answers(), self._wrong_answers()]
            hostile, given = self._hostile_answers(answers)
            results += [hostile, self._nothing_leaks(), self._feedback_and_rewards(), self._steps_in_time()]
            results.append(self._stored_and_trained(answers, results))
        else:
            names = [name for name in MEANINGS if name != "same_tasks"]
            results += [_not_applicable(name, "tasks", "there is no task to attempt") for name in names]
        return Examined(
            Qualification(self._subject.type, tuple(results)),
            len(self._places),
            given,
            self._seen.seconds / max(1, self._seen.calls),
            self._seen.slowest,
        )

    def end(self) -> None:
        """End the process that is left."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _examinee(self) -> EnvironmentProcess:
        if self._process is None:
            self._process = EnvironmentProcess(self._subject, _HASH_SEED, self._stopped)
            self._prepared = self._process.prepare()
        return self._process

    def _attempts(self) -> Attempts:
        return Attempts(self._examinee(), self._name, self._seen)

    def _name(self, place: Place) -> str:
        split, number = place
        return self._prepared.splits[split][number].task_id

    def _same_tasks(self, count: int) -> CheckResult:
        examinee = self._examinee()
        splits = self._prepared.splits
        made = sum(map(len, splits.values()))
        problem = first_difference(
            self._prepared.shorter,
            splits["held-out"][: len(self._prepared.shorter)],
            "held-out",
            "when fewer are asked for",
        )
        self._places = _chosen({split: len(tasks) for split, tasks in splits.items()}, count, self._subject)
        with EnvironmentProcess(self._subject, _OTHER_HASH_SEED, self._stopped) as other:
            again = other.prepare()
            for split, tasks in splits.items():
                problem = problem or first_difference(
                    tasks, again.splits[split], split, "in a process with another hash seed"
                )
            for place in self._places:
                opened = [examinee.open(place), examinee.open(place)]
                # If the other process made other tasks, their beginnings differ anyway.
                opened += [] if problem else [other.open(place)]
                told = [each for each in opened if isinstance(each, Opening)]
                if told:
                    self._openings[place] = told[0]
                if len(told) == len(opened) and len({(each.prompt, str(each.tools)) for each in told}) > 1:
                    problem = problem or f"task {self._name(place)} does not always begin in the same way"
        return passed_or_failed("same_tasks", made, "tasks", problem)

    def _tasks_apart(self) -> CheckResult:
        splits = self._prepared.splits
        return passed_or_failed("tasks_apart", sum(map(len, splits.values())), "tasks", find_overlap(splits))

    def _gold_answers(self) -> CheckResult:
        counted, problem = 0, None
        try:
            examinee = self._examinee()
            self._solutions = {place: examinee.solution(place) for place in self._places}
            for place, solution in self._solutions.items():
                if solution.turns is None:
                    continue
                counted += 1
                played = self._attempts().play(place, solution.turns, secret=True)
                problem = problem or _problem_of_gold(self._name(place), solution.turns, played)
        except (Raised, ProcessLost) as error:
            ended_by = self._ended_by(error)
            problem = problem or ended_by
        if not counted and not problem:
            why = "the environment gives no gold answers (EnvironmentPlugin.gold_answers)"
            return _not_applicable("gold_answers", "attempts", why)
        return passed_or_failed("gold_answers", counted, "attempts", problem)

    def _wrong_answers(self) -> CheckResult:
        counted, problem = 0, None
        try:
            for place, other in zip(self._places, cycle(WRONG_ANSWERS)):
                solution = self._solutions.get(place)
                for answer in ("", other):
                    if solution is not None and any(answer == each.text for each in solution.secrets):
                        continue
                    counted += 1
                    played = self._attempts().repeat(place, answer)
                    problem = problem or played.problem
                    if played.reward > 0:
                        problem = problem or (
                            f"task {self._name(place)}: {shown(answer)} gets reward {played.reward:g}"
                        )
                for answer in solution.wrong if solution is not None else ():
                    counted += 1
                    played = self._attempts().repeat(place, answer)
                    problem = problem or played.problem
                    if played.reward >= 1:
                        problem = problem or (
                            f"task {self._name(place)}: {shown(answer)} is wrong and gets reward "
                            f"{played.reward:g}"
                        )
                self._advance(1)
        except ProcessLost as gone:
            ended_by = self._ended_by(gone)
            problem = problem or ended_by
        return passed_or_failed("wrong_answers", counted, "attempts", problem)

    def _hostile_answers(self, count: int) -> tuple[CheckResult, int]:
        answers = hostile_answers(count, self._subject.seed, self._tools())
        given, failed, problem = 0, 0, None
        try:
            for place in cycle(self._places):
                if given >= len(answers):
                    break
                played = self._attempts().use_up(place, answers[given:])
                used = max(1, played.turns)
                given += used
                self._advance(used)
                if played.problem:
                    failed += 1
                    problem = problem or played.problem
        except ProcessLost as gone:
            ended_by = self._ended_by(gone)
            problem = problem or ended_by
        if failed > 1:
            problem = f"{failed} attempts failed; the first: {problem}"
        return passed_or_failed("hostile_answers", given, "answers", problem), given

    def _stored_and_trained(self, count: int, others: Sequence[CheckResult]) -> CheckResult:
        name: CheckName = "stored_and_trained"
        if any(each.verdict == "failed" for each in others):
            return _not_applicable(name, "trajectories", "another check failed; correct that first")
        chosen = hostile_answers(min(count, MOST_ANSWERS), self._subject.seed, self._tools())
        if not chosen:
            return _not_applicable(name, "trajectories", "no hostile answers are asked for")
        texts = [answer.after(next(iter(self._openings.values())).prompt) for answer in chosen]
        try:
            learned = self._examinee().learn(self._places, texts)
        except ProcessLost as gone:
            return passed_or_failed(name, 0, "trajectories", self._ended_by(gone))
        if isinstance(learned, AttemptFailure):
            return passed_or_failed(name, 0, "trajectories", learned.text)
        return passed_or_failed(name, learned.rows, "trajectories", None)

    def _tools(self) -> Sequence[ToolSchema]:
        """The tools of the first attempt that offers any."""
        return next((opening.tools for opening in self._openings.values() if opening.tools), ())

    def _nothing_leaks(self) -> CheckResult:
        told = [
            Told(
                self._name(place),
                self._solutions[place].secrets,
                self._solutions[place].keys,
                self._openings[place].prompt,
                tuple(self._seen.told.get(place, ())),
            )
            for place in self._places
            if place in self._openings and place in self._solutions
        ]
        if not told:
            why = "what may not be told is not known: gold_answers has failed"
            return _not_applicable("nothing_leaks", "texts", why)
        texts = sum(1 + len(each.later) for each in told)
        return passed_or_failed("nothing_leaks", texts, "texts", find_leak(told))

    def _feedback_and_rewards(self) -> CheckResult:
        seen = self._seen
        if not seen.finished and seen.feedback_problem is None:
            return _not_applicable("feedback_and_rewards", "attempts", "no attempt came to its end")
        return passed_or_failed("feedback_and_rewards", seen.finished, "attempts", seen.feedback_problem)

    def _steps_in_time(self) -> CheckResult:
        return passed_or_failed("steps_in_time", self._seen.calls, "calls", self._seen.late_problem)

    def _ended_by(self, error: Raised | ProcessLost) -> str:
        """A sentence on what ended a check; a process that hung or died is ended."""
        if isinstance(error, ProcessLost):
            self.end()
            if error.hung and self._seen.late_problem is None:
                self._seen.late_problem = str(error)
        return str(error)


def _chosen(sizes: dict[Split, int], count: int, subject: EnvironmentSpec) -> list[Place]:
    """`count` tasks, from each split in turn, in an order that depends only on the seed."""
    orders: list[Iterable[Place]] = []
    for split, size in sizes.items():
        stream = random.Random(derive_seed(subject.seed, "qualify", split))
        orders.append([(split, number) for number in stream.sample(range(size), min(size, count))])
    in_turn = [place for turn in zip_longest(*orders) for place in turn if place is not None]
    return in_turn[:count]


def _problem_of_gold(name: str, turns: Sequence[str], played: Played) -> str | None:
    answer = " | ".join(turns)
    if played.problem:
        return played.problem
    if not played.over:
        return f"task {name}: the attempt is not over after the gold answer {shown(answer)}"
    if abs(played.reward - 1.0) > 1e-6:
        return f"task {name}: the gold answer {shown(answer)} gets reward {played.reward:g}, not 1"
    return None


def _not_applicable(name: CheckName, unit: str, why: str) -> CheckResult:
    return CheckResult(name, "not applicable", 0, unit, why)


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
