"""FrozenLake's parts for the cold start of a tiny extractor, and its demonstrations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.experience_format import EpisodeRecord
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.compact import STEP_WORDS, CompactRendering
from erl_pipeline.environments.frozen_lake.game import FrozenLake
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import training_boards
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import random_world, seen_moves
from erl_pipeline.environments.frozen_lake.tiny.extraction import EXTRACTION_WORDS, CompactExtraction
from erl_pipeline.environments.frozen_lake.tiny.parts import vocabulary
from erl_pipeline.environments.frozen_lake.tiny.player import ScriptedPlayer
from erl_pipeline.environments.frozen_lake.world import World
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction
from erl_pipeline.environments.hidden_words.hearsay import corrected, slots_text
from erl_pipeline.environments.hidden_words.prompts import SLOTS, CompactPrompts
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.tiny_parts import Demonstration, TinyParts

_MERGES = 0.2  # share of demonstrations that merge
_MOST_MERGED = 10
_AT_ONCE = 2  # demonstrations that count as one, as an attempt and its reflections do
_FALSE_LESSON = 0.25  # share of lessons that are of another world


def experience_format(settings: FrozenLakeConfig) -> CompactExtraction | None:
    """The prompts of an extractor in the compact format; None for other formats, and for plans, which are not
    told the outcome of each step."""
    if settings.format != "compact" or settings.action_mode != "step":
        return None
    return CompactExtraction(settings.action_words, settings.max_steps)


def tiny_extractor(settings: FrozenLakeConfig) -> TinyParts | None:
    """The parts for these settings; None where `experience_format` has none. Raises as `vocabulary`."""
    if experience_format(settings) is None:
        return None

    def demonstrations(
        stream: random.Random, cold_start: ColdStartConfig
    ) -> Iterator[Sequence[Demonstration]]:
        boards = training_boards(settings)
        while True:
            yield [
                demonstrate_merge(stream, settings)
                if stream.random() < _MERGES
                else demonstrate_extraction(stream, settings, cold_start, boards)
                for _ in range(_AT_ONCE)
            ]

    words = (*vocabulary(settings), *EXTRACTION_WORDS)
    cells = settings.rows[1] * settings.column_range[1]
    extraction = cells + STEP_WORDS * settings.max_steps + 2 * SLOTS + 10
    return TinyParts(words, max(extraction, 2 * SLOTS * _MOST_MERGED + 8) + 8, demonstrations)


def demonstrate_extraction(
    stream: random.Random, environment: FrozenLakeConfig, cold_start: ColdStartConfig, boards: Sequence[Board]
) -> Demonstration:
    """An attempt with or without a lesson, and what its moves add to the lesson."""
    board, world = stream.choice(boards), random_world(stream, environment)
    false = stream.random() < _FALSE_LESSON
    told = random_world(stream, environment) if false else world
    lesson = {} if stream.random() < cold_start.blank_notes else some_slots(stream, told)
    env = FrozenLake(
        board,
        world,
        environment.max_steps,
        "step",
        CompactRendering(board, world, environment.max_steps, environment.frame),
    )
    believed = {} if false else lesson
    player = ScriptedPlayer(stream, board, environment.action_words, believed, cold_start.random_intent)
    opening = CompactPrompts(environment.action_words).attempt("", env.reset(), [slots_text(lesson)])
    turns: list[Message] = []
    while True:
        turns.append({"role": "assistant", "content": player.move()})
        moved = env.step(turns[-1]["content"])
        if moved.done:
            break
        player.learn(env.steps[-1])
        turns.append(user_message(moved.observation))
    lessons = [slots_text(lesson)] if lesson else []
    record = EpisodeRecord(opening, turns, lessons, env.feedback(), moved.reward)
    shown = seen_moves(env.steps[:-1])
    answer = extraction_answer(lesson, shown)
    prompts = CompactExtraction(environment.action_words, environment.max_steps)
    return [*prompts.extraction(record), {"role": "assistant", "content": answer}]


def extraction_answer(lesson: Mapping[Direction, str], shown: Mapping[Direction, str]) -> str:
    """The operation on a lesson after these moves were seen, which override the lesson."""
    if all(lesson.get(direction) == word for direction, word in shown.items()):
        return "return"
    return f"{'update' if lesson else 'add'} {slots_text(corrected(lesson, shown))}"


def demonstrate_merge(stream: random.Random, environment: FrozenLakeConfig) -> Demonstration:
    """Lessons of one or two worlds, and those that remain after lessons that agree are merged."""
    worlds = [random_world(stream, environment) for _ in range(stream.choice((1, 1, 1, 2)))]
    lessons = [some_slots(stream, stream.choice(worlds)) for _ in range(stream.randint(2, _MOST_MERGED))]
    prompts = CompactExtraction(environment.action_words, environment.max_steps)
    asked = prompts.merging([slots_text(lesson) for lesson in lessons])
    return [*asked, {"role": "assistant", "content": merge_answer(lessons)}]


def merge_answer(lessons: Sequence[Mapping[Direction, str]]) -> str:
    """Each lesson is merged into the first earlier one that it agrees with in all slots and words."""
    merged: list[dict[Direction, str]] = []
    for lesson in lessons:
        into = next((each for each in merged if _agree(each, lesson)), None)
        if into is None:
            merged.append(dict(lesson))
        else:
            into.update(lesson)
    return "return" if len(merged) == len(lessons) else " ".join(slots_text(each) for each in merged)


def some_slots(stream: random.Random, world: World) -> dict[Direction, str]:
    """One to four slots that are true in a world."""
    told = stream.sample(DIRECTIONS, stream.randint(1, SLOTS))
    return {direction: world.word_for(direction) for direction in told}


def _agree(one: Mapping[Direction, str], other: Mapping[Direction, str]) -> bool:
    both = {**one, **other}
    return len(set(both.values())) == len(both) and all(both[d] == word for d, word in one.items())
