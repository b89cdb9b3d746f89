"""Sokoban in sentences, for language models. Rules and meanings of symbols are not told before an attempt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from erl_pipeline.config.templates import render
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.deadlocks import Deadlock, deadlocks
from erl_pipeline.environments.sokoban.steps import Action, Ending, Step
from erl_pipeline.environments.sokoban.world import World

_BRACKETED = re.compile(r"```(?:[a-z]+\n)?(.*?)```|\[([^\[\]]*)\]|`([^`]+)`", re.DOTALL)
_EFFECTS = {
    "bad": "the answer held no valid action, so nothing was done",
    "wall": "no effect: a wall is in the way",
    "box_wall": "no effect: the box in the way has a wall behind it",
    "box_box": "no effect: the box in the way has another box behind it",
}
_WITHOUT_EFFECT = {
    "wall": "against a wall",
    "box_wall": "pushes of a box against a wall",
    "box_box": "pushes of a box against another box",
}
_DEADLOCKS: dict[Deadlock, str] = {
    "corner": "a box stands in a corner that is no goal, and can never leave it",
    "wall": "boxes stand along a wall that they can never leave, and there are too few goals along it",
    "square": "boxes block each other, so that none of them can ever be moved, and one of them is on no goal",
}


class ProseRendering:
    """The texts of one task. `max_steps` are those of the task; `instructions` is a template, see
    `SokobanConfig`."""

    def __init__(
        self,
        board: Board,
        world: World,
        max_steps: int,
        action_mode: Literal["step", "plan"],
        instructions: str,
    ) -> None:
        self._board = board
        self._world = world
        self._max_steps = max_steps
        self._action_mode = action_mode
        self._instructions = instructions

    @property
    def instructions(self) -> str:
        return render(self._instructions, {"actions": self._words})

    @property
    def _answer_format(self) -> str:
        """Said last, since small models follow what they read last; the words in it are only an example."""
        if self._action_mode == "plan":
            example = " ".join(self._words[:2])
            return f"Answer with all actions of your plan in square brackets, such as [{example}]."
        return f"Answer with one action in square brackets, such as [{self._words[0]}]."

    @property
    def _words(self) -> list[str]:
        return sorted(self._world.actions)

    def first_observation(self) -> str:
        return "\n".join([self._grid(self._board.start), self._remaining(0), self._answer_format])

    def read_actions(self, text: str) -> list[Action]:
        """The words in the last brackets or code fence; empty when one of them is no action."""
        found = list(_BRACKETED.finditer(text))
        if not found:
            return []
        inside = next(group for group in found[-1].groups() if group is not None)
        words = [word.lower() for word in re.split(r"[\s,;]+", inside) if word]
        if any(word not in self._world.actions for word in words):
            return []
        return [Action(word) for word in words]

    def observation(self, steps: Sequence[Step]) -> str:
        last = steps[-1]
        lines = []
        if last.outcome == "bad":
            allowed = ", ".join(self._words)
            lines.append(
                f"Your answer held no valid action, so nothing was done. Possible actions: {allowed}."
            )
        elif last.without_effect:
            lines.append("Your last action had no effect.")
        return "\n".join([*lines, self._grid(last.state), self._remaining(len(steps)), self._answer_format])

    def trace(self, steps: Sequence[Step]) -> str:
        blocks = [f"Start:\n{self._grid(self._board.start)}"]
        before = self._board.start
        for number, step in enumerate(steps, start=1):
            said = "no valid action" if step.action is None else f"action {step.action.word}"
            effect = self._effect(before, step)
            blocks.append(
                f"Step {number}: {said}{f' ({effect})' if effect else ''}\n{self._grid(step.state)}"
            )
            before = step.state
        return "\n".join(blocks)

    def feedback(self, steps: Sequence[Step], ending: Ending) -> str:
        boxes = steps[-1].state.boxes
        outcome = {
            "solved": "The attempt succeeded: all boxes are on goals.",
            "deadlock": "The attempt failed: it ended at a deadlock.",
            "steps_used": f"The attempt failed: all {self._max_steps} steps were used up.",
            "plan_ended": "The attempt failed: the plan ended before all boxes were on goals.",
        }[ending]
        sentences = [
            outcome,
            f"Boxes on goals: {self._board.boxes_on_goals(boxes)} of {len(boxes)}.",
            f"Steps used: {len(steps)}.",
            f"Pushes: {sum(step.pushed for step in steps)}.",
            f"Moves without effect: {_without_effect(steps)}.",
            f"Invalid answers: {sum(step.outcome == 'bad' for step in steps)}.",
            *(f"Deadlock: {_DEADLOCKS[name]}." for name in deadlocks(self._board, boxes)),
        ]
        return " ".join(sentences)

    def _effect(self, before: State, step: Step) -> str | None:
        if not step.pushed:
            return _EFFECTS.get(step.outcome)
        goals = self._board.boxes_on_goals(step.state.boxes) - self._board.boxes_on_goals(before.boxes)
        return {1: "a box was pushed onto a goal", 0: "a box was pushed", -1: "a box was pushed off a goal"}[
            goals
        ]

    def _grid(self, state: State) -> str:
        cells = [
            self._world.symbols.of_cell(self._board, state, cell) for cell in range(len(self._board.letters))
        ]
        width = self._board.width
        return "\n".join(
            " ".join(cells[row * width : (row + 1) * width]) for row in range(self._board.height)
        )

    def _remaining(self, used: int) -> str:
        return f"Steps left: {self._max_steps - used}"


def _without_effect(steps: Sequence[Step]) -> str:
    """How many moves had no effect, and what was in the way: `3 (against a wall: 2; ...)`."""
    counts = {said: sum(step.outcome == name for step in steps) for name, said in _WITHOUT_EFFECT.items()}
    kinds = "; ".join(f"{said}: {count}" for said, count in counts.items() if count)
    return f"{sum(counts.values())} ({kinds})" if kinds else "0"
