"""The training, held-out and test tasks of a run: entries of reasoning-gym, each stored whole.

Entries are made from a seed in a process of their own. Five datasets loop over sets of strings, whose order
depends on the hash seed of the process; others use the global random generator. The process has hash seed 0,
so that equal settings give equal entries everywhere.
"""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

from erl_pipeline.environments.interface import FindSplit, KeptSplit, Split, Task
from erl_pipeline.environments.reasoning_gym.library import dataset, known_answer, score
from erl_pipeline.environments.reasoning_gym.settings import ReasoningGymConfig
from erl_pipeline.environments.tasks import KEPT, hashed_split
from storage.errors import ConfigError, InputError, PipelineError

_CHUNK = 64
_MOST_WITHOUT_NEW = 32 * _CHUNK


@dataclass(frozen=True)
class EntryRequest:
    """Entries of one dataset: the first `count` of a split. `third` says whether there is a test split."""

    name: str
    config: Mapping[str, Any]
    seed: int
    split: Split
    count: int
    third: bool


def generate(requests: Sequence[EntryRequest]) -> list[list[dict[str, Any]]]:
    """The entries of each request. Raises `ConfigError` where a dataset has too few or refuses `config`."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps([asdict(request) for request in requests]),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise InputError(f"environment.tasks: reasoning-gym could not generate tasks: {last[0]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "problem" in answer:
        raise ConfigError(answer["problem"])
    entries: list[list[dict[str, Any]]] = answer["entries"]
    return entries


def entries_of(request: EntryRequest) -> list[dict[str, Any]]:
    """The entries of one request, made in this process."""
    return list(itertools.islice(_of_split(request), request.count))


def _of_split(request: EntryRequest) -> Iterator[dict[str, Any]]:
    """Entries with different questions, each with a known answer that the scorer finds right."""
    seen: set[str] = set()
    without_new = given = 0
    for entry in _stream(request):
        without_new += 1
        if without_new > _MOST_WITHOUT_NEW:
            raise ConfigError(
                f"environment.tasks.{request.name}: {request.count} {request.split} tasks are asked for, but "
                f"only {given} with different questions were found; ask for fewer, or change its config"
            )
        question = entry["question"]
        if question in seen or hashed_split(question, test=request.third) != request.split:
            continue
        seen.add(question)
        if _is_scored_right(request, entry):
            without_new, given = 0, given + 1
            yield entry


def _stream(request: EntryRequest) -> Iterator[dict[str, Any]]:
    """Entries without end, as JSON keeps them. Neighbouring seeds of a dataset give nearly the same entries,
    so the seed of each chunk is a hash."""
    for chunk in itertools.count():
        digest = hashlib.sha256(f"{request.name}/{request.seed}/{chunk}".encode()).digest()
        made = dataset(request.name, request.config, size=_CHUNK, seed=int.from_bytes(digest[:4], "big") >> 1)
        for number in range(len(made)):
            # Fractions and dates in metadata become text. A scorer that needs them finds the known answer
            # wrong, and `_of_split` leaves the entry out.
            yield json.loads(json.dumps(made[number], default=str))


def _is_scored_right(request: EntryRequest, entry: Mapping[str, Any]) -> bool:
    answer = known_answer(request.name, entry)
    if answer is None or not answer.strip():
        return False
    return score(request.name, request.config, entry, answer.strip()).right


def _main() -> None:
    """Read requests from standard input, and write their entries to standard output."""
    requests = [EntryRequest(**record) for record in json.load(sys.stdin)]
    answer: dict[str, Any]
    with redirect_stdout(sys.stderr):  # Some datasets print.
        try:
            answer = {"entries": [entries_of(request) for request in requests]}
        except PipelineError as error:
            answer = {"problem": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()


def training_tasks(settings: ReasoningGymConfig, seed: int) -> list[Task]:
    """Different questions of all datasets. The run's seed changes nothing."""
    return _tasks(settings, "training", settings.training_tasks)


def held_out_tasks(settings: ReasoningGymConfig, seed: int, count: int) -> list[Task]:
    """Questions that no training task has, whatever its seed."""
    return _tasks(settings, "held_out", count)


def test_tasks(settings: ReasoningGymConfig, seed: int) -> list[Task]:
    """Questions that are neither trained on nor held out; none without `test_tasks`."""
    return _tasks(settings, "test", settings.test_tasks or 0)


def question_key(payload: Mapping[str, Any]) -> str:
    """The question: an entry made with other settings can ask the same."""
    entry = payload.get("entry")
    return str(entry.get("question")) if isinstance(entry, dict) else ""


def kept_split(settings: ReasoningGymConfig, seed: int) -> FindSplit:
    """Tells whether a question of the datasets is kept from training. The run's seed changes nothing."""

    def find(payload: Mapping[str, Any]) -> KeptSplit | None:
        question = question_key(payload)
        if not question or str(payload.get("dataset")) not in settings.tasks:
            return None
        return KEPT.get(hashed_split(question, test=settings.test_tasks is not None))

    return find


def _tasks(settings: ReasoningGymConfig, split: Split, count: int) -> list[Task]:
    if count == 0:
        return []
    names = _turns(settings, count)
    requests = [
        EntryRequest(
            name=name,
            config=settings.tasks[name].config,
            seed=settings.task_seed,
            split=split,
            count=number,
            third=settings.test_tasks is not None,
        )
        for name, number in Counter(names).items()
    ]
    entries = {request.name: iter(made) for request, made in zip(requests, generate(requests), strict=True)}
    given: Counter[str] = Counter()
    tasks = []
    for name in names:
        payload = {
            "dataset": name,
            "config": dict(settings.tasks[name].config),
            "entry": next(entries[name]),
        }
        task_id = f"{name}-{split}-{settings.task_seed}-{given[name]:05d}"
        tasks.append(Task(task_id, f"reasoning_gym-{name}", "reasoning_gym", payload))
        given[name] += 1
    return tasks


def _turns(settings: ReasoningGymConfig, count: int) -> list[str]:
    """The dataset of each task. The next one is always the dataset furthest behind its share, so that the
    beginning of the list is mixed like the whole."""
    total = sum(dataset.weight for dataset in settings.tasks.values())
    turns: list[str] = []
    given: Counter[str] = Counter()
    for number in range(1, count + 1):
        behind = {
            name: number * dataset.weight / total - given[name] for name, dataset in settings.tasks.items()
        }
        turns.append(max(behind, key=lambda name: behind[name]))
        given[turns[-1]] += 1
    return turns
