"""FrozenLake's boards and worlds: how boards are drawn, and realms.

Realms are named worlds, each with its own permutation of the action words. A realm's name is shown before the
board, so that what was learned of a realm helps in it again, and only there. Realms that no training task has
show whether a lesson is learned and kept within an evaluation.
"""

import random
from collections.abc import Sequence
from itertools import permutations

from erl_pipeline.environments.frozen_lake import game
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.grid_games.hidden_words import stored_world, task_world, turns_of
from erl_pipeline.environments.grid_games.tasks import BoardTask, GridTasks
from erl_pipeline.environments.interface import Task


def realm_word(realm: int) -> str:
    """The name of a realm, which the policy sees: `r0`, `r1`, ..."""
    return f"r{realm}"


def training_realms(config: FrozenLakeConfig) -> range:
    """The realms of training tasks; none without `actions: realms`."""
    return range(0 if config.realms is None else config.realms.training)


def held_out_realms(config: FrozenLakeConfig) -> range:
    """The realms that no training task has; they follow those that are trained on."""
    if config.realms is None:
        return range(0)
    return range(config.realms.training, config.realms.training + config.realms.held_out)


def realm_words(config: FrozenLakeConfig) -> list[str]:
    return [realm_word(realm) for realm in (*training_realms(config), *held_out_realms(config))]


def realm_permutation(world_seed: int, realm: int) -> tuple[Direction, ...]:
    """The directions of the four action words in a realm (0 to 23); no two realms of a seed have the same."""
    orders = list(permutations(DIRECTIONS))
    random.Random(f"realms/{world_seed}").shuffle(orders)
    return orders[realm]


def realm_world(config: FrozenLakeConfig, seed: int, task_id: str, realm: int) -> game.FrozenLakeWorld:
    hidden = realm_permutation(seed if config.world_seed is None else config.world_seed, realm)
    return task_world(config, seed, task_id, game.FrozenLakeSymbols, hidden, realm_word(realm))


class FrozenLakeTasks(GridTasks[FrozenLakeConfig, game.FrozenLakeBoard]):
    """The tasks of FrozenLake; the realms of training, where there are any, take turns."""

    name = "frozen_lake"
    board = game.FrozenLakeBoard
    symbols = game.FrozenLakeSymbols
    letters = "S, F, H and G"
    alphabet = "".join(game.LETTERS)
    tries = 100_000
    looser = "holes or path lengths"

    def parse(self, rows: Sequence[str], max_steps: int) -> game.FrozenLakeBoard:
        """The board. Raises `ValueError` where its goal cannot be reached in so many moves."""
        board = game.parse_board(rows)
        needed = board.moves_to_goal[board.start]
        if needed is not None and needed > max_steps:
            raise ValueError(f"the goal is {needed} moves away, but max_steps is {max_steps}")
        return board

    def draw(self, stream: random.Random, config: FrozenLakeConfig) -> game.FrozenLakeBoard:
        height = stream.randint(*config.rows)
        width = height if config.columns is None else stream.randint(*config.columns)
        cells = list(range(height * width))
        stream.shuffle(cells)
        start, goal, *others = cells
        if config.holes is not None:
            holes = set(others[: stream.randint(*config.holes)])
        else:
            holes = {cell for cell in others if stream.random() < (config.hole_probability or 0.0)}
        letters = "".join(
            "S" if cell == start else "G" if cell == goal else "H" if cell in holes else "F"
            for cell in range(height * width)
        )
        return game.FrozenLakeBoard(tuple(letters[row * width : (row + 1) * width] for row in range(height)))

    def is_wanted(self, board: game.FrozenLakeBoard, config: FrozenLakeConfig) -> bool:
        """Whether the shortest path is one that `path_length` allows."""
        moves = board.moves_to_goal[board.start]
        shortest, longest = config.path_length
        return moves is not None and shortest <= moves <= longest

    def world(self, config: FrozenLakeConfig, seed: int, task_id: str, place: int) -> game.FrozenLakeWorld:
        realms = training_realms(config)
        if not realms:
            return super().world(config, seed, task_id, place)
        return realm_world(config, seed, task_id, realms[place % len(realms)])


TASKS = FrozenLakeTasks()


def realm_task(
    config: FrozenLakeConfig, seed: int, task: BoardTask[game.FrozenLakeBoard], realm: int
) -> Task:
    """A board in a realm, which may be one that no training task has."""
    return TASKS.task(task, realm_world(config, seed, task.task_id, realm))


def difficulty(config: FrozenLakeConfig, task: Task) -> float:
    """Moves on the shortest way from start to goal."""
    board = game.FrozenLakeBoard(tuple(task.payload["board"]))
    moves = board.moves_to_goal[board.start]
    assert moves is not None  # no board without a way is a task
    return float(moves)


def gold_answer(config: FrozenLakeConfig, task: Task) -> list[str] | None:
    """The turns of a shortest way, one turn in mode `plan`; None where it is longer than the task allows."""
    board = game.FrozenLakeBoard(tuple(task.payload["board"]))
    way = shortest_way(board)
    if len(way) > task.payload["max_steps"]:
        return None
    if config.format == "short":
        world = stored_world(task.payload, game.FrozenLakeSymbols)
        return [game.short_answer(board, world.symbols, way, world.words)]
    return turns_of(way, config, task)


def shortest_way(board: game.FrozenLakeBoard) -> list[Direction]:
    """The directions of a shortest way from the start to the goal; of several, always the same one."""
    cell, way = board.start, list[Direction]()
    while cell != board.goal:
        way.append(board.best_directions(cell)[0])
        cell = board.neighbour(cell, way[-1])
    return way
