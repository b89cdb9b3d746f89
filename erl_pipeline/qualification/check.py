"""What an examination of an environment found: one result for each check; and the search for leaks.

Secrets are looked for in what a policy is told: answers, seeds, task ids, raw payloads. A short answer may
also occur in harmless texts by chance, like the 4 in "Steps used: 4", or because the question lists choices.
So a short secret counts as leaked only if the secrets of many tasks follow the same words.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

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


SecretKind = Literal["answer", "seed", "task id"]

_LONG: Mapping[SecretKind, int] = {"answer": 12, "seed": 6, "task id": 5}
"""A secret with at least this many characters does not occur by chance."""
_BEFORE = 8
_LEAST = 3
_OF_PROMPTS, _OF_LATER = 0.8, 0.2
"""Secrets are leaked if they follow the same words in at least this share of the tasks: in prompts, or in
what the environment says later."""
_ANSWER_KEY = re.compile(r"(?:^|_)(?:answers?|solutions?|gold)$", re.IGNORECASE)
_SEED_KEY = re.compile(r"(?:^|_)seed$", re.IGNORECASE)
_FRAMED = re.compile(r"\[([^\[\]]*)\]|\\boxed\{(.*)\}|<answer>(.*?)</answer>|```(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Secret:
    """Something about a task that the policy must not be told."""

    kind: SecretKind
    text: str


@dataclass(frozen=True)
class Later:
    """What the environment said in an attempt after the prompt, and what the policy had said itself."""

    text: str
    said: str


@dataclass(frozen=True)
class Told:
    """All that the policy was told about one task, and its secrets. `keys` are the payload's keys."""

    task_id: str
    secrets: tuple[Secret, ...]
    keys: tuple[str, ...]
    prompt: str
    later: tuple[Later, ...]


def secrets_of(task_id: str, payload: Mapping[str, Any], gold: Sequence[str] | None) -> tuple[Secret, ...]:
    """The secrets of a task: its id, the answers of a perfect attempt (with and without what frames them),
    and the values that the payload calls an answer, a solution or a seed."""
    found = [Secret("task id", task_id)]
    spoken = [turn for turn in gold or () if "<tool_call>" not in turn]
    for text in (" ".join(spoken), " ".join(map(_unframed, spoken))):
        found.append(Secret("answer", text))
    for key, value in _leaves(payload):
        if _ANSWER_KEY.search(key):
            found.append(Secret("answer", str(value)))
        elif _SEED_KEY.search(key):
            found.append(Secret("seed", str(value)))
    return tuple(dict.fromkeys(secret for secret in found if secret.text.strip()))


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield key, value


def _unframed(turn: str) -> str:
    """The content of the last brackets, box, tags or fence of a text; the whole text if it has none."""
    found = list(_FRAMED.finditer(turn))
    return turn if not found else next(group for group in found[-1].groups() if group is not None)


def find_leak(told: Sequence[Told]) -> str | None:
    """The first leak, in words; None if there is none."""
    for task in told:
        problem = _raw_payload(task) or _long_secret(task)
        if problem:
            return problem
    for kind in ("answer", "seed", "task id"):
        problem = _same_words(told, kind, in_prompt=True) or _same_words(told, kind, in_prompt=False)
        if problem:
            return problem
    return None


def _raw_payload(task: Told) -> str | None:
    """The problem if a text has two keys of the payload as JSON or Python writes them: it then holds the raw
    payload."""
    for where, text in (("its prompt", task.prompt), *(("what follows", each.text) for each in task.later)):
        keys = [key for key in task.keys if re.search(rf"""["']{re.escape(key)}["']\s*:""", text)]
        if len(keys) > 1:
            return f"task {task.task_id}: {where} holds the payload's fields {', '.join(keys)}"
    return None


def _long_secret(task: Told) -> str | None:
    for secret in task.secrets:
        if len(secret.text.strip()) < _LONG[secret.kind] or _is_a_word(secret):
            continue
        # A question may name its answer among others, but has no reason to hold its own id or seed.
        in_prompt = _stands_in(secret.text, task.prompt)
        if in_prompt and secret.kind != "answer":
            return f"task {task.task_id}: its prompt holds its {secret.kind} {_shown(secret.text)}"
        if in_prompt:
            continue
        for each in task.later:
            if _stands_in(secret.text, each.text) and not _stands_in(secret.text, each.said):
                return (
                    f"task {task.task_id}: the {secret.kind} {_shown(secret.text)} is told: "
                    f"{_around(secret.text, each.text)}"
                )
    return None


def _is_a_word(secret: Secret) -> bool:
    """Whether a secret is an id such as `paris`, which may occur in an ordinary question."""
    return secret.kind == "task id" and secret.text.isalpha()


def _same_words(told: Sequence[Told], kind: SecretKind, *, in_prompt: bool) -> str | None:
    share = _OF_PROMPTS if in_prompt else _OF_LATER
    values = [[each.text for each in task.secrets if each.kind == kind] for task in told]
    having = sum(map(bool, values))
    found = _by_words(told, values, in_prompt=in_prompt)
    for words, places in found.items():
        tasks = {number for number, _ in places}
        distinct = {value for _, value in places}
        if len(tasks) < max(_LEAST, share * having) or len(distinct) < 2:
            continue
        # If it is chance, the secrets of other tasks follow these words just as often.
        by_chance = max(
            len({number for number, _ in _by_words(told, turned, in_prompt=in_prompt).get(words, ())})
            for turned in (values[shift:] + values[:shift] for shift in (1, 2, 3))
        )
        if len(tasks) > 2 * by_chance:
            number, value = min(places)
            where = "the prompt" if in_prompt else "what the environment says"
            return (
                f"task {told[number].task_id} and {len(tasks) - 1} others: {where} holds the {kind} "
                f"{_shown(value)} after {words!r}"
            )
    return None


def _by_words(
    told: Sequence[Told], values: Sequence[Iterable[str]], *, in_prompt: bool
) -> Mapping[str, set[tuple[int, str]]]:
    """The words before a secret -> pairs of a task's number and its secret."""
    found: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for number, (task, own) in enumerate(zip(told, values, strict=True)):
        for value in own:
            if in_prompt:
                for words in _words_before(value, task.prompt):
                    found[words].add((number, value))
            elif not _stands_in(value, task.prompt):
                for each in task.later:
                    if not _stands_in(value, each.said):
                        for words in _words_before(value, each.text):
                            found[words].add((number, value))
    return found


def _pattern(value: str) -> str:
    return rf"(?<!\w){re.escape(value.strip())}(?!\w)"


def _stands_in(value: str, text: str) -> bool:
    return value.strip() in text and re.search(_pattern(value), text) is not None


def _words_before(value: str, text: str) -> list[str]:
    """The characters right before each occurrence of a value; all digits in them become `#`."""
    if value.strip() not in text:
        return []
    return [
        re.sub(r"\d", "#", text[max(0, found.start() - _BEFORE) : found.start()])
        for found in re.finditer(_pattern(value), text)
    ]


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")


def _around(value: str, text: str) -> str:
    place = text.index(value.strip())
    return repr(text[max(0, place - 30) : place + len(value) + 30])
