"""Keeping held-out tasks out of training, however tasks arrive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from storage.errors import InputError
from storage.tables.scored import was_scored

if TYPE_CHECKING:
    import polars as pl

_COLUMNS = ("trajectory_id", "task_id", "task_payload", "messages", "finish_reason")
Part = tuple[str, EnvironmentPlugin[Any], Any]


class KeptApart:
    """The tasks of the held-out and the test split, which are never trained on.

    They are found by their content: all tasks of both splits, also those beyond `evaluation.tasks`, where the
    environment has `Splits.kept_split`, and else those that it gives. The name of an environment in a row
    does not count, nor does a task's id, but for a row without content. `held_out`: the held-out tasks of the
    run.
    """

    def __init__(
        self, plugin: EnvironmentPlugin[Any], settings: Any, seed: int, held_out: Iterable[Task]
    ) -> None:
        parts: list[Part] = [
            (part.settings.type, part.plugin, part.settings) for part in plugin.parts(settings).values()
        ] or [(settings.type, plugin, settings)]
        self._plugins = {name: own for name, own, _ in parts}
        finders = [(own.splits.kept_split, each) for _, own, each in parts]
        self._finders = [find(each, seed) for find, each in finders if find is not None]
        whole = len(self._finders) == len(parts)
        self._ids: dict[str, str] = {}
        self._digests: dict[bytes, str] = {}
        for split, tasks in (
            ("held-out", held_out),
            ("test", () if whole else plugin.splits.test_tasks(settings, seed)),
        ):
            for task in tasks:
                self._ids[task.task_id] = f"the {split} task {task.task_id}"
                # An empty payload does not say what the problem is.
                if task.payload:
                    own = self._plugins.get(task.environment, plugin)
                    digest = _digest(task.environment, own.splits.task_key(task.payload))
                    self._digests[digest] = self._ids[task.task_id]

    def find(self, task_id: str, payload: Mapping[str, Any]) -> str | None:
        """What a task is, such as `the held-out task t`, if it may not be trained on; None for any other."""
        if not payload:
            return self._ids.get(task_id)
        for name, plugin in self._plugins.items():
            known = self._digests.get(_digest(name, plugin.splits.task_key(payload)))
            if known is not None:
                return known
        splits = (find(payload) for find in self._finders)
        split = next((each for each in splits if each is not None), None)
        return None if split is None else f"a task of the {split} split"

    def asked(self, messages: Iterable[Mapping[str, Any]]) -> str | None:
        """What a conversation asks that may not be trained on; None where it asks nothing of the kind. Where
        there is no payload, messages, their paragraphs and their lines are compared with questions."""
        for text in (each["content"] for each in messages if each["role"] in ("system", "user")):
            for part in dict.fromkeys((text, *text.split("\n\n"), *text.splitlines())):
                same = self.find("", {"question": part}) if part.strip() else None
                if same is not None:
                    return same
        return None


def refuse_held_out(training: Iterable[Task], kept: KeptApart) -> None:
    """Raise InputError, naming both, where a training task is the same problem as one that is kept apart."""
    for task in training:
        same = kept.find(task.task_id, task.payload) if task.payload else None
        if same is not None:
            raise InputError(
                f"training task {task.task_id} is {same}: a policy would be evaluated on "
                "what it was trained on; take it out of the training tasks"
            )


def refuse_held_out_rows(rows: pl.LazyFrame, kept: KeptApart, source: str) -> None:
    """Raise InputError, naming the row, where a trajectory is of a task that is kept apart. What was not
    scored does not count, since it is never trained on. `source`: where the rows are from, for the message,
    such as `run x, iteration 3`."""
    numbered = rows.select(_COLUMNS).with_row_index("row", offset=1)
    found = numbered.filter(was_scored()).drop("finish_reason").collect()
    # The trajectories of a task have one payload.
    for number, trajectory_id, task_id, text, messages in found.unique(
        ["task_id", "task_payload"], keep="first", maintain_order=True
    ).iter_rows():
        payload = _object(text)
        same = kept.find(task_id, payload)
        if same is None and not payload:
            same = kept.asked(json.loads(messages))
        if same is not None:
            raise InputError(
                f"{source}, row {number} (trajectory {trajectory_id}, task {task_id}) is of "
                f"{same}: a policy would be evaluated on what it was trained on; leave its rows out, or "
                "hold other tasks out"
            )


def _digest(environment: str, key: str) -> bytes:
    return hashlib.sha256(f"{environment} {key}".encode("utf-8", "surrogatepass")).digest()[:16]


def _object(payload: str) -> Mapping[str, Any]:
    """A payload from a row; empty where it is not a JSON object, and so has no content."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
