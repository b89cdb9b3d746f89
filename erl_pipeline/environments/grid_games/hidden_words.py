"""What a policy is not told, which word moves where; and the notes in which the tiny policy says it.

A reflection of the tiny policy is four slots, one for each direction (up, right, down, left): the action word
that moves there, or `?`. First and second attempts differ in the slots alone, so every word of the prompts
keeps its position. Prompts that show the failed attempt have it after the slots.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Generic, Protocol, TypeVar

from erl_pipeline.config.policy import ColdStartConfig, DemonstrationsWarmStart
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction, GridSettings
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport

UNKNOWN = "?"
SLOTS = 4
FIELD_WORDS = ("notes", "trace", "memory", "reflect")

Slots = Mapping[Direction, str]
"""Direction -> the action word that is said to move there; a direction that is not told is absent."""


class BoardSymbols(Protocol):
    """The characters a board is shown with."""

    def of_cell(self, board: Any, state: Any, cell: int) -> str:
        """What is shown at a cell of a board."""


SymbolsT = TypeVar("SymbolsT", bound=BoardSymbols)


@dataclass(frozen=True)
class World(Generic[SymbolsT]):
    """`actions` maps each action word to the direction it moves in. `symbols` are the characters a board is
    shown with. `realm` is the name that the policy sees before the board; empty for none."""

    actions: Mapping[str, Direction]
    symbols: SymbolsT
    realm: str = ""

    @property
    def words(self) -> dict[Direction, str]:
        """The action word that moves in each direction."""
        by_direction = {direction: word for word, direction in self.actions.items()}
        return {direction: by_direction[direction] for direction in DIRECTIONS}


def task_world(
    config: GridSettings,
    seed: int,
    task_id: str,
    symbols: Callable[..., SymbolsT],
    hidden: Sequence[Direction] | None = None,
    realm: str = "",
) -> World[SymbolsT]:
    """The world of one task. `seed` is the run's; per-task permutations derive from it and the task's id.

    `hidden` is what the action words mean where that is neither told nor drawn for each task; None: by the
    world's seed.
    """
    words: Sequence[str] = config.action_words
    if config.actions == "named":
        words = hidden = DIRECTIONS
    elif config.actions == "per_task":
        hidden = random.Random(f"actions/{seed}/{task_id}").sample(DIRECTIONS, 4)
    elif hidden is None:
        hidden = hidden_permutation(seed if config.world_seed is None else config.world_seed)
    shown = list(config.symbols)
    if config.permute_symbols:
        random.Random(f"symbols/{seed}/{task_id}").shuffle(shown)
    return World(dict(zip(words, hidden, strict=True)), symbols(*shown), realm)


def hidden_permutation(world_seed: int) -> tuple[Direction, ...]:
    """The directions of the four action words; any 24 seeds in a row give 24 different worlds."""
    return list(permutations(DIRECTIONS))[(5 + 7 * world_seed) % 24]


def stored_world(payload: Mapping[str, Any], symbols: Callable[..., SymbolsT]) -> World[SymbolsT]:
    return World(payload["actions"], symbols(**payload["symbols"]), payload.get("realm", ""))


def random_world(
    stream: random.Random, config: GridSettings, symbols: Callable[..., SymbolsT], realms: Sequence[str] = ()
) -> World[SymbolsT]:
    """A world of random words. Where there are realms it has the name of any one, which says nothing yet."""
    shown = list(config.symbols)
    if config.permute_symbols:
        stream.shuffle(shown)
    directions = stream.sample(DIRECTIONS, 4)
    actions = dict(zip(config.action_words, directions, strict=True))
    return World(actions, symbols(*shown), stream.choice(realms) if realms else "")


class CompactPrompts:
    """Prompts of fixed width for the tiny policy. `action_words` are what a reflection may put in a slot."""

    def __init__(self, action_words: Sequence[str]) -> None:
        self._allowed = {UNKNOWN, *action_words}

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        return [user_message(f"{observation} notes {_merged(reversed(notes))}")]

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        """The attempt prompt, then the failed attempt: board and slots keep their positions."""
        slots = _merged(reversed(notes))
        return [user_message(f"{report.observation} notes {slots} trace {report.trace} {report.feedback}")]

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        fields = (
            f"{report.observation} trace {report.trace} {report.feedback} memory {_merged(memory)} reflect"
        )
        return [user_message(fields)]

    def read_reflection(self, text: str) -> str | None:
        """Four slots; None for any other text."""
        words = text.split()
        return " ".join(words) if len(words) == SLOTS and self._allowed.issuperset(words) else None


def _merged(reflections: Iterable[str]) -> str:
    """One line of slots, each from the first reflection that knows it: preferred reflections come first."""
    slots = [UNKNOWN] * SLOTS
    for reflection in reflections:
        slots = [new if old == UNKNOWN else old for old, new in zip(slots, reflection.split(), strict=True)]
    return " ".join(slots)


def noisy_slots(
    stream: random.Random, world: World[Any], errors: ColdStartConfig | DemonstrationsWarmStart
) -> Slots:
    """One to four slots of a world: right, with the words of two directions swapped, or in any order. Notes
    and memories of demonstrations are drawn so, since reflections may be wrong too."""
    words = list(world.words.values())
    chance = stream.random()
    if chance < errors.swapped_notes:
        first, second = stream.sample(range(len(words)), 2)
        words[first], words[second] = words[second], words[first]
    elif chance < errors.swapped_notes + errors.reshuffled_notes:
        stream.shuffle(words)
    told = stream.sample(DIRECTIONS, stream.randint(1, 4))
    return {d: word for d, word in zip(DIRECTIONS, words, strict=True) if d in told}


def corrected(memory: Slots, seen: Slots) -> Slots:
    """What can be said after an attempt: what it has shown, and what it has not refuted of memory.

    A remembered word that moved elsewhere is dropped, so that its direction is unknown again.
    """
    kept = {direction: word for direction, word in memory.items() if word not in seen.values()}
    return {**kept, **seen}


def slots_text(known: Slots) -> str:
    """The four slots of a reflection that knows these action words."""
    return " ".join(known.get(direction, UNKNOWN) for direction in DIRECTIONS)


def read_slots(text: str) -> dict[Direction, str]:
    """The words that four slots know."""
    slots = zip(DIRECTIONS, text.split(), strict=True)
    return {direction: word for direction, word in slots if word != UNKNOWN}


def turns_of(way: Sequence[Direction], config: GridSettings, task: Task) -> list[str]:
    """One turn for each direction, or with `action_mode: plan` one for all of them."""
    words = {direction: word for word, direction in task.payload["actions"].items()}
    if config.format == "compact":
        moves = [f"{direction} {words[direction]}" for direction in way]
        return moves if config.action_mode == "step" else [" ".join(moves)]
    if config.action_mode == "step":
        return [f"[{words[direction]}]" for direction in way]
    return [f"[{' '.join(words[direction] for direction in way)}]"]
