"""What an examination of an environment found: one result for each check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

CheckName = Literal[
    "same_tasks",
    "tasks_apart",
    "gold_answers",
    "wrong_answers",
    "hostile_answers",
    "nothing_leaks",
    "feedback_and_rewards",
    "steps_in_time",
    "stored_and_trained",
]
Verdict = Literal["passed", "failed", "not applicable"]

MEANINGS: Mapping[CheckName, str] = {
    "same_tasks": "the same seed gives the same tasks, also in a process with another hash seed",
    "tasks_apart": "training, held-out and test tasks have no problem in common",
    "gold_answers": "a perfect attempt gets reward 1",
    "wrong_answers": "empty and wrong answers get no reward, and what resembles the right one not 1",
    "hostile_answers": "no answer makes the environment raise, hang or die",
    "nothing_leaks": "neither answer, seed nor task id is in prompts and feedback",
    "feedback_and_rewards": "every attempt ends with feedback, and all rewards are finite",
    "steps_in_time": "every call returns within rollouts.step_seconds",
    "stored_and_trained": "what comes of hostile answers can be stored, searched and trained on",
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. `counted` says how much was checked, in `unit`: tasks, attempts, answers,
    trajectories, texts or calls. `problem` is the first counter-example, or why the check does not apply;
    empty if it passed."""

    name: CheckName
    verdict: Verdict
    counted: int
    unit: str
    problem: str = ""


@dataclass(frozen=True)
class Qualification:
    """All checks of one environment, in the order of `MEANINGS`."""

    environment: str
    checks: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed; none if the environment is qualified."""
        return tuple(check.name for check in self.checks if check.verdict == "failed")

    def document(self) -> str:
        """The qualification as the JSON that its artifact holds."""
        return json.dumps(asdict(self), indent=1) + "\n"


def parse_qualification(document: str) -> Qualification:
    """A qualification from its JSON."""
    value = json.loads(document)
    return Qualification(value["environment"], tuple(CheckResult(**check) for check in value["checks"]))


def passed_or_failed(name: CheckName, counted: int, unit: str, problem: str | None) -> CheckResult:
    """The result of a check; it failed if it has a counter-example."""
    return CheckResult(name, "failed" if problem else "passed", counted, unit, problem or "")
