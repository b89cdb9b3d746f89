"""FrozenLake's parts for the cold starts of a tiny policy, and of a tiny extractor of experience."""

import random
from collections.abc import Iterator, Mapping, Sequence

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.demonstrations import Demonstration, TinyParts
from erl_pipeline.environments.frozen_lake.game import FrozenLakeBoard, FrozenLakeWorld, make_game
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS, realm_words
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.grid_games.game import PADDING
from erl_pipeline.environments.grid_games.hidden_words import (
    SLOTS,
    UNKNOWN,
    CompactPrompts,
    Slots,
    corrected,
    slots_text,
)
from erl_pipeline.environments.grid_games.tiny import ScriptedPlayer, TinyGrid, play_out, seen_moves
from erl_pipeline.environments.messages import Message, assistant_message, user_message
from erl_pipeline.environments.prompt_format import EpisodeRecord, ExperienceOperation

_STEP_WORDS = 4  # aim, action, outcome, cell
_NOTES = " notes "
_BLANK = " ".join([UNKNOWN] * SLOTS)
_EXTRACTION_WORDS = ("extract", "merge", "add", "update", "return")
_MERGES = 0.2  # share of demonstrations that merge
_MOST_MERGED = 10
_AT_ONCE = 2  # demonstrations that count as one, as an attempt and its reflections do
_FALSE_LESSON = 0.25  # share of lessons that are of another world


class FrozenLakePlayer(ScriptedPlayer[FrozenLakeBoard, int]):
    """Aims along a shortest path."""

    def best_directions(self, state: int) -> Sequence[Direction]:
        return self._board.best_directions(state)


TINY = TinyGrid(
    tasks=TASKS,
    game=make_game,
    player=FrozenLakePlayer,
    words=lambda config: ("bump", "bad", "goal", "fell", "lost"),
    observed=lambda config: int(config.realms is not None),
    names=realm_words,
)


class CompactExtraction:
    """Prompts of the extractor in the compact format: the name of an operation, then four slots, as in a
    reflection. At most one lesson is shown, and the answer is one operation.

    Extraction: `BOARD trace STEPS ENDING memory SLOTS extract` is answered by `add SLOTS`, `update SLOTS` or
    `return`. The outcome of the last step is only in the ending, since no turn told it to the policy.
    Merging: `merge SLOTS SLOTS ...` is answered by `SLOTS ...` or `return`.
    """

    def __init__(self, action_words: Sequence[str], max_steps: int) -> None:
        self._allowed = {UNKNOWN, *action_words}
        self._max_steps = max_steps

    def situation(self, record: EpisodeRecord) -> str:
        """The task as the prompt of an attempt without notes shows it."""
        return f"{self._observation(record)}{_NOTES}{_BLANK}"

    def extraction(self, record: EpisodeRecord) -> list[Message]:
        lesson = record.lessons[-1] if record.lessons else _BLANK
        episode = f"{self._observation(record)} trace {self._trace(record)} {record.feedback}"
        return [user_message(f"{episode} memory {lesson} extract")]

    def read_extraction(self, text: str, lessons: int) -> Sequence[ExperienceOperation] | None:
        name, *slots = text.split() or [""]
        if name == "return" and not slots:
            return [ExperienceOperation("return")]
        if not self._says_something(slots):
            return None
        if name == "add":
            return [ExperienceOperation("add", " ".join(slots))]
        if name == "update" and lessons:
            return [ExperienceOperation("update", " ".join(slots), (lessons - 1,))]
        return None

    def merging(self, texts: Sequence[str]) -> list[Message]:
        return [user_message(f"merge {' '.join(texts)}")]

    def read_merging(self, text: str) -> Sequence[str] | None:
        words = text.split()
        if words == ["return"]:
            return []
        groups = [words[start : start + SLOTS] for start in range(0, len(words), SLOTS)]
        if not groups or not all(map(self._says_something, groups)):
            return None
        return [" ".join(each) for each in groups]

    def _says_something(self, slots: Sequence[str]) -> bool:
        return len(slots) == SLOTS and self._allowed.issuperset(slots) and {*slots} != {UNKNOWN}

    def _observation(self, record: EpisodeRecord) -> str:
        return record.opening[-1]["content"].partition(_NOTES)[0]

    def _trace(self, record: EpisodeRecord) -> str:
        """`aim action outcome cell` of each step. Padding replaces texts that are not two words, and fills up
        to the width of a whole attempt."""
        words: list[str] = []
        for place, turn in enumerate(record.turns):
            if turn["role"] != "assistant":
                continue
            after = record.turns[place + 1]["content"] if place + 1 < len(record.turns) else ""
            for said in (turn["content"].split(), after.split()):
                words += said if len(said) == 2 else [PADDING, PADDING]
        width = _STEP_WORDS * self._max_steps
        return " ".join([*words, *[PADDING] * (width - len(words))][:width])


def experience_format(settings: FrozenLakeConfig) -> CompactExtraction | None:
    """The prompts of an extractor in the compact format; None for other formats, and for plans, which are not
    told the outcome of each step."""
    if settings.format != "compact" or settings.action_mode != "step":
        return None
    return CompactExtraction(settings.action_words, settings.max_steps)


def tiny_extractor(settings: FrozenLakeConfig) -> TinyParts | None:
    """The extractor's parts for these settings; None where `experience_format` has none. Raises as
    `TinyGrid.vocabulary`."""
    if experience_format(settings) is None:
        return None

    def demonstrations(
        stream: random.Random, cold_start: ColdStartConfig
    ) -> Iterator[Sequence[Demonstration]]:
        boards = TASKS.training_boards(settings)
        while True:
            yield [
                demonstrate_merge(stream, settings)
                if stream.random() < _MERGES
                else demonstrate_extraction(stream, settings, cold_start, boards)
                for _ in range(_AT_ONCE)
            ]

    words = (*TINY.vocabulary(settings), *_EXTRACTION_WORDS)
    height, width = settings.frame
    extraction = height * width + _STEP_WORDS * settings.max_steps + 2 * SLOTS + 10
    return TinyParts(words, max(extraction, 2 * SLOTS * _MOST_MERGED + 8) + 8, demonstrations)


def demonstrate_extraction(
    stream: random.Random,
    settings: FrozenLakeConfig,
    cold_start: ColdStartConfig,
    boards: Sequence[FrozenLakeBoard],
) -> Demonstration:
    """An attempt with or without a lesson, and what its moves add to the lesson."""
    board, world = stream.choice(boards), TINY.random_world(stream, settings)
    false = stream.random() < _FALSE_LESSON
    told = TINY.random_world(stream, settings) if false else world
    lesson = {} if stream.random() < cold_start.blank_notes else some_slots(stream, told)
    game = make_game(settings, board, world, settings.max_steps)
    believed = {} if false else lesson
    player = FrozenLakePlayer(stream, board, settings.action_words, believed, cold_start.random_intent)
    opening = CompactPrompts(settings.action_words).attempt("", game.reset(), [slots_text(lesson)])
    turns: list[Message] = []
    reward = play_out(game, player, settings, turns)
    lessons = [slots_text(lesson)] if lesson else []
    record = EpisodeRecord(opening, turns, lessons, game.feedback(), reward)
    answer = extraction_answer(lesson, seen_moves(game.steps[:-1]))
    prompts = CompactExtraction(settings.action_words, settings.max_steps)
    return [*prompts.extraction(record), assistant_message(answer)]


def extraction_answer(lesson: Slots, shown: Slots) -> str:
    """The operation on a lesson after these moves were seen, which override the lesson."""
    if all(lesson.get(direction) == word for direction, word in shown.items()):
        return "return"
    return f"{'update' if lesson else 'add'} {slots_text(corrected(lesson, shown))}"


def demonstrate_merge(stream: random.Random, settings: FrozenLakeConfig) -> Demonstration:
    """Lessons of one or two worlds, and those that remain after lessons that agree are merged."""
    worlds = [TINY.random_world(stream, settings) for _ in range(stream.choice((1, 1, 1, 2)))]
    lessons = [some_slots(stream, stream.choice(worlds)) for _ in range(stream.randint(2, _MOST_MERGED))]
    prompts = CompactExtraction(settings.action_words, settings.max_steps)
    asked = prompts.merging([slots_text(lesson) for lesson in lessons])
    return [*asked, assistant_message(merge_answer(lessons))]


def merge_answer(lessons: Sequence[Slots]) -> str:
    """Each lesson is merged into the first earlier one that it agrees with in all slots and words."""
    merged: list[dict[Direction, str]] = []
    for lesson in lessons:
        into = next((each for each in merged if _agree(each, lesson)), None)
        if into is None:
            merged.append(dict(lesson))
        else:
            into.update(lesson)
    return "return" if len(merged) == len(lessons) else " ".join(slots_text(each) for each in merged)


def some_slots(stream: random.Random, world: FrozenLakeWorld) -> dict[Direction, str]:
    """One to four slots that are true in a world."""
    told = stream.sample(DIRECTIONS, stream.randint(1, SLOTS))
    return {direction: world.words[direction] for direction in told}


def _agree(one: Mapping[Direction, str], other: Mapping[Direction, str]) -> bool:
    both = {**one, **other}
    return len(set(both.values())) == len(both) and all(both[d] == word for d, word in one.items())
