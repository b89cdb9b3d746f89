"""Questions that ask whether a policy can plan: which move is best, where only one is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.hidden_words.hearsay import slots_text
from erl_pipeline.environments.hidden_words.prompts import CompactPrompts
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.game import compact_game
from erl_pipeline.environments.sokoban.moves import move
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.solving import Solutions
from erl_pipeline.environments.sokoban.tiny.demonstrations import random_world
from erl_pipeline.environments.tiny_parts import Question


def planning_questions(
    stream: random.Random, environment: SokobanConfig, boards: Sequence[Board]
) -> Iterator[Question]:
    """For each board, the aims of a shortest solution in those of its states in which one move alone is best;
    the notes tell all words, and are true."""
    for board in boards:
        world = random_world(stream, environment)
        game = compact_game(environment, board, world, environment.max_steps)
        words = {direction: world.word_for(direction) for direction in DIRECTIONS}
        prompts = CompactPrompts(environment.action_words)
        conversation = prompts.attempt("", game.reset(), [slots_text(words)])
        solution = [(f"{aim} {words[aim]}", only) for aim, only in shortest_solution(stream, board)]
        if environment.action_mode == "plan":
            plan = " ".join(turn for turn, _ in solution)
            places = tuple(2 * place for place, (_, only) in enumerate(solution) if only)
            if places:
                yield Question([*conversation, _says(plan)], places)
            continue
        for turn, only in solution:
            conversation.append(_says(turn))
            if only:
                yield Question(list(conversation), (0,))
            conversation.append(user_message(game.step(turn).observation))


def shortest_solution(stream: random.Random, board: Board) -> Iterator[tuple[Direction, bool]]:
    """A shortest solution, drawn at random: its directions, and whether no other one was as good."""
    solutions, state = Solutions(board), board.start
    while not board.is_solved(state.boxes):
        best = solutions.best_directions(state)
        aim = stream.choice(best)
        yield aim, len(best) == 1
        state = move(board, state, aim).state


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}
