"""The scripted player of the demonstrations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import permutations

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.moves import move
from erl_pipeline.environments.sokoban.solving import Solutions
from erl_pipeline.environments.sokoban.steps import Step


class ScriptedPlayer:
    """Aims along a shortest solution, guesses the words it does not know, and keeps to what it has seen.

    `notes` are the words it is told, which may be wrong. Among the worlds that its moves have not refuted, it
    believes one that agrees with most notes. With probability `random_intent`, and where there is no solution
    any more, it aims in a random direction.
    """

    def __init__(
        self,
        stream: random.Random,
        board: Board,
        action_words: Sequence[str],
        notes: Mapping[Direction, str],
        random_intent: float,
    ) -> None:
        self._stream = stream
        self._board = board
        self._random_intent = random_intent
        self._state = board.start
        self._notes = notes
        self._possible = [dict(zip(DIRECTIONS, words, strict=True)) for words in permutations(action_words)]
        self._believed = self._most_likely()

    def move(self) -> str:
        """The text of one turn: aim and action word."""
        aim = self._aim(self._state)
        return f"{aim} {self._believed[aim]}"

    def plan(self, max_steps: int) -> str:
        """The text of a whole plan, as it would go if all beliefs were true."""
        state = self._state
        turns: list[str] = []
        while len(turns) < max_steps and not self._board.is_solved(state.boxes):
            aim = self._aim(state)
            turns.append(f"{aim} {self._believed[aim]}")
            state = move(self._board, state, aim).state
        return " ".join(turns)

    def learn(self, step: Step) -> None:
        """Drop the beliefs that a move has refuted."""
        if step.action is None:
            return
        word = step.action.word
        meant = [d for d in DIRECTIONS if move(self._board, self._state, d).outcome == step.outcome]
        self._possible = [world for world in self._possible if any(world[d] == word for d in meant)]
        if self._believed not in self._possible:
            self._believed = self._most_likely()
        self._state = step.state

    def _most_likely(self) -> Mapping[Direction, str]:
        """One of the possible worlds that agree with most of the notes."""
        agreements = [sum(w[d] == word for d, word in self._notes.items()) for w in self._possible]
        most = max(agreements)
        return self._stream.choice(
            [w for w, agreed in zip(self._possible, agreements, strict=True) if agreed == most]
        )

    def _aim(self, state: State) -> Direction:
        if self._stream.random() < self._random_intent:
            return self._stream.choice(DIRECTIONS)
        return self._stream.choice(_solutions(self._board).best_directions(state) or DIRECTIONS)


@lru_cache(maxsize=4096)
def _solutions(board: Board) -> Solutions:
    """Kept, since the same boards are demonstrated again and again."""
    return Solutions(board)
