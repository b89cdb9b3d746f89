"""One attempt at a board: its record, the texts about it, its end, and the conversation."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from erl_pipeline.config.prompts import render
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, BoardT, Direction, StateT
from erl_pipeline.environments.grid_games.hidden_words import SymbolsT, World
from erl_pipeline.environments.interface import Observation, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message

PADDING = "."
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_CODE = re.compile(r"```(?:[a-z]+\n)?(.*?)```|`([^`]+)`", re.DOTALL)


@dataclass(frozen=True)
class Action:
    """An action that the policy's text asked for. `intent` is the direction it named as its aim, if any."""

    word: str
    intent: Direction | None = None


@dataclass(frozen=True)
class Step(Generic[StateT]):
    """One move: the action (None when the text held none), what came of it, and the states around it.

    `outcome` is what the board says of the move, such as the direction that the player really moved in, or
    `bad` (no valid action; nothing moved).
    """

    action: Action | None
    outcome: str
    before: StateT
    state: StateT

    @property
    def without_effect(self) -> bool:
        """Whether a valid action moved nothing."""
        return self.action is not None and self.state == self.before


class Rendering(ABC, Generic[BoardT, SymbolsT, StateT]):
    """All texts about the attempts at one task, and the reading of the policy's text.

    `max_steps` are the task's, in compact form the run's. `instructions` is a template of the action words.
    """

    def __init__(
        self,
        board: BoardT,
        world: World[SymbolsT],
        max_steps: int,
        action_mode: Literal["step", "plan"] = "step",
        instructions: str = "",
    ) -> None:
        self._board = board
        self._world = world
        self._max_steps = max_steps
        self._action_mode = action_mode
        self._words = sorted(world.actions)
        self._instructions = instructions

    @property
    def instructions(self) -> str:
        return render(self._instructions, {"actions": self._words})

    @abstractmethod
    def first_observation(self) -> str: ...

    def read_actions(self, text: str) -> list[Action]:
        """The words in the last square brackets or, where none hold actions, in the last code; empty when one
        of them is no action."""
        bracketed = [self._actions(inside) for inside in _BRACKETS.findall(text)]
        if any(bracketed):
            return bracketed[-1]
        code = ["".join(groups) for groups in _CODE.findall(text)]
        return self._actions(code[-1]) if code else []

    def _actions(self, inside: str) -> list[Action]:
        said = [bare.lower() for word in re.split(r"[\s,;]+", inside) if (bare := word.strip("`\"'."))]
        return [Action(word) for word in said] if self._world.actions.keys() >= set(said) else []

    @abstractmethod
    def observation(self, steps: Sequence[Step[StateT]]) -> str: ...

    @abstractmethod
    def trace(self, steps: Sequence[Step[StateT]]) -> str: ...

    @abstractmethod
    def feedback(self, steps: Sequence[Step[StateT]], ending: str) -> str: ...

    @property
    def _realm(self) -> list[str]:
        """Said once, before the board, since whatever is learned of the action words holds in this realm."""
        return [f"Realm: {self._world.realm}"] if self._world.realm else []

    def _grid(self, state: StateT) -> str:
        """The board row by row."""
        cells = [
            self._world.symbols.of_cell(self._board, state, cell) for cell in range(len(self._board.letters))
        ]
        width = self._board.width
        return "\n".join(" ".join(cells[first : first + width]) for first in range(0, len(cells), width))


class ProseRendering(Rendering[BoardT, SymbolsT, StateT]):
    """Sentences for language models. Rules and meanings of symbols are not told before an attempt."""

    effects: Mapping[str, str]
    """What the trace says of outcomes."""

    def first_observation(self) -> str:
        return "\n".join([*self._realm, self._now(self._board.start, 0)])

    def observation(self, steps: Sequence[Step[StateT]]) -> str:
        last, lines = steps[-1], []
        if last.outcome == "bad":
            allowed = ", ".join(self._words)
            lines.append(
                f"Your answer held no valid action, so nothing was done. Possible actions: {allowed}."
            )
        elif last.without_effect:
            lines.append("Your last action had no effect.")
        return "\n".join([*lines, self._now(last.state, len(steps))])

    def trace(self, steps: Sequence[Step[StateT]]) -> str:
        blocks = [*self._realm, f"Start:\n{self._grid(self._board.start)}"]
        for number, step in enumerate(steps, start=1):
            said = "no valid action" if step.action is None else f"action {step.action.word}"
            effect = self._effect(step)
            blocks.append(
                f"Step {number}: {said}{f' ({effect})' if effect else ''}\n{self._grid(step.state)}"
            )
        return "\n".join(blocks)

    def _effect(self, step: Step[StateT]) -> str | None:
        return self.effects.get(step.outcome)

    def _now(self, state: StateT, used: int) -> str:
        """The format of an answer comes last, since small models follow what they read last; its words are
        only an example."""
        if self._action_mode == "plan":
            example = " ".join(self._words[:2])
            answer = f"Answer with all actions of your plan in square brackets, such as [{example}]."
        else:
            answer = f"Answer with one action in square brackets, such as [{self._words[0]}]."
        return f"{self._grid(state)}\nSteps left: {self._max_steps - used}\n{answer}"


class CompactRendering(Rendering[BoardT, SymbolsT, StateT]):
    """Words of one token each, in fields of fixed width, for the tiny policy.

    Boards of several sizes are shown in `frame`, the rows and columns of the largest, at its top left, so
    that a place has the same word and position on all of them.

    A turn of the policy is two words: the direction it aims for, and the action word that it believes moves
    there. The aim is a thought of one word; without it the cold start does not learn to plan.
    """

    instructions = ""

    def __init__(self, board: BoardT, world: World[SymbolsT], max_steps: int, frame: tuple[int, int]) -> None:
        super().__init__(board, world, max_steps)
        self._frame = frame

    @abstractmethod
    def places(self, state: StateT) -> list[str]:
        """The words of all that moves."""

    def read_actions(self, text: str) -> list[Action]:
        """The actions of `aim word aim word ...`; empty when the text is anything else."""
        words = text.split()
        aims, actions = words[0::2], words[1::2]
        if len(words) % 2 or not set(aims) <= set(DIRECTIONS) or not set(actions) <= set(self._words):
            return []
        return [Action(word, cast(Direction, aim)) for aim, word in zip(aims, actions, strict=True)]

    def observation(self, steps: Sequence[Step[StateT]]) -> str:
        """What the last step did, and where everything that moves is."""
        return " ".join([steps[-1].outcome, *self.places(steps[-1].state)])

    def trace(self, steps: Sequence[Step[StateT]]) -> str:
        """`aim action outcome places` for each step, padded to the width of a whole attempt."""
        words: list[str] = []
        for step in steps:
            action = Action(PADDING) if step.action is None else step.action
            words += [action.intent or PADDING, action.word, step.outcome, *self.places(step.state)]
        width = (3 + len(self.places(self._board.start))) * self._max_steps
        return " ".join(words + [PADDING] * (width - len(words)))


def cell_word(cell: int) -> str:
    """The word of a place in the compact form."""
    return f"c{cell}"


@dataclass(frozen=True)
class TurnResult(Generic[StateT]):
    """What one turn led to, and the moves in it.

    `valid` is False where the text held no action that could be done.
    """

    observation: str
    reward: float
    done: bool
    valid: bool
    steps: Sequence[Step[StateT]]


class GridGame(ABC, Generic[BoardT, StateT]):
    """State of one attempt. An answer without a valid action moves nothing and costs a step."""

    success: str
    """The ending that has reward 1."""

    def __init__(
        self,
        board: BoardT,
        world: World[Any],
        max_steps: int,
        rendering: Rendering[BoardT, Any, StateT],
        action_mode: Literal["step", "plan"] = "step",
    ) -> None:
        self.board = board
        self._world = world
        self._max_steps = max_steps
        self._rendering = rendering
        self._action_mode = action_mode
        self._steps: list[Step[StateT]] = []
        self._ending: str | None = None

    @property
    def instructions(self) -> str:
        return self._rendering.instructions

    @property
    def steps(self) -> Sequence[Step[StateT]]:
        return self._steps

    @property
    def state(self) -> StateT:
        """What moves, as it is now."""
        return self._steps[-1].state if self._steps else self.board.start

    def reset(self) -> str:
        self._steps = []
        self._ending = None
        return self._rendering.first_observation()

    def step(self, text: str) -> TurnResult[StateT]:
        """One turn: an action in mode `step`, the whole plan in mode `plan`."""
        if self._ending is not None:
            raise RuntimeError("the attempt is over; reset() begins another")
        actions = self._rendering.read_actions(text)
        if self._action_mode == "step" and len(actions) > 1:
            actions = []
        before = len(self._steps)
        tried: Sequence[Action | None] = actions or [None]
        for action in tried:
            self._steps.append(self._move(action))
            self._ending = self._ending_of(self._steps[-1])
            if self._ending is None and len(self._steps) == self._max_steps:
                self._ending = "steps_used"
            if self._ending is not None:
                break
        if self._action_mode == "plan" and self._ending is None:
            self._ending = "plan_ended"
        return TurnResult(
            observation=self._rendering.observation(self._steps),
            reward=1.0 if self._ending == self.success else 0.0,
            done=self._ending is not None,
            valid=bool(actions),
            steps=self._steps[before:],
        )

    def feedback(self) -> str:
        """Outcome and counts of the finished attempt."""
        if self._ending is None:
            raise RuntimeError("the attempt is not over; there is no feedback yet")
        return self._rendering.feedback(self._steps, self._ending)

    def trace(self) -> str:
        return self._rendering.trace(self._steps)

    def metrics(self, result: TurnResult[StateT]) -> dict[str, float]:
        """Numbers about the turn that was just done."""
        return {"invalid_turns": 0.0 if result.valid else 1.0}

    @abstractmethod
    def _ending_of(self, step: Step[StateT]) -> str | None:
        """How the attempt ended with this step by the rules of the game; None where it goes on."""

    def _move(self, action: Action | None) -> Step[StateT]:
        before = self.state
        if action is None:
            return Step(None, "bad", before, before)
        outcome, state = self.board.move(before, self._world.actions[action.word])
        return Step(action, outcome, before, state)


GameT = TypeVar("GameT", bound=GridGame[Any, Any])


def replayed(game: GameT, turns: Sequence[str]) -> GameT:
    """The game after these turns of a policy, or after those that ended the attempt."""
    game.reset()
    for text in turns:
        if game.step(text).done:
            break
    return game


class GridEnvironment:
    """The attempts of one episode. It computes everything immediately and never waits."""

    def __init__(self, game: GridGame[Any, Any]) -> None:
        self._game = game

    @property
    def instructions(self) -> str:
        return self._game.instructions

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """Empty: actions are words."""
        return ()

    async def reset(self) -> Observation:
        return self._game.reset()

    async def step(self, turn: AssistantTurn) -> Transition:
        result = self._game.step(turn.text)
        return Transition(
            messages=[user_message(result.observation)],
            reward=result.reward,
            done=result.done,
            metrics=self._game.metrics(result),
        )

    async def feedback(self) -> str:
        return self._game.feedback()

    def trace(self) -> str:
        return self._game.trace()

    async def close(self) -> None:
        """There is nothing to release."""
