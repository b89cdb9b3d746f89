"""The board of an attempt, with the player's way and where the boxes ended, for the user interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Cell, Picture
from erl_pipeline.environments.sokoban.game import game_of
from erl_pipeline.environments.sokoban.settings import SokobanConfig

_CELLS: Mapping[str, Cell] = {
    "#": "wall",
    "@": "start",
    "+": "start",
    "$": "box",
    "*": "box_on_goal",
    ".": "goal",
    " ": "floor",
}


def attempt_picture(config: SokobanConfig, task: Task, turns: Sequence[str]) -> Picture:
    """The board as it began, the player's way, and the boxes at the end, found by replaying what the policy
    said in its turns."""
    game = game_of(config, task)
    game.reset()
    for text in turns:
        if game.step(text).done:
            break
    width = game.board.width
    without_effect = sum(step.without_effect for step in game.steps)
    pushes = sum(step.pushed for step in game.steps)
    bad = sum(step.action is None for step in game.steps)
    notes = [f"{pushes} push{'' if pushes == 1 else 'es'}"]
    notes += [f"{without_effect} × without effect"] if without_effect else []
    notes += [f"{bad} × no valid action"] if bad else []
    players = (game.board.start.player, *(step.state.player for step in game.steps))
    return Picture(
        [[_CELLS[letter] for letter in row] for row in game.board.rows],
        [divmod(cell, width) for cell in players],
        [divmod(cell, width) for cell in game.state.boxes],
        notes,
    )
