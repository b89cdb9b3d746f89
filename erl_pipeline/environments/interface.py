"""The interface of every environment: what a package offers, its tasks, and the state of one attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from erl_pipeline.config.base import PluginSettings, SettingsT
from erl_pipeline.config.plugins import NO_BYTES
from erl_pipeline.environments.dependencies import BuiltFiles, Dependencies
from erl_pipeline.environments.messages import AssistantTurn, Message, ToolSchema
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.environments.splits import Splits
from erl_pipeline.environments.tiny_parts import TinyPlayer
from erl_pipeline.environments.warm_start import WarmStart, WarmStartParts, require_parts

if TYPE_CHECKING:
    from erl_pipeline.environments.gold_answers import GoldAnswers
    from erl_pipeline.environments.pictures import AttemptDrawing

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
        ...

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the policy may call, the same for all attempts; may be empty."""
        ...

    async def reset(self) -> Observation:
        """Begin an attempt; returns the first observation."""
        ...

    async def step(self, turn: AssistantTurn) -> Transition:
        """Do what one turn of the policy says. Any text is allowed; a bad one is no error."""
        ...

    async def feedback(self) -> str:
        """What can be said of the finished attempt, such as outcome and counts.

        It must be true, and must not give the answer away: reflections are written from it, and the policy is
        trained on them.
        """
        ...

    def trace(self) -> str:
        """The turns of the attempt so far, for a reflection prompt."""
        ...

    async def close(self) -> None:
        """Release what the environment holds. Called once, after the last attempt or a failure."""
        ...


def _no_prompts(settings: Any) -> PromptFormat | None:
    return None


def _for_any_template(settings: Any, knows_tools: bool) -> Any:
    return settings


@dataclass(frozen=True)
class EpisodeTraits(Generic[SettingsT]):
    """How episodes of an environment go; all of it is optional."""

    timing: Timing = "instant"
    """`instant`: no method ever waits, so that the episodes of a batch can go in step, and rollouts can be
    repeated byte for byte. `waiting`: steps take as long as they take; no episode waits for another's."""
    mean_metrics: frozenset[str] = frozenset()
    """Metrics of turns whose mean over an attempt's turns is kept; for all others the sum is kept."""
    for_template: Callable[[SettingsT, bool], SettingsT] = _for_any_template
    """The settings for the episodes of a policy. The second argument: whether its chat template knows tools,
    which means that it shows them and has them called as `erl_pipeline.environments.tool_calls` reads calls.
    Raises `InputError` where the settings ask for tools that the policy cannot be given."""


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
    prompts: Callable[[SettingsT], PromptFormat | None] = _no_prompts
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
        """`Dependencies.packages`."""
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

    def require_warm_start(self, settings: SettingsT) -> WarmStartParts:
        """The demonstrations for a warm start. Raises `ValueError` where these settings give none."""
        return require_parts(self.warm_start, settings)


def part_name(task_id: str) -> str:
    """The name of the part of a mixture that a task is of, by the task's id."""
    return task_id.partition("/")[0]
