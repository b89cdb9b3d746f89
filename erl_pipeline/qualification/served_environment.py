"""One environment, served call by call: the calls of the process under examination, and their results."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Environment, EnvironmentPlugin, Task
from erl_pipeline.environments.messages import ToolSchema
from erl_pipeline.environments.raised_at import raised_at
from erl_pipeline.episodes.attempt import HandPlayed
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure
from erl_pipeline.qualification.check import Secret, secrets_of
from storage.errors import PipelineError

if TYPE_CHECKING:
    from erl_pipeline.qualification.learning import Learned
    from storage.memory.entries import Embedder

Result = TypeVar("Result")

Split = Literal["training", "held-out", "test"]
Place = tuple[Split, int]
"""A task: its split, and its number in the split."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """What is examined. `settings` are the environment's, as JSON values. `seed` is that of a run, and
    `held_out` the number of its held-out tasks. `step_seconds` is the deadline for each call. `built` is the
    folder of the files that the environment is opened with (`Dependencies.built_files`); empty: none."""

    type: str
    settings: Mapping[str, Any]
    seed: int
    held_out: int
    step_seconds: float
    built: str = ""


@dataclass(frozen=True)
class TaskSign:
    """A task without its content: its id, and digests of its key and of the whole task."""

    task_id: str
    key: str
    content: str


@dataclass(frozen=True)
class Prepared:
    """The tasks of all splits. `shorter` are the held-out tasks if only half as many are asked for."""

    splits: Mapping[Split, Sequence[TaskSign]]
    shorter: Sequence[TaskSign]


@dataclass(frozen=True)
class Solution:
    """What the examiner knows of a task, but a policy must not be told. `turns` are those of a perfect
    attempt, None if the environment gives none; `keys` are the payload's keys. `wrong` are replies that
    resemble the right one."""

    turns: tuple[str, ...] | None
    secrets: tuple[Secret, ...]
    keys: tuple[str, ...]
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opening:
    """The beginning of an attempt: the messages of the prompt as one text, and the tools."""

    prompt: str
    tools: tuple[ToolSchema, ...]
    seconds: float


@dataclass(frozen=True)
class Stepped:
    """The result of one turn; `told` is the text of the environment's user messages."""

    reward: float
    done: bool
    told: str
    seconds: float


@dataclass(frozen=True)
class Finished:
    """What the environment says of an attempt that is over."""

    feedback: str
    trace: str
    seconds: float


@dataclass(frozen=True)
class AttemptFailure:
    """Why a call of the environment gave no result: it raised, was late, or gave a number that is not
    finite."""

    kind: Literal["raised", "late", "not finite"]
    text: str


class ServedEnvironment:
    """Answers the examiner's calls. One attempt is open at a time; `open` closes the one before it."""

    def __init__(self, subject: EnvironmentSpec) -> None:
        self._subject = subject
        self._plugin: EnvironmentPlugin[Any] = plugins("environments")[subject.type].value
        self._settings = self._plugin.settings.model_validate(dict(subject.settings))
        self._splits: dict[Split, Sequence[Task]] = {}
        self._runner = asyncio.Runner()
        self._opened: HandPlayed | None = None
        self._embedders: dict[str, Embedder] = {}

    def prepare(self) -> Prepared:
        """Make the tasks of all splits."""
        plugin, settings, seed = self._plugin, self._settings, self._subject.seed
        self._splits = {
            "training": plugin.training_tasks(settings, seed),
            "held-out": plugin.held_out_tasks(settings, seed, self._subject.held_out),
            "test": plugin.splits.test_tasks(settings, seed),
        }
        half = max(1, self._subject.held_out // 2)
        return Prepared(
            {split: [self._sign(task) for task in tasks] for split, tasks in self._splits.items()},
            [self._sign(task) for task in plugin.held_out_tasks(settings, seed, half)],
        )

    def solution(self, place: Place) -> Solution:
        """What a policy must not be told of a task."""
        task = self._task(place)
        part, own = self._plugin.part(self._settings, task)
        answers = part.plugin.gold_answers
        gold = None if answers is None else answers.right(part.settings, own)
        turns = (gold,) if isinstance(gold, str) else None if gold is None else tuple(gold)
        wrong = () if answers is None or answers.wrong is None else answers.wrong(part.settings, own)
        secrets = secrets_of(task.task_id, task.payload, turns)
        return Solution(turns, secrets, tuple(map(str, task.payload)), tuple(wrong))

    def open(self, place: Place) -> Opening | AttemptFailure:
        """Begin an attempt in a fresh environment."""
        self.leave()
        self._opened = HandPlayed(
            replace(self._plugin, open=self._open),
            self._settings,
            self._task(place),
            self._subject.step_seconds,
        )
        begun = self._timed(self._opened.begin)
        if isinstance(begun, AttemptFailure):
            return begun
        opened, seconds = begun
        prompt = "\n\n".join(each["content"] for each in opened.messages)
        return Opening(prompt, tuple(opened.tools), seconds)

    def step(self, text: str) -> Stepped | AttemptFailure:
        """Make one turn of the policy."""
        assert self._opened is not None
        stepped = self._timed(partial(self._opened.say, text))
        if isinstance(stepped, AttemptFailure):
            return stepped
        transition, seconds = stepped
        told = [each["content"] for each in transition.messages if each["role"] == "user"]
        return Stepped(transition.reward, transition.done, "\n".join(told), seconds)

    def finish(self) -> Finished | AttemptFailure:
        """Close the attempt, which is over; return what the environment says of it."""
        assert self._opened is not None
        environment, has_tools = self._opened.environment, self._opened.has_tools

        async def end() -> tuple[str, str]:
            return await environment.feedback(), environment.trace()

        ended = self._timed(end)
        self.leave()
        if isinstance(ended, AttemptFailure):
            return ended
        (feedback, trace), seconds = ended
        # Search results may contain the answer, and a trace may repeat them.
        return Finished(feedback, "" if has_tools else trace, seconds)

    def learn(self, places: Sequence[Place], answers: Sequence[str]) -> Learned:
        """Play whole episodes with these answers, and store, remember and train on what comes of it."""
        # Only one of the processes of an examination learns.
        from erl_pipeline.qualification.learning import learn_from

        self.leave()
        plugin = replace(self._plugin, open=self._open)
        tasks = [self._task(place) for place in places]
        return learn_from(plugin, self._settings, tasks, answers, self._subject.step_seconds)

    def leave(self) -> None:
        """Close the attempt that is open, if any."""
        if self._opened is not None:
            self._runner.run(self._opened.environment.close())
            self._opened = None

    def _open(self, settings: Any, task: Task) -> Environment:
        built = self._plugin.dependencies.built_files
        if built is None or not self._subject.built:
            return self._plugin.open(settings, task)
        return built.open(settings, task, Path(self._subject.built), self._embedder)

    def _embedder(self, model: str) -> Embedder:
        """Embeds queries, one at a time; each model is loaded once."""
        from erl_pipeline.policies.embedding import SentenceEmbedder

        if model not in self._embedders:
            self._embedders[model] = SentenceEmbedder(model, batch_tokens=1)
        return self._embedders[model]

    def _task(self, place: Place) -> Task:
        split, number = place
        return self._splits[split][number]

    def _sign(self, task: Task) -> TaskSign:
        part, own = self._plugin.part(self._settings, task)
        key = f"{task.environment} {part.plugin.splits.task_key(own.payload)}"
        content = asdict(replace(task, payload=dict(task.payload)))
        return TaskSign(task.task_id, _digest(key), _digest(json.dumps(content, sort_keys=True)))

    def _timed(
        self, call: Callable[[], Coroutine[Any, Any, Result]]
    ) -> tuple[Result, float] | AttemptFailure:
        begun = time.perf_counter()
        try:
            result = self._runner.run(call())
        except EnvironmentFailure as failure:
            if failure.kind == "environment_timeout":
                return AttemptFailure("late", str(failure))
            text = f"{failure}{f' ({failure.place})' if failure.place else ''}"
            assert self._opened is not None
            return AttemptFailure("not finite" if self._opened.environment.gave_no_number else "raised", text)
        return result, time.perf_counter() - begun


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


Answer = tuple[Literal["gives", "refuses", "raises"], Any]
"""What a call returned, or the text of an error: one that the user can correct (`refuses`), or any other."""


def main() -> None:
    """Serve the environment that the first message names, until the connection is closed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    line: Connection[Any, Any] = Connection(int(sys.argv[1]))
    served: ServedEnvironment | None = None
    while True:
        try:
            name, arguments = line.recv()
        except EOFError:
            return
        answer: Answer
        try:
            if served is None:
                served = ServedEnvironment(*arguments)
                answer = ("gives", None)
            else:
                answer = ("gives", getattr(served, name)(*arguments))
        except PipelineError as error:
            answer = ("refuses", str(error))
        except Exception as error:  # The examiner wants to know whatever the environment raises.
            answer = ("raises", f"{type(error).__name__}: {error} ({raised_at(error)})")
        line.send(answer)


def _end_with(parent: int) -> None:
    """End when the examiner is gone, even in the middle of a call that never returns."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
