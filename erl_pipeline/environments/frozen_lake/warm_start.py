"""FrozenLake's parts for the warm start of a language model, in the short format.

Scripted attempts, attempts with notes, and reflections, each in a world of its own. The demonstrator knows
the world, and the policy cannot. So the policy learns to guess words uniformly without notes, and to trust
notes as far as they are right. It also learns the format and the planning.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from erl_pipeline.config.policy import DemonstrationsWarmStart
from erl_pipeline.environments.demonstrations import (
    Demonstration,
    WarmStart,
    WarmStartParts,
    WarmStartQuestion,
)
from erl_pipeline.environments.frozen_lake.game import (
    FrozenLake,
    FrozenLakeBoard,
    FrozenLakeWorld,
    make_game,
    short_answer,
)
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS
from erl_pipeline.environments.frozen_lake.tiny import TINY, FrozenLakePlayer
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.grid_games.game import Step
from erl_pipeline.environments.grid_games.hidden_words import Slots, corrected, noisy_slots
from erl_pipeline.environments.messages import Message, assistant_message
from erl_pipeline.environments.prompt_format import AttemptReport, ChatPrompts
from storage.errors import ConfigError

_KINDS = ("first", "noted", "reflection")
_NO_ERRORS = 0.0
_TRIES = 100

_MEASURES: Mapping[str, str] = {
    "first_success": "success of first attempts, whose words can only be guessed",
    "noted_success": "success of attempts that are told all four words",
    "noted_plan": "share of these attempts whose directions lead to the goal",
    "noted_words": "share of these attempts that say the told word for each of their directions",
    "reflection_exact": "share of reflections that say what was seen and remembered, and nothing else",
}


def _parts(settings: FrozenLakeConfig) -> WarmStartParts | None:
    """The parts for `format: short`; None for others, and for `actions: named`, which hides nothing."""
    if settings.format != "short" or settings.actions == "named":
        return None

    def demonstrations(stream: random.Random, warm_start: DemonstrationsWarmStart) -> Iterator[Demonstration]:
        boards = TASKS.training_boards(settings)
        while True:
            yield demonstrate(stream, settings, warm_start, boards)

    return WarmStartParts(
        demonstrations=demonstrations,
        questions=lambda stream, warm_start: list(questions(stream, settings, warm_start)),
        measures=_MEASURES,
    )


WARM_START = WarmStart(
    parts=_parts,
    needs="format: short and actions other than named",
    # Each demonstration draws its own world and a generated board, so these settings do not change it.
    exclude=frozenset({"world_seed", "task_file"}),
)


@dataclass(frozen=True)
class Situation:
    """A board in a world, with the prompts of an environment's settings."""

    board: FrozenLakeBoard
    world: FrozenLakeWorld
    settings: FrozenLakeConfig

    @property
    def prompts(self) -> ChatPrompts:
        assert self.settings.prompts is not None
        return ChatPrompts(self.settings.prompts)

    def game(self) -> FrozenLake:
        return make_game(self.settings, self.board, self.world, self.settings.max_steps)

    def player(self, stream: random.Random, notes: Slots) -> FrozenLakePlayer:
        """A player that walks a shortest way and believes what it is told."""
        return FrozenLakePlayer(stream, self.board, self.settings.action_words, notes, _NO_ERRORS)

    def attempt(self, notes: Slots) -> list[Message]:
        """The prompt of an attempt that is told these words; without any, the prompt of a first attempt."""
        game = self.game()
        told = [short_reflection(notes)] if notes else []
        return self.prompts.attempt(game.instructions, game.reset(), told)

    def success(self, answer: str) -> float:
        game = self.game()
        game.reset()
        return game.step(answer).reward


def demonstrate(
    stream: random.Random,
    settings: FrozenLakeConfig,
    warm_start: DemonstrationsWarmStart,
    boards: Sequence[FrozenLakeBoard],
) -> list[Message]:
    """One conversation. Its kind is drawn with the shares in `warm_start`.

    Raises ConfigError where no reflection can be demonstrated.
    """
    parts = warm_start.first_attempts, warm_start.noted_attempts, warm_start.reflections
    (kind,) = stream.choices(_KINDS, parts)
    for _ in range(_TRIES):
        situation = Situation(stream.choice(boards), TINY.random_world(stream, settings), settings)
        if kind == "reflection":
            if (reflection := demonstrate_reflection(stream, situation, warm_start)) is not None:
                return reflection
            continue
        notes = noisy_slots(stream, situation.world, warm_start) if kind == "noted" else {}
        return demonstrate_attempt(stream, situation, notes)
    raise ConfigError(
        "policy.warm_start.reflections: on these boards no attempt both fails and shows what a word does; "
        "set it to 0, or allow larger boards or longer ways"
    )


def demonstrate_attempt(stream: random.Random, situation: Situation, notes: Slots) -> list[Message]:
    """An attempt whose player knows the world, whatever the notes in its prompt say."""
    way = situation.player(stream, situation.world.words).way(situation.settings.max_steps)
    said = short_answer(situation.board, situation.world.symbols, way, situation.world.words)
    return [*situation.attempt(notes), assistant_message(said)]


def demonstrate_reflection(
    stream: random.Random, situation: Situation, warm_start: DemonstrationsWarmStart
) -> list[Message] | None:
    """A reflection on an attempt that failed and moved; None where no guessed attempt did both. It says which
    words moved where, and what a memory adds to that; what was seen overrides the memory."""
    memory = noisy_slots(stream, situation.world, warm_start) if stream.random() < warm_start.memories else {}
    for _ in range(_TRIES):
        game = situation.game()
        observation = game.reset()
        guessing = situation.player(stream, {})
        way = guessing.way(situation.settings.max_steps)
        answer = short_answer(situation.board, situation.world.symbols, way, guessing.believed)
        reward = game.step(answer).reward
        seen = shown_words(game.steps, situation.world)
        if seen and not reward:
            break
    else:
        return None
    report = AttemptReport(observation, game.trace(), game.feedback(), reward)
    told = [short_reflection(memory)] if memory else []
    asked = situation.prompts.reflection(game.instructions, report, told)
    return [*asked, assistant_message(short_reflection(corrected(memory, seen)))]


def shown_words(steps: Sequence[Step[int]], world: FrozenLakeWorld) -> dict[Direction, str]:
    """The action words whose direction an attempt has shown: those of all moves except against the edge."""
    moved = {step.action.word for step in steps if step.action is not None and step.outcome != "bump"}
    return {direction: word for direction, word in world.words.items() if word in moved}


def short_reflection(known: Slots) -> str:
    """What is known of the action words, such as `up: river, left: stone`."""
    return ", ".join(f"{direction}: {known[direction]}" for direction in DIRECTIONS if direction in known)


def aimed_way(text: str) -> list[Direction]:
    """The directions that an answer names before its brackets; empty where a word there is no direction."""
    aimed = text.partition(":")[2].partition("[")[0].split()
    way = [direction for word in aimed for direction in DIRECTIONS if word == direction]
    return way if len(way) == len(aimed) else []


def questions(
    stream: random.Random, settings: FrozenLakeConfig, warm_start: DemonstrationsWarmStart
) -> Iterator[WarmStartQuestion]:
    """What a warm start is examined on: a first attempt, an attempt with true notes, and a reflection at some
    held-out boards, each in a world of its own."""
    for board in TASKS.held_out_boards(settings, warm_start.examined):
        situation = Situation(board, TINY.random_world(stream, settings), settings)
        yield WarmStartQuestion(situation.attempt({}), partial(attempt_scores, situation, "first"))
        yield WarmStartQuestion(
            situation.attempt(situation.world.words), partial(attempt_scores, situation, "noted")
        )
        reflection = demonstrate_reflection(stream, situation, warm_start)
        if reflection is not None:
            yield WarmStartQuestion(reflection[:-1], partial(reflection_scores, reflection[-1]["content"]))


def attempt_scores(situation: Situation, kind: str, answer: str) -> dict[str, float]:
    """The scores of an attempt, 1 or 0 by name; of its plan and words only where it was told all words."""
    scores = {f"{kind}_success": situation.success(answer)}
    if kind == "noted":
        aims = aimed_way(answer)
        expected = [situation.world.words[aim] for aim in aims]
        said = answer.rpartition("[")[2].partition("]")[0].split()
        scores["noted_plan"] = situation.success(f"[{' '.join(expected)}]")
        scores["noted_words"] = float(bool(aims) and said == expected)
    return scores


def reflection_scores(expected: str, answer: str) -> dict[str, float]:
    """1 where a reflection equals the demonstrated one, else 0."""
    return {"reflection_exact": float(answer.strip() == expected)}
