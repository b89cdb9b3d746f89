"""The interface of every environment: what a package offers, its tasks, and the state of one attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from erl_pipeline.config.base import PluginSettings, SettingsT
from erl_pipeline.config.plugins import NO_BYTES
from erl_pipeline.environments.demonstrations import TinyPlayer, WarmStart, WarmStartParts
from erl_pipeline.environments.messages import AssistantTurn, Message, ToolSchema
from erl_pipeline.environments.pictures import FoundDocuments, Picture
from erl_pipeline.environments.prompt_format import PromptFormat

if TYPE_CHECKING:
    from storage.memory.entries import Embedder

Timing = Literal["instant", "waiting"]


@dataclass(frozen=True)
class Task:
    """One problem instance.

    `task_type` is the kind that memory is filtered by, such as `frozen_lake-4x4`. `payload` is JSON and
    holds all that is needed to open the environment; it reaches a prompt only through the environment.
    """

    task_id: str
    task_type: str
    environment: str
    payload: Mapping[str, Any]


Observation = str
"""What an attempt begins with, as text: prompts are made of it, and memory is searched by it."""


@dataclass(frozen=True)
class Transition:
    """What one turn led to.

    `messages` are what the policy reads before its next turn: `user` messages, or `tool` messages that
    answer its calls. The reward of the attempt is the sum over its turns. `metrics` are numbers about the
    turn, for people, by name. They are summed over an attempt's turns too, or averaged where
    `EpisodeTraits.mean_metrics` has their name.
    """

    messages: Sequence[Message]
    reward: float
    done: bool
    metrics: Mapping[str, float] = field(default_factory=dict)


class ScorerFailed(Exception):
    """Raised by `step` where an attempt is over but cannot be scored, since the code that scores failed.

    The row of the attempt has `finish_reason: scorer_error` and is left out of everything that is learned or
    counted. Where more than a hundredth of an iteration's episodes end in this way, the run stops.
    """


class Environment(Protocol):
    """The state of one attempt; `reset` begins another one at the same task.

    An environment that waits for something (a server, a container, a search) awaits it, or does it in a
    thread (`erl_pipeline.environments.threads.in_threads`), so that no other episode is held up. A method
    that raises, or does not return in time (`rollouts.step_seconds`), ends the attempt, which was then not
    scored (`rollouts.failed`).
    """

    @property
    def instructions(self) -> str:
        """What the policy is told before the first observation, the same for all attempts; may be empty."""

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the policy may call, the same for all attempts; may be empty."""

    async def reset(self) -> Observation:
        """Begin an attempt; returns the first observation."""

    async def step(self, turn: AssistantTurn) -> Transition:
        """Do what one turn of the policy says. Any text is allowed; a bad one is no error."""

    async def feedback(self) -> str:
        """What can be said of the finished attempt, such as outcome and counts.

        It must be true, and must not give the answer away: reflections are written from it, and the policy is
        trained on them.
        """

    def trace(self) -> str:
        """The turns of the attempt so far, for a reflection prompt."""

    async def close(self) -> None:
        """Release what the environment holds. Called once, after the last attempt or a failure."""


@dataclass(frozen=True)
class AgentEndpoint:
    """Where an agent finds the policy during one attempt: an address that speaks OpenAI's API, its key, and
    the name of the model there. `seed` is the agent's own, for what it draws; `seconds` are what it has."""

    base_url: str
    api_key: str
    model: str
    seed: int
    seconds: float


@dataclass(frozen=True)
class AgentResult:
    """What came of an agent's attempt; `feedback` and `metrics` as in `Environment` and `Transition`."""

    reward: float
    feedback: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentLimits:
    """Most seconds of an attempt, most calls of the policy in it, and most tokens that the policy says."""

    seconds: float
    calls: int
    tokens: int


class AgentEnvironment(Environment, Protocol):
    """An environment whose attempts are played by an agent: a program that asks the policy by itself, as
    often and with whatever messages it likes.

    `run` takes the place of `step`, `feedback` and `trace`, which are never called; `reset` gives the task as
    text."""

    @property
    def limits(self) -> AgentLimits:
        """The limits of each attempt."""

    async def run(self, endpoint: AgentEndpoint) -> AgentResult:
        """Let the agent play the task once. It is cancelled at the limit of time, and then has to end what it
        has started. The message of the `CancelledError` that it then raises is shown to people.
        Raises `ScorerFailed` where the result cannot be scored."""


Split = Literal["training", "held_out", "test"]
KeptSplit = Literal["held-out", "test"]
FindSplit = Callable[[Mapping[str, Any]], KeptSplit | None]
"""From a payload to the split that keeps its problem from training; None where none does. It must take any
JSON object, as `Splits.task_key` must."""


def payload_key(payload: Mapping[str, Any]) -> str:
    """A task as the text of its whole payload."""
    return json.dumps(payload, sort_keys=True)


@dataclass(frozen=True)
class Splits(Generic[SettingsT]):
    """Tasks beside the training and held-out ones, and what keeps the splits apart; all of it is optional."""

    test_tasks: Callable[[SettingsT, int], Sequence[Task]] = lambda settings, seed: ()
    """The tasks of a third split, which `compare` alone reports on: none of them equals a training or a
    held-out task, so that no setting was tuned on them. The number is the run's seed. Empty where these
    settings give no such split."""
    test_needs: str = field(default="", metadata=NO_BYTES)
    """The settings with which `test_tasks` gives some, such as `test_boards: 256`."""
    task_key: Callable[[Mapping[str, Any]], str] = payload_key
    """The key of a problem, from a task's payload: tasks with the same key are the same problem, so that
    held-out tasks are never trained on, whatever their ids are. It must take any JSON object, since payloads
    are also read from imported rows."""
    kept_split: Callable[[SettingsT, int], FindSplit] | None = None
    """Arguments: the settings and the run's seed. Gives a function that tells of a payload whether its
    problem is held out or in the test split, by its content alone and however many tasks were asked for.
    None: only the tasks that `held_out_tasks` and `test_tasks` give for a run are kept from training."""
    twin_key: Callable[[Mapping[str, Any]], str] | None = field(default=None, metadata=NO_BYTES)
    """A text that is equal for payloads which are one problem seen in different ways, such as a board and its
    mirror image; `env show` counts held-out tasks with such a twin in training. None: tasks have no twins."""
    from_file: Callable[[SettingsT, int, Path], Sequence[Task]] | None = None
    """The tasks of a file; the number is the run's seed. Raises `InputError` naming the file, the line and
    what is wrong."""
    left_out: Callable[[SettingsT], Sequence[str]] = field(default=lambda settings: (), metadata=NO_BYTES)
    """What of the files in these settings is no task, a sentence for each reason with number and names, for
    people. Raises `InputError` for bad files."""
    difficulty: Callable[[SettingsT, Task], float] | None = None
    """How hard a task is: the larger the number, the harder the task, such as the moves of its shortest
    solution. Only the order of the numbers counts. None where the environment cannot tell."""
    quick_to_list: Callable[[SettingsT], bool] = field(default=lambda settings: True, metadata=NO_BYTES)
    """Whether the training and held-out tasks are listed in seconds. `config check`, `plan` and the start of
    `train` then list them, so that too few or wrong ones are found before anything is trained."""


Embedders = Callable[[str], "Embedder"]
"""Gives the model that embeds texts, by its name; an environment loads none by itself."""


@dataclass(frozen=True)
class BuiltFiles:
    """Files such as a search index: built once, kept as an artifact, and shared by all runs with the same
    settings for them, whatever their tasks and seeds are."""

    settings: Callable[[Any], PluginSettings]
    """The environment's settings that the files depend on, all others at their defaults."""
    build: Callable[[Any, Path, Embedders], Mapping[str, int]]
    """Writes the files into an empty folder; returns counts of what is in them. Its first argument is the
    settings above, with the paths of the files that they name. Raises `InputError` for bad files."""
    open: Callable[[Any, Task, Path, Embedders], Environment]
    """As `EnvironmentPlugin.open`, with the folder that was built. It may change nothing in the folder."""


@dataclass(frozen=True)
class Dependencies(Generic[SettingsT]):
    """Files and packages that decide what happens; all of it is optional."""

    files: Callable[[SettingsT], Mapping[str, Path]] = lambda settings: {}
    """Setting that names a file -> that file. Identity has the file's digest instead of the setting."""
    built_files: BuiltFiles | None = None
    """Files that are built once and that episodes are opened with, by `built_files.open` instead of
    `EnvironmentPlugin.open`; None where there are none."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what happens, such as a game's rules; its own always counts."""
    used_packages: Callable[[SettingsT], Sequence[str]] = field(
        default=lambda settings: (), metadata=NO_BYTES
    )
    """As `packages`, but for packages that depend on the settings, such as that of the scorer they name."""
    extra: str = field(default="", metadata=NO_BYTES)
    """The extra of its distribution that the environment needs, such as `reasoning-gym` for
    `pip install 'erl-pipeline[reasoning-gym]'`; `env list` says where it is missing. Empty for none."""


@dataclass(frozen=True)
class GoldAnswers(Generic[SettingsT]):
    """Right and wrong replies to a task. Nothing that they give ever reaches a policy."""

    right: Callable[[SettingsT, Task], str | Sequence[str] | None]
    """A perfect attempt; `env qualify` checks that it gets reward 1. It is what the policy would say in each
    turn, word for word as `step` reads it (a tool call with its `<tool_call>` around it); a single text is an
    attempt of one turn. The task is one that these settings gave. The function may look into the payload,
    needs no state, and gives the same for the same task. None for a task without a known solution."""
    wrong: Callable[[SettingsT, Task], Sequence[str]] | None = None
    """Replies that resemble the right one and are wrong; `env qualify` checks that an attempt which makes
    one of them gets less than reward 1. None where the environment has none to offer."""


@dataclass(frozen=True)
class EpisodeTraits(Generic[SettingsT]):
    """How episodes of an environment go; all of it is optional."""

    timing: Timing = "instant"
    """`instant`: no method ever waits, so that the episodes of a batch can go in step, and rollouts can be
    repeated byte for byte. `waiting`: steps take as long as they take; no episode waits for another's."""
    mean_metrics: frozenset[str] = frozenset()
    """Metrics of turns whose mean over an attempt's turns is kept; for all others the sum is kept."""
    played_by: Literal["policy", "agent"] = "policy"
    """`agent`: `EnvironmentPlugin.open` gives an `AgentEnvironment`; `timing` must be `waiting`."""
    for_template: Callable[[SettingsT, bool], SettingsT] = lambda settings, knows_tools: settings
    """The settings for the episodes of a policy. The second argument: whether its chat template knows tools,
    which means that it shows them and has them called as `erl_pipeline.environments.messages` reads calls.
    Raises `InputError` where the settings ask for tools that the policy cannot be given."""


@dataclass(frozen=True)
class AttemptDrawing(Generic[SettingsT]):
    """How the user interface shows an environment's attempts. Tasks are stored ones; `KeyError`, `TypeError`
    or `ValueError` for a payload that is not of this environment."""

    picture: Callable[[SettingsT, Task, Sequence[str]], Picture] | None = None
    """An attempt as a picture, from what the policy said in each of its turns. None: the task is shown as
    text."""
    documents: Callable[[SettingsT, Task, str], FoundDocuments | None] | None = None
    """The documents in one message of the environment, such as what a search found; None for a message
    without any. None instead of a function: messages are shown as text."""


@dataclass(frozen=True)
class MixturePart:
    """One of the environments that a mixture consists of: the plug-in, its settings, and its weight among the
    parts."""

    plugin: EnvironmentPlugin[Any]
    settings: PluginSettings
    weight: float = 1.0


@dataclass(frozen=True)
class EnvironmentPlugin(Generic[SettingsT]):
    """What a package offers as an environment; an entry point of `erl_pipeline.environments` names it.

    The first four fields are needed. The module that holds it imports neither torch nor transformers, and
    heavy packages of its own only within functions: it is imported in every process, also where only a plan
    is made.
    """

    settings: type[SettingsT]
    """Has a field `type: Literal["..."]`, by which a configuration chooses the environment."""
    training_tasks: Callable[[SettingsT, int], Sequence[Task]]
    """All training tasks; the number is the run's seed. Raises `InputError` for bad files."""
    held_out_tasks: Callable[[SettingsT, int, int], Sequence[Task]]
    """As many tasks as the last number says, none of which equals a training task; a smaller number gives
    the beginning of the same list."""
    open: Callable[[SettingsT, Task], Environment]
    """A fresh environment for the attempts of one episode."""
    prompts: Callable[[SettingsT], PromptFormat | None] = lambda settings: None
    """Prompts that go with the environment's own rendering; None: the method's templates, as chat."""
    splits: Splits[SettingsT] = field(default_factory=Splits)
    dependencies: Dependencies[SettingsT] = field(default_factory=Dependencies)
    episodes: EpisodeTraits[SettingsT] = field(default_factory=EpisodeTraits)
    tiny: TinyPlayer[SettingsT] = field(default_factory=TinyPlayer)
    warm_start: WarmStart | None = None
    """Demonstrations for the warm start of a pretrained policy; None where no settings have any."""
    drawing: AttemptDrawing[SettingsT] | None = field(default=None, metadata=NO_BYTES)
    """How the user interface shows attempts; None: as text. No byte of a run depends on it."""
    gold_answers: GoldAnswers[SettingsT] | None = field(default=None, metadata=NO_BYTES)
    """Known solutions, for `env qualify`; None where the environment can solve no task. No byte of a run
    depends on them."""

    @property
    def packages(self) -> tuple[str, ...]:
        return self.dependencies.packages

    def parts(self, settings: SettingsT) -> Mapping[str, MixturePart]:
        """The environments that a mixture consists of, by name; empty for all other environments. The code
        of each part counts as the mixture's. The ids and types of a part's tasks begin with `NAME/`."""
        return {}

    def part(self, settings: SettingsT, task: Task) -> tuple[MixturePart, Task]:
        """The part of a mixture that a task is of, and the task as that part made it; for any other
        environment, the environment itself and the task.

        Raises `InputError` for a task that is of no part.
        """
        return MixturePart(self, settings), task

    def built_files_of(self, settings: SettingsT) -> BuiltFiles | None:
        """`Dependencies.built_files`; None also for a mixture of which no part builds files."""
        return self.dependencies.built_files

    def timing_of(self, settings: SettingsT) -> Timing:
        """`EpisodeTraits.timing`; `waiting` also for a mixture of which a part waits."""
        return self.episodes.timing

    def has_agents(self, settings: SettingsT) -> bool:
        """Whether agents play it (`EpisodeTraits.played_by`), or a part of a mixture."""
        parts = (part.plugin for part in self.parts(settings).values())
        return any(each.episodes.played_by == "agent" for each in (self, *parts))

    def require_warm_start(self, settings: SettingsT) -> WarmStartParts:
        """The demonstrations for a warm start. Raises `ValueError` where these settings give none."""
        parts = None if self.warm_start is None else self.warm_start.parts(settings)
        if parts is None:
            reason = (
                "has no demonstrations"
                if self.warm_start is None
                else f"has them only with {self.warm_start.needs}"
            )
            raise ValueError(
                f"policy.warm_start.type: demonstrations; environment {settings.type} {reason}; allowed with "
                "all environments is type: messages, a file of conversations"
            )
        return parts


def part_name(task_id: str) -> str:
    """The name of the part of a mixture that a task is of, by the task's id."""
    return task_id.partition("/")[0]
