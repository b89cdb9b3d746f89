"""Sokoban's attempts: the texts about them, and how they end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from erl_pipeline.environments.grid_games import game as grid
from erl_pipeline.environments.grid_games.hidden_words import World, stored_world
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Cell, Picture
from erl_pipeline.environments.sokoban.board import Deadlock, SokobanBoard, State, deadlocks
from erl_pipeline.environments.sokoban.settings import SokobanConfig

START = "start"
SOLVED, STUCK, LOST = ENDINGS = ("solved", "stuck", "lost")
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


@dataclass(frozen=True)
class SokobanSymbols:
    """The characters a board is shown with."""

    player: str
    player_on_goal: str
    box: str
    box_on_goal: str
    goal: str
    floor: str
    wall: str

    def of_cell(self, board: SokobanBoard, state: State, cell: int) -> str:
        on_goal = cell in board.goals
        if cell == state.player:
            return self.player_on_goal if on_goal else self.player
        if cell in state.boxes:
            return self.box_on_goal if on_goal else self.box
        if on_goal:
            return self.goal
        return self.wall if board.letters[cell] == "#" else self.floor


SokobanWorld = World[SokobanSymbols]


def is_push(step: grid.Step[State]) -> bool:
    """Whether a box was moved."""
    return step.before.boxes != step.state.boxes


class SokobanProse(grid.ProseRendering[SokobanBoard, SokobanSymbols, State]):
    """Sokoban in sentences, for language models."""

    effects: Mapping[str, str] = {
        "bad": "the answer held no valid action, so nothing was done",
        "wall": "no effect: a wall is in the way",
        "box_wall": "no effect: the box in the way has a wall behind it",
        "box_box": "no effect: the box in the way has another box behind it",
    }

    def feedback(self, steps: Sequence[grid.Step[State]], ending: str) -> str:
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
            f"Pushes: {sum(map(is_push, steps))}.",
            f"Moves without effect: {_without_effect(steps)}.",
            f"Invalid answers: {sum(step.outcome == 'bad' for step in steps)}.",
            *(f"Deadlock: {_DEADLOCKS[name]}." for name in deadlocks(self._board, boxes)),
        ]
        return " ".join(sentences)

    def _effect(self, step: grid.Step[State]) -> str | None:
        if not is_push(step):
            return super()._effect(step)
        goals = self._board.boxes_on_goals(step.state.boxes) - self._board.boxes_on_goals(step.before.boxes)
        return {1: "a box was pushed onto a goal", 0: "a box was pushed", -1: "a box was pushed off a goal"}[
            goals
        ]


def _without_effect(steps: Sequence[grid.Step[State]]) -> str:
    """How many moves had no effect, and what was in the way: `3 (against a wall: 2; ...)`."""
    counts = {said: sum(step.outcome == name for step in steps) for name, said in _WITHOUT_EFFECT.items()}
    kinds = "; ".join(f"{said}: {count}" for said, count in counts.items() if count)
    return f"{sum(counts.values())} ({kinds})" if kinds else "0"


class SokobanCompact(grid.CompactRendering[SokobanBoard, SokobanSymbols, State]):
    """Sokoban in words of one token each.

    The frame is the cells within the border of the largest board; a smaller board has walls beside it.
    """

    def first_observation(self) -> str:
        """The symbols of all cells of the frame, row by row, then where player and boxes are."""
        symbols = [
            self._symbol(row, column)
            for row in range(1, self._frame[0] + 1)
            for column in range(1, self._frame[1] + 1)
        ]
        return " ".join([*symbols, START, *self.places(self._board.start)])

    def feedback(self, steps: Sequence[grid.Step[State]], ending: str) -> str:
        """How the attempt ended, in one word; the counts are in the trace."""
        if ending == "solved":
            return SOLVED
        return STUCK if deadlocks(self._board, steps[-1].state.boxes) else LOST

    def places(self, state: State) -> list[str]:
        cells = (divmod(cell, self._board.width) for cell in (state.player, *state.boxes))
        return [grid.cell_word((row - 1) * self._frame[1] + column - 1) for row, column in cells]

    def _symbol(self, row: int, column: int) -> str:
        if row >= self._board.height or column >= self._board.width:
            return self._world.symbols.wall
        cell = row * self._board.width + column
        return self._world.symbols.of_cell(self._board, self._board.start, cell)


class Sokoban(grid.GridGame[SokobanBoard, State]):
    """An attempt, which ends when all boxes are on goals, after the last step, or at a deadlock."""

    success = "solved"

    def __init__(
        self,
        board: SokobanBoard,
        world: SokobanWorld,
        max_steps: int,
        rendering: grid.Rendering[SokobanBoard, SokobanSymbols, State],
        action_mode: Literal["step", "plan"] = "step",
        at_deadlock: Literal["continue", "end"] = "continue",
    ) -> None:
        super().__init__(board, world, max_steps, rendering, action_mode)
        self._at_deadlock = at_deadlock

    def metrics(self, result: grid.TurnResult[State]) -> dict[str, float]:
        """Numbers whose sums over an attempt are: boxes on goals at its end, whether it ended in a deadlock
        (0 or 1), and counts of pushes, of moves without effect and of turns without a valid action."""
        steps, first = result.steps, len(result.steps) == len(self.steps)
        earlier = (0, False) if first else self._progress(steps[0].before)
        on_goals, deadlock = self._progress(steps[-1].state)
        return {
            "boxes_on_goals": float(on_goals - earlier[0]),
            "deadlock": float(deadlock - earlier[1]),
            "pushes": float(sum(map(is_push, steps))),
            "moves_without_effect": float(sum(step.without_effect for step in steps)),
            **super().metrics(result),
        }

    def _progress(self, state: State) -> tuple[int, bool]:
        """Boxes on goals, and whether there is a deadlock."""
        return self.board.boxes_on_goals(state.boxes), bool(deadlocks(self.board, state.boxes))

    def _ending_of(self, step: grid.Step[State]) -> str | None:
        if self.board.is_solved(step.state.boxes):
            return "solved"
        stuck = self._at_deadlock == "end" and is_push(step) and deadlocks(self.board, step.state.boxes)
        return "deadlock" if stuck else None


def make_game(config: SokobanConfig, board: SokobanBoard, world: SokobanWorld, max_steps: int) -> Sokoban:
    """A game in the format of these settings."""
    rendering: grid.Rendering[SokobanBoard, Any, State]
    if config.format == "compact":
        rendering = SokobanCompact(board, world, config.max_steps, config.frame)
    else:
        rendering = SokobanProse(board, world, max_steps, config.action_mode, config.instructions)
    return Sokoban(board, world, max_steps, rendering, config.action_mode, config.at_deadlock)


def game_of(config: SokobanConfig, task: Task) -> Sokoban:
    """The game of a task that these settings gave."""
    board = SokobanBoard(tuple(task.payload["board"]))
    return make_game(config, board, stored_world(task.payload, SokobanSymbols), task.payload["max_steps"])


def open_sokoban(config: SokobanConfig, task: Task) -> grid.GridEnvironment:
    """The environment of a task that these settings gave."""
    return grid.GridEnvironment(game_of(config, task))


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
    game = grid.replayed(game_of(config, task), turns)
    width = game.board.width
    without_effect = sum(step.without_effect for step in game.steps)
    pushes = sum(map(is_push, game.steps))
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
