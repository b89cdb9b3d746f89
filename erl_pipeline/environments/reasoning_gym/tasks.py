"""The training, held-out and test tasks of a run: entries of reasoning-gym, each stored whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.reasoning_gym.generation import Request, Split, generate, split_of
from erl_pipeline.environments.reasoning_gym.settings import ReasoningGymConfig
from erl_pipeline.environments.splits import FindSplit, KeptSplit


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
    kept: dict[Split, KeptSplit] = {"held_out": "held-out", "test": "test"}

    def find(payload: Mapping[str, Any]) -> KeptSplit | None:
        question = question_key(payload)
        if not question or str(payload.get("dataset")) not in settings.tasks:
            return None
        return kept.get(split_of(question, settings.test_tasks is not None))

    return find


def _tasks(settings: ReasoningGymConfig, split: Split, count: int) -> list[Task]:
    if count == 0:
        return []
    names = _turns(settings, count)
    requests = [
        Request(
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
