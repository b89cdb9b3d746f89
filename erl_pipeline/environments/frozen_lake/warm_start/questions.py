"""What a warm start is examined on: held-out boards, each in a world of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from erl_pipeline.config.warm_start import DemonstrationsWarmStart
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.short import aimed_way
from erl_pipeline.environments.frozen_lake.tasks import held_out_boards
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import random_world
from erl_pipeline.environments.frozen_lake.warm_start.demonstrations import (
    Situation,
    demonstrate_reflection,
)
from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.warm_start import WarmStartQuestion

MEASURES: Mapping[str, str] = {
    "first_success": "success of first attempts, whose words can only be guessed",
    "noted_success": "success of attempts that are told all four words",
    "noted_plan": "share of these attempts whose directions lead to the goal",
    "noted_words": "share of these attempts that say the told word for each of their directions",
    "reflection_exact": "share of reflections that say what was seen and remembered, and nothing else",
}


def questions(
    stream: random.Random, settings: FrozenLakeConfig, warm_start: DemonstrationsWarmStart
) -> Iterator[WarmStartQuestion]:
    """A first attempt, an attempt with true notes, and a reflection for each of the boards."""
    for board in held_out_boards(settings, warm_start.examined):
        situation = Situation(board, random_world(stream, settings), settings)
        yield WarmStartQuestion(situation.attempt({}), AttemptScores(situation, "first"))
        yield WarmStartQuestion(situation.attempt(situation.words), AttemptScores(situation, "noted"))
        reflection = demonstrate_reflection(stream, situation, warm_start)
        if reflection is not None:
            yield WarmStartQuestion(reflection[:-1], ReflectionScores(reflection[-1]["content"]))


@dataclass(frozen=True)
class AttemptScores:
    """The scores of an attempt; those of its plan and words only where it was told all words."""

    situation: Situation
    kind: str

    def __call__(self, answer: str) -> dict[str, float]:
        """1 or 0 by name."""
        game = self.situation.game()
        game.reset()
        scores = {f"{self.kind}_success": game.step(answer).reward}
        if self.kind == "noted":
            aims, words = aimed_way(answer), self._said_words(answer)
            expected = [self.situation.words[aim] for aim in aims]
            scores["noted_plan"] = self._success(aims)
            scores["noted_words"] = float(bool(aims) and words == expected)
        return scores

    def _success(self, aims: list[Direction]) -> float:
        """The reward of moving in these directions."""
        game = self.situation.game()
        game.reset()
        return game.step(f"[{' '.join(self.situation.words[aim] for aim in aims)}]").reward

    def _said_words(self, answer: str) -> list[str]:
        return answer.rpartition("[")[2].partition("]")[0].split()


@dataclass(frozen=True)
class ReflectionScores:
    """Whether a reflection equals the demonstrated one."""

    expected: str

    def __call__(self, answer: str) -> dict[str, float]:
        """1 or 0."""
        return {"reflection_exact": float(answer.strip() == self.expected)}
