"""FrozenLake in sentences, for language models. No rule and no meaning of a symbol is explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from erl_pipeline.config.templates import render
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.grid import grid, read_bracketed
from erl_pipeline.environments.frozen_lake.steps import Action, Ending, Outcome, Step
from erl_pipeline.environments.frozen_lake.world import World

_EFFECTS: dict[Outcome, str] = {
    "bump": "the action was valid but had no effect",
    "bad": "the answer held no valid action, so nothing was done",
    "fell": "the attempt ended here without success",
    "goal": "the attempt ended here with success",
}


class ProseRendering:
    """The texts of one task. `instructions` is a template, see `FrozenLakeConfig`."""

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
    def _realm(self) -> list[str]:
        """Said once, before the board, since whatever is learned of the action words holds in this realm."""
        return [f"Realm: {self._world.realm}"] if self._world.realm else []

    @property
    def _words(self) -> list[str]:
        return sorted(self._world.actions)

    def first_observation(self) -> str:
        grid = self._grid(self._board.start)
        return "\n".join([*self._realm, grid, self._remaining(0), self._answer_format])

    def read_actions(self, text: str) -> list[Action]:
        """The words in the last brackets or code fence; empty when one of them is no action."""
        return read_bracketed(text, self._world.actions)

    def observation(self, steps: Sequence[Step]) -> str:
        last = steps[-1]
        lines = []
        if last.outcome == "bad":
            allowed = ", ".join(self._words)
            lines.append(
                f"Your answer held no valid action, so nothing was done. Possible actions: {allowed}."
            )
        elif last.outcome == "bump":
            lines.append("Your last action had no effect.")
        return "\n".join([*lines, self._grid(last.cell), self._remaining(len(steps)), self._answer_format])

    def trace(self, steps: Sequence[Step]) -> str:
        blocks = [*self._realm, f"Start:\n{self._grid(self._board.start)}"]
        for number, step in enumerate(steps, start=1):
            said = "no valid action" if step.action is None else f"action {step.action.word}"
            effect = _EFFECTS.get(step.outcome)
            blocks.append(f"Step {number}: {said}{f' ({effect})' if effect else ''}\n{self._grid(step.cell)}")
        return "\n".join(blocks)

    def feedback(self, steps: Sequence[Step], ending: Ending) -> str:
        outcome = {
            "goal": "The attempt succeeded: the player reached the goal.",
            "fell": "The attempt failed: the player fell into a hole.",
            "steps_used": f"The attempt failed: all {self._max_steps} steps were used up before the goal.",
            "plan_ended": "The attempt failed: the plan ended before the goal was reached.",
        }[ending]
        bumps = sum(step.outcome == "bump" for step in steps)
        invalid = sum(step.outcome == "bad" for step in steps)
        counts = f"Steps used: {len(steps)}. Actions without effect: {bumps}. Invalid answers: {invalid}."
        return f"{outcome} {counts}"

    def _grid(self, player: int) -> str:
        return grid(self._board, self._world.symbols, player)

    def _remaining(self, used: int) -> str:
        return f"Steps left: {self._max_steps - used}"
