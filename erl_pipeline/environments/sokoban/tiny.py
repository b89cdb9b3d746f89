"""Sokoban's parts for the cold start of a tiny policy: the scripted player, and questions about planning."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.demonstrations import Examination, ExamQuestion
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.grid_games.hidden_words import CompactPrompts, slots_text
from erl_pipeline.environments.grid_games.tiny import ScriptedPlayer, TinyGrid
from erl_pipeline.environments.messages import assistant_message, user_message
from erl_pipeline.environments.sokoban.board import BLOCKED, SokobanBoard, State
from erl_pipeline.environments.sokoban.game import ENDINGS, START, make_game
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import TASKS

_EXAMINED_BOARDS = 256


class Solutions:
    """The fewest moves to a solution from every state that can be reached on a small board.

    A board with one box and F cells of floor has at most F² states, one with two boxes F³ / 2.
    """

    def __init__(self, board: SokobanBoard) -> None:
        self._board = board

    def best_directions(self, state: State) -> list[Direction]:
        """The directions that shorten the way to a solution; empty where there is none."""
        here = self._moves.get(state)
        if not here:
            return []
        reached = {direction: self._board.move(state, direction)[1] for direction in DIRECTIONS}
        return [direction for direction, to in reached.items() if self._moves.get(to) == here - 1]

    @cached_property
    def _moves(self) -> dict[State, int]:
        """The fewest moves from each state that can be reached and from which there is a solution."""
        before = self._reachable()
        queue = deque(state for state in before if self._board.is_solved(state.boxes))
        moves = dict.fromkeys(queue, 0)
        while queue:
            state = queue.popleft()
            for earlier in before[state]:
                if earlier not in moves:
                    moves[earlier] = moves[state] + 1
                    queue.append(earlier)
        return moves

    def _reachable(self) -> dict[State, list[State]]:
        """Each state that can be reached, with the states from which one move leads to it."""
        before: dict[State, list[State]] = {self._board.start: []}
        queue = deque(before)
        while queue:
            state = queue.popleft()
            for direction in DIRECTIONS:
                _, reached = self._board.move(state, direction)
                if reached == state:
                    continue
                if reached not in before:
                    before[reached] = []
                    queue.append(reached)
                before[reached].append(state)
        return before


@lru_cache(maxsize=4096)
def _solutions(board: SokobanBoard) -> Solutions:
    """Kept, since the same boards are demonstrated again and again."""
    return Solutions(board)


class SokobanPlayer(ScriptedPlayer[SokobanBoard, State]):
    """Aims along a shortest solution."""

    def best_directions(self, state: State) -> Sequence[Direction]:
        return _solutions(self._board).best_directions(state)


def _examinations(config: SokobanConfig) -> list[Examination]:
    def plans(stream: random.Random, cold_start: ColdStartConfig) -> list[ExamQuestion]:
        # Boards of another seed: hardly any of them is demonstrated.
        few = min(_EXAMINED_BOARDS, config.training_boards)
        others = config.model_copy(update={"board_seed": config.board_seed + 1, "training_boards": few})
        return list(planning_questions(stream, config, TASKS.training_boards(others)))

    return [Examination("best_moves_right", plans, "planning is not learned to the end")]


TINY = TinyGrid(
    tasks=TASKS,
    game=make_game,
    player=SokobanPlayer,
    words=lambda config: (START, *BLOCKED, "bad", *ENDINGS),
    observed=lambda config: 1 + config.moving,
    examinations=_examinations,
)


def planning_questions(
    stream: random.Random, config: SokobanConfig, boards: Sequence[SokobanBoard]
) -> Iterator[ExamQuestion]:
    """For each board, the aims of a shortest solution in those of its states in which one move alone is best;
    the notes tell all words, and are true."""
    for board in boards:
        world = TINY.random_world(stream, config)
        game = make_game(config, board, world, config.max_steps)
        words = world.words
        prompts = CompactPrompts(config.action_words)
        conversation = prompts.attempt("", game.reset(), [slots_text(words)])
        solution = [(f"{aim} {words[aim]}", only) for aim, only in shortest_solution(stream, board)]
        if config.action_mode == "plan":
            plan = " ".join(turn for turn, _ in solution)
            places = tuple(2 * place for place, (_, only) in enumerate(solution) if only)
            if places:
                yield ExamQuestion([*conversation, assistant_message(plan)], places)
            continue
        for turn, only in solution:
            conversation.append(assistant_message(turn))
            if only:
                yield ExamQuestion(list(conversation), (0,))
            conversation.append(user_message(game.step(turn).observation))


def shortest_solution(stream: random.Random, board: SokobanBoard) -> Iterator[tuple[Direction, bool]]:
    """A shortest solution, drawn at random: its directions, and whether no other one was as good."""
    solutions, state = Solutions(board), board.start
    while not board.is_solved(state.boxes):
        best = solutions.best_directions(state)
        aim = stream.choice(best)
        yield aim, len(best) == 1
        _, state = board.move(state, aim)
