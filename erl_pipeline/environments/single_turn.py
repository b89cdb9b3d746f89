"""Environments of one turn, made of three functions: tasks, a task's prompt, and the reward of a reply."""

import hashlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from erl_pipeline.config.base import SettingsT
from erl_pipeline.environments import interface
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema
from storage.errors import InputError

Payload = Mapping[str, Any]
"""One task, as JSON."""
Reward = float | tuple[float, str]
"""From 0 to 1, where 1 is right; with it, what the policy may be told of its reply. That must be true, and
must not give the answer away: reflections are written on it, and are trained."""


@dataclass(frozen=True)
class ReplyScore:
    """What comes of a reply: its reward, what the policy may be told of it, and numbers for people."""

    reward: float
    feedback: str
    metrics: Mapping[str, float] = field(default_factory=dict)


class SingleTurnEnvironment:
    """The attempts of one episode: a prompt, a reply, and its score.

    Args:
        instructions: what the policy is told before the prompt.
        prompt: the first observation.
        score: scores a reply. It raises `ScorerFailed` where the reply cannot be scored.
        trace: the attempt for a reflection prompt, from the reply.
    """

    tools: Sequence[ToolSchema] = ()

    def __init__(
        self,
        instructions: str,
        prompt: str,
        score: Callable[[str], Awaitable[ReplyScore]],
        trace: Callable[[str], str],
    ) -> None:
        self.instructions = instructions
        self._prompt, self._score, self._trace = prompt, score, trace
        self._reply = ""
        self._scored: ReplyScore | None = None

    async def reset(self) -> interface.Observation:
        self._reply, self._scored = "", None
        return self._prompt

    async def step(self, turn: AssistantTurn) -> interface.Transition:
        self._reply = turn.text
        self._scored = scored = await self._score(turn.text)
        return interface.Transition((), scored.reward, done=True, metrics=scored.metrics)

    async def feedback(self) -> str:
        if self._scored is None:
            raise RuntimeError("the attempt is not over; there is no feedback yet")
        return self._scored.feedback

    def trace(self) -> str:
        return self._trace(self._reply)

    async def close(self) -> None:
        """There is nothing to release."""


def single_turn(
    settings: type[SettingsT],
    *,
    tasks: Callable[[SettingsT], Iterable[Payload]],
    prompt: Callable[[SettingsT, Payload], str],
    reward: Callable[[SettingsT, Payload, str], Reward],
    gold_answer: Callable[[SettingsT, Payload], str] | None = None,
    instructions: str = "",
    held_out_share: float = 0.25,
) -> interface.EnvironmentPlugin[SettingsT]:
    """An environment of one turn.

    Args:
        settings: has a field `type: Literal["..."]`, the name of its entry point.
        tasks: all tasks, each different; which of them are held out depends on their content alone.
        prompt: what the policy is asked in a task.
        reward: how good a reply is. Any text is allowed in it.
        gold_answer: a reply that gets reward 1, for `env qualify`.
        instructions: what the policy is told before the prompt, the same for all tasks.
        held_out_share: share of the tasks that is never trained on.
    """

    def split(chosen: SettingsT) -> tuple[list[interface.Task], list[interface.Task]]:
        """The held-out tasks and the training tasks, each in an order without meaning."""
        by_digest = {
            hashlib.sha256(interface.payload_key(each).encode()).hexdigest(): each for each in tasks(chosen)
        }
        found = [
            interface.Task(f"{chosen.type}-{digest[:12]}", chosen.type, chosen.type, by_digest[digest])
            for digest in sorted(by_digest)
        ]
        held_out = round(held_out_share * len(found))
        return found[:held_out], found[held_out:]

    def held_out_tasks(chosen: SettingsT, seed: int, count: int) -> list[interface.Task]:
        found, _ = split(chosen)
        if count > len(found):
            raise InputError(
                f"evaluation.tasks: {count} held-out tasks are asked for, but {chosen.type} has {len(found)}"
            )
        return found[:count]

    def kept_split(chosen: SettingsT, seed: int) -> interface.FindSplit:
        kept = {interface.payload_key(task.payload) for task in split(chosen)[0]}
        return lambda payload: "held-out" if interface.payload_key(payload) in kept else None

    def open_task(chosen: SettingsT, task: interface.Task) -> SingleTurnEnvironment:
        asked = prompt(chosen, task.payload)

        async def score(reply: str) -> ReplyScore:
            given = reward(chosen, task.payload, reply)
            value, remark = given if isinstance(given, tuple) else (given, "")
            if not math.isfinite(value) or not 0.0 <= value <= 1.0:
                raise interface.ScorerFailed(f"the reward is {value!r}; allowed are numbers from 0 to 1")
            outcome = {0.0: "Your reply is wrong.", 1.0: "Your reply is right."}
            said = outcome.get(value, f"The score of your reply is {value:.3g}, where 1 is right.")
            return ReplyScore(float(value), f"{said} {remark}".strip())

        return SingleTurnEnvironment(
            instructions, asked, score, lambda reply: f"The prompt was: {asked}\n\nThe reply was: {reply}"
        )

    return interface.EnvironmentPlugin(
        settings=settings,
        training_tasks=lambda chosen, seed: split(chosen)[1],
        held_out_tasks=held_out_tasks,
        open=open_task,
        splits=interface.Splits(kept_split=kept_split),
        dependencies=interface.Dependencies(packages=tuple({__name__: 0, reward.__module__: 0})),
        gold_answers=None
        if gold_answer is None
        else interface.GoldAnswers(lambda chosen, task: gold_answer(chosen, task.payload)),
    )
