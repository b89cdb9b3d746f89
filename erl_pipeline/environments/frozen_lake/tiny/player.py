"""The scripted player of the demonstrations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import permutations

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.steps import Step
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction


class ScriptedPlayer:
    """Aims along a shortest path, guesses the words it does not know, and keeps to what it has seen.

    `notes` are the words it is told, which may be wrong. Among the worlds that its moves have not refuted, it
    believes one that agrees with most notes. With probability `random_intent` it aims in a random direction.
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
        self._cell = board.start
        worlds = [dict(zip(DIRECTIONS, words, strict=True)) for words in permutations(action_words)]
        self._notes = notes
        self._possible = worlds
        self._believed = self._most_likely()

    def move(self) -> str:
        """The text of one turn: aim and action word."""
        aim = self._aim(self._cell)
        return f"{aim} {self._believed[aim]}"

    def plan(self, max_steps: int) -> str:
        """The text of a whole plan, as it would go if all beliefs were true."""
        return " ".join(f"{aim} {self._believed[aim]}" for aim in self.way(max_steps))

    def way(self, max_steps: int) -> list[Direction]:
        """The directions of a whole plan, as it would go if all beliefs were true."""
        cell = self._cell
        aims: list[Direction] = []
        while len(aims) < max_steps and self._board.letters[cell] not in "GH":
            aims.append(self._aim(cell))
            cell = self._board.neighbour(cell, aims[-1])
        return aims

    @property
    def believed(self) -> Mapping[Direction, str]:
        """The action word that is believed to move in each direction."""
        return self._believed

    def learn(self, step: Step) -> None:
        """Drop the beliefs that a move has refuted."""
        if step.action is None:
            return
        if step.outcome == "bump":
            moved = [d for d in DIRECTIONS if self._board.neighbour(step.cell, d) == step.cell]
        else:
            moved = [d for d in DIRECTIONS if d == step.outcome]
        self._possible = [w for w in self._possible if any(w[d] == step.action.word for d in moved)]
        if self._believed not in self._possible:
            self._believed = self._most_likely()
        self._cell = step.cell

    def _most_likely(self) -> Mapping[Direction, str]:
        """One of the possible worlds that agree with most of the notes."""
        agreements = [sum(w[d] == word for d, word in self._notes.items()) for w in self._possible]
        most = max(agreements)
        return self._stream.choice(
            [w for w, agreed in zip(self._possible, agreements, strict=True) if agreed == most]
        )

    def _aim(self, cell: int) -> Direction:
        if self._stream.random() < self._random_intent:
            return self._stream.choice(DIRECTIONS)
        return self._stream.choice(self._board.best_directions(cell))
