"""The cold start of a tiny policy: weak scripted demonstrations over a family of worlds, and its vocabulary.

Every demonstration draws its own permutation of the action words, so that the policy learns to read
notes and outcomes but cannot know any one world. Notes may be wrong, so that it also learns to trust what
it sees more than what it is told.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, Generic

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.demonstrations import Demonstration, Examination, ExamQuestion, TinyParts
from erl_pipeline.environments.grid_games import hidden_words
from erl_pipeline.environments.grid_games.boards import (
    DIRECTIONS,
    BoardT,
    ConfigT,
    Direction,
    GridSettings,
    StateT,
)
from erl_pipeline.environments.grid_games.game import PADDING, GridGame, Step, cell_word
from erl_pipeline.environments.grid_games.tasks import GridTasks
from erl_pipeline.environments.messages import Message, assistant_message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from storage.errors import ConfigError

_BLANK_MEMORY = 0.5  # share of reflections that are demonstrated without a memory
_BLANK_NOTES = 0.5  # share of retries that are demonstrated without a reflection
_EXAMINED_EPISODES = 256
_SPECIAL_TOKENS = 3  # of a turn: <end>, <user>, <assistant>
_SPARE_WORDS = 6  # for each turn that is ill-formed


class ScriptedPlayer(ABC, Generic[BoardT, StateT]):
    """Aims along a best way, guesses the words it does not know, and keeps to what it has seen.

    `notes` are the words it is told, which may be wrong. Among the worlds that its moves have not refuted, it
    believes one that agrees with most notes. With probability `random_intent`, and where no way leads to
    success any more, it aims in a random direction.
    """

    def __init__(
        self,
        stream: random.Random,
        board: BoardT,
        action_words: Sequence[str],
        notes: hidden_words.Slots,
        random_intent: float,
    ) -> None:
        self._stream = stream
        self._board = board
        self._random_intent = random_intent
        self._state: StateT = board.start
        self._notes = notes
        self._possible = [dict(zip(DIRECTIONS, words, strict=True)) for words in permutations(action_words)]
        self._believed = self._most_likely()

    @abstractmethod
    def best_directions(self, state: StateT) -> Sequence[Direction]:
        """The directions that shorten the way to success; empty where there is none."""

    @property
    def believed(self) -> Mapping[Direction, str]:
        """The action word that is believed to move in each direction."""
        return self._believed

    def move(self) -> str:
        """The text of one turn: aim and action word."""
        aim = self._aim(self._state)
        return f"{aim} {self._believed[aim]}"

    def plan(self, max_steps: int) -> str:
        """The text of a whole plan, as it would go if all beliefs were true."""
        return " ".join(f"{aim} {self._believed[aim]}" for aim in self.way(max_steps))

    def way(self, max_steps: int) -> list[Direction]:
        """The directions of a whole plan, as it would go if all beliefs were true."""
        state, aims = self._state, list[Direction]()
        while len(aims) < max_steps and not self._board.is_over(state):
            aims.append(self._aim(state))
            _, state = self._board.move(state, aims[-1])
        return aims

    def learn(self, step: Step[StateT]) -> None:
        """Drop the beliefs that a move has refuted."""
        if step.action is None:
            return
        word = step.action.word
        meant = [d for d in DIRECTIONS if self._board.move(self._state, d)[0] == step.outcome]
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

    def _aim(self, state: StateT) -> Direction:
        if self._stream.random() < self._random_intent:
            return self._stream.choice(DIRECTIONS)
        return self._stream.choice(self.best_directions(state) or DIRECTIONS)


@dataclass(frozen=True)
class DemonstratedEpisode:
    """An attempt and, where it failed, reflections on it, each with a memory of its own, and perhaps a retry.

    `seen` are the action words whose direction the attempt has shown. `retry` is an attempt that is told how
    this one failed; None where there is none.
    """

    attempt: Demonstration
    reflections: Sequence[Demonstration]
    seen: hidden_words.Slots
    retry: Demonstration | None = None

    @property
    def conversations(self) -> list[Demonstration]:
        return [self.attempt, *self.reflections, *([] if self.retry is None else [self.retry])]

    @property
    def questions(self) -> list[ExamQuestion]:
        """Whether a reflection says what its attempt has shown, whatever memory says."""
        places = tuple(place for place, direction in enumerate(DIRECTIONS) if direction in self.seen)
        return [ExamQuestion(reflection, places) for reflection in self.reflections if places]


def seen_moves(steps: Sequence[Step[Any]]) -> dict[Direction, str]:
    """The action words whose direction an attempt has shown."""
    return {d: step.action.word for step in steps if step.action for d in DIRECTIONS if step.outcome == d}


def step_width(config: GridSettings) -> int:
    """Words of a step in a trace: aim, action, outcome and places."""
    return 3 + config.moving


def _cells(config: GridSettings) -> int:
    rows, columns = config.frame
    return rows * columns


@dataclass(frozen=True)
class TinyGrid(Generic[ConfigT, BoardT, StateT]):
    """A game in the compact form: its words, and demonstrations of it."""

    tasks: GridTasks[ConfigT, BoardT]
    game: Callable[[ConfigT, BoardT, hidden_words.World[Any], int], GridGame[BoardT, StateT]]
    """An attempt, from the settings, a board, a world and the moves that it may have."""
    player: type[ScriptedPlayer[BoardT, StateT]]
    words: Callable[[ConfigT], Sequence[str]]
    """The words besides cells, directions, symbols and action words."""
    observed: Callable[[ConfigT], int]
    """Words of the first observation besides the cells."""
    names: Callable[[ConfigT], Sequence[str]] = lambda config: ()
    """The names of worlds, if they have any."""
    examinations: Callable[[ConfigT], Sequence[Examination]] = lambda config: ()
    """Skills besides reflecting that the cold start should teach."""

    def random_world(self, stream: random.Random, config: ConfigT) -> hidden_words.World[Any]:
        """One of the worlds that these settings allow, drawn at random."""
        return hidden_words.random_world(stream, config, self.tasks.symbols, self.names(config))

    def parts(self, config: ConfigT) -> TinyParts | None:
        """The parts for these settings; None for formats other than `compact`. Raises as `vocabulary`."""
        if config.format != "compact":
            return None

        @cache
        def boards() -> list[BoardT]:
            return self.tasks.training_boards(config)

        def demonstrations(
            stream: random.Random, cold_start: ColdStartConfig
        ) -> Iterator[Sequence[Demonstration]]:
            while True:
                yield self.demonstrate(stream, config, cold_start, boards()).conversations

        def questions(stream: random.Random, cold_start: ColdStartConfig) -> list[ExamQuestion]:
            episodes = (
                self.demonstrate(stream, config, cold_start, boards()) for _ in range(_EXAMINED_EPISODES)
            )
            return [question for episode in episodes for question in episode.questions]

        reflecting = Examination(
            "seen_slots_right", questions, "reflections may keep what the attempt has refuted"
        )
        return TinyParts(
            words=self.vocabulary(config),
            context_length=self.context_length(config),
            demonstrations=demonstrations,
            examinations=[reflecting, *self.examinations(config)],
            retry_tokens=step_width(config) * config.max_steps + 2,  # "trace", its steps, its ending
        )

    def vocabulary(self, config: ConfigT) -> tuple[str, ...]:
        """Every word of the compact format.

        Raises `ConfigError` where a chosen symbol or action word is a word of the format itself.
        """
        cells = [cell_word(cell) for cell in range(_cells(config))]
        fixed = [
            PADDING,
            hidden_words.UNKNOWN,
            *hidden_words.FIELD_WORDS,
            *DIRECTIONS,
            *self.words(config),
            *cells,
            *self.names(config),
        ]
        chosen = [*config.symbols, *config.action_words]
        for word in chosen:
            if word in fixed or chosen.count(word) > 1:
                raise ConfigError(
                    f"environment.symbols and environment.action_words: {word!r} has another meaning in "
                    "format: compact; allowed are words that it does not use"
                )
        return (*fixed, *chosen)

    def context_length(self, config: ConfigT) -> int:
        """Tokens of the longest sequence that is trained or sampled, with room for ill-formed turns."""
        observation, step = _cells(config) + self.observed(config), step_width(config)
        attempt = observation + hidden_words.SLOTS + 4 + (step + _SPECIAL_TOKENS) * config.max_steps
        reflection = observation + step * config.max_steps + 2 * hidden_words.SLOTS + 8
        return max(attempt, reflection) + _SPARE_WORDS * config.max_steps

    def demonstrate(
        self, stream: random.Random, config: ConfigT, cold_start: ColdStartConfig, boards: Sequence[BoardT]
    ) -> DemonstratedEpisode:
        """One attempt at a random board in a random world and, where it failed, reflections on it; perhaps
        also a retry, an attempt that is told how this one failed."""
        board, world = stream.choice(boards), self.random_world(stream, config)
        prompts = hidden_words.CompactPrompts(config.action_words)
        game = self.game(config, board, world, config.max_steps)
        notes = (
            {}
            if stream.random() < cold_start.blank_notes
            else hidden_words.noisy_slots(stream, world, cold_start)
        )
        player = self.player(stream, board, config.action_words, notes, cold_start.random_intent)

        observation = game.reset()
        attempt = prompts.attempt("", observation, [hidden_words.slots_text(notes)])
        reward = play_out(game, player, config, attempt)
        seen = seen_moves(game.steps)
        if reward > 0:
            return DemonstratedEpisode(attempt, (), seen)

        report = AttemptReport(observation, game.trace(), game.feedback(), reward)
        reflections: list[Demonstration] = []
        for _ in range(cold_start.reflections_per_failure):
            memory = (
                {} if stream.random() < _BLANK_MEMORY else hidden_words.noisy_slots(stream, world, cold_start)
            )
            asked = prompts.reflection("", report, [hidden_words.slots_text(memory)])
            reflections.append(
                [*asked, assistant_message(hidden_words.slots_text(hidden_words.corrected(memory, seen)))]
            )
        if not cold_start.retries or stream.random() >= cold_start.retries:
            return DemonstratedEpisode(attempt, reflections, seen)
        note = reflections[0][-1]["content"]
        retry = self.demonstrate_retry(stream, config, cold_start.random_intent, game, seen, note)
        return DemonstratedEpisode(attempt, reflections, seen, retry)

    def demonstrate_retry(
        self,
        stream: random.Random,
        config: ConfigT,
        random_intent: float,
        game: GridGame[BoardT, StateT],
        seen: hidden_words.Slots,
        reflection: str,
    ) -> Demonstration:
        """Another attempt after the failed one that `game` has just played. Its prompt shows the failed
        attempt and, in some demonstrations, `reflection` too. The player knows what the prompt says, and
        trusts the words that the failed attempt showed (`seen`) more than the reflection."""
        notes = [] if stream.random() < _BLANK_NOTES else [reflection]
        known = {**(hidden_words.read_slots(reflection) if notes else {}), **seen}
        trace, feedback = game.trace(), game.feedback()
        report = AttemptReport(game.reset(), trace, feedback, 0.0)
        shown = hidden_words.CompactPrompts(config.action_words).retry("", report, notes)
        play_out(
            game, self.player(stream, game.board, config.action_words, known, random_intent), config, shown
        )
        return shown


def play_out(
    game: GridGame[BoardT, StateT],
    player: ScriptedPlayer[BoardT, StateT],
    config: ConfigT,
    attempt: list[Message],
) -> float:
    """Play an attempt that was begun to its end and add its turns to the conversation; returns its reward."""
    while True:
        text = player.move() if config.action_mode == "step" else player.plan(config.max_steps)
        attempt.append(assistant_message(text))
        result = game.step(text)
        if result.done:
            return result.reward
        player.learn(game.steps[-1])
        attempt.append(user_message(result.observation))
