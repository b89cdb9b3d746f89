"""An environment of sums, with a fault if its settings say so. Tests install it in a folder."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import EnvironmentPlugin, GoldAnswers, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, tool_message, user_message


class SumsConfig(PluginSettings):
    """Two numbers are to be added."""

    type: Literal["sums"] = "sums"
    fault: str = ""
    by_tool: bool = False
    """The sum is given by calling a tool, and a turn that does not call it well is answered in words; the
    third one ends the attempt."""


TOOL = {
    "type": "function",
    "function": {
        "name": "give",
        "description": "Give the sum.",
        "parameters": {"type": "object", "properties": {"total": {"type": "integer"}}},
    },
}


class Sums:
    instructions = "Add the numbers. Answer with the sum in square brackets."

    def __init__(self, settings: SumsConfig, task: Task) -> None:
        self.tools: Sequence[ToolSchema] = (TOOL,) if settings.by_tool else ()
        self._fault = settings.fault
        self._one, self._other = task.payload["numbers"]
        self._task = task
        self._turns = 0
        self._right = False

    async def reset(self) -> str:
        told = {
            "tells the answer in the prompt": f" (solution: {self._sum})",
            "tells the seed in the prompt": f" Puzzle {self._task.payload['seed']}.",
            "tells the task id in the prompt": f" This is {self._task.task_id}.",
            "prints the payload": f" {dict(self._task.payload)}",
        }
        return f"What is {self._one} + {self._other}?{told.get(self._fault, '')}"

    async def step(self, turn: AssistantTurn) -> Transition:
        if self.tools:
            return self._step_by_tool(turn)
        text = turn.text.strip()
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else ""
        if self._fault == "raises on strange digits" and inside.isdigit():
            self._right = int(inside) == self._sum
        elif self._fault == "hangs on control characters" and "\x00" in text:
            while True:
                pass
        elif self._fault == "dies of a megabyte" and len(text) > 100_000:
            print("out of memory", flush=True)
            os._exit(9)
        else:
            self._right = inside == str(self._sum)
        reward = 1.0 if self._right else 0.0
        if self._fault == "never rewards":
            reward = 0.0
        elif self._fault == "rewards anything" and text and not self._right:
            reward = 0.1
        elif self._fault == "rewards with nan" and text == "xyz":
            reward = math.nan
        return Transition([user_message("Thank you.")], reward, done=True)

    def _step_by_tool(self, turn: AssistantTurn) -> Transition:
        self._turns += 1
        last = self._turns == 3
        if not turn.tool_calls:
            return Transition([user_message("Call the tool.")], 0.0, done=last)
        call = turn.tool_calls[0]
        if call.problem or call.name != "give" or not isinstance(call.arguments.get("total"), int):
            return Transition([tool_message(call, call.problem or "It takes a total.")], 0.0, done=last)
        self._right = call.arguments["total"] == self._sum
        return Transition([tool_message(call, "Thank you.")], float(self._right), done=True)

    async def feedback(self) -> str:
        if self._fault == "says nothing":
            return ""
        if self._fault == "tells the answer in the feedback" and not self._right:
            return f"Wrong: {self._sum} would have been right."
        return "The sum is right." if self._right else "The sum is wrong. Digits of the sum: 2."

    def trace(self) -> str:
        return ""

    async def close(self) -> None:
        """Nothing has to be closed."""

    @property
    def _sum(self) -> int:
        return int(self._one + self._other)


def _tasks(settings: SumsConfig, split: str, first: int, count: int) -> list[Task]:
    shift = hash("sums") % 1000 if settings.fault == "follows the hash seed" else 0
    return [
        Task(
            f"sum-{split}-{number}",
            "sums",
            "sums",
            {"numbers": [number, number * 7 % 41 + 10 + shift], "seed": 5000 + 13 * number},
        )
        for number in range(first, first + count)
    ]


def training_tasks(settings: SumsConfig, seed: int) -> list[Task]:
    return _tasks(settings, "training", 0, 20)


def held_out_tasks(settings: SumsConfig, seed: int, count: int) -> list[Task]:
    return _tasks(settings, "held", 19 if settings.fault == "trains on a held-out task" else 20, count)


def gold_answer(settings: SumsConfig, task: Task) -> str:
    if settings.fault == "gives no gold answers":
        raise KeyError("answers")
    total = sum(task.payload["numbers"])
    if settings.by_tool:
        return f'<tool_call>{{"name": "give", "arguments": {{"total": {total}}}}}</tool_call>'
    return f"[{total}]"


ENVIRONMENT = EnvironmentPlugin(
    settings=SumsConfig,
    training_tasks=training_tasks,
    held_out_tasks=held_out_tasks,
    open=Sums,
    gold_answers=GoldAnswers(gold_answer),
)
