"""The interface of every environment: what a package offers, its tasks, and the state of one attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins.installed import NO_BYTES
from erl_pipeline.environments.experience_format import ExperienceFormat
from erl_pipeline.environments.messages import AssistantTurn, Message, ToolSchema
from erl_pipeline.environments.pictures import FoundDocuments, Picture
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.environments.tiny_parts import TinyParts
from erl_pipeline.environments.warm_start import WarmStart, WarmStartParts, require_parts
from storage.errors import InputError

if TYPE_CHECKING:
    from storage.memory.embedder import Embedder

SettingsT = TypeVar("SettingsT", bound=PluginSettings)

Timing = Literal["instant", "waiting"]

Embedders = Callable[[str], "Embedder"]
"""Gives the model that embeds texts, by its name; an environment loads none by itself."""


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
    `EnvironmentPlugin.mean_metrics` has their name.
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


KeptSplit = Literal["held-out", "test"]
FindSplit = Callable[[Mapping[str, Any]], KeptSplit | None]
"""From a payload to the split that keeps its problem from training; None where none does. It must take any
JSON object, as `EnvironmentPlugin.task_key` must."""


def payload_key(payload: Mapping[str, Any]) -> str:
    """A task as the text of its whole payload."""
    return json.dumps(payload, sort_keys=True)


def _no_test_tasks(settings: Any, seed: int) -> Sequence[Task]:
    return ()


def _no_packages(settings: Any) -> Sequence[str]:
    return ()


def _no_prompts(settings: Any) -> PromptFormat | None:
    return None


def _no_files(settings: Any) -> Mapping[str, Path]:
    return {}


def _for_any_template(settings: Any, knows_tools: bool) -> Any:
    return settings


def _nothing_left_out(settings: Any) -> Sequence[str]:
    return ()


def _no_tiny_parts(settings: Any) -> TinyParts | None:
    return None


def _no_experience(settings: Any) -> ExperienceFormat | None:
    return None


def _quick(settings: Any) -> bool:
    return True


def _no_parts(settings: Any) -> Mapping[str, Part]:
    return {}


@dataclass(frozen=True)
class Part:
    """One of the environments that a mixture consists of: the plug-in, its settings, and its weight among the
    parts."""

    plugin: EnvironmentPlugin[Any]
    settings: PluginSettings
    weight: float = 1.0


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
class EnvironmentPlugin(Generic[SettingsT]):
    """What a package offers as an environment; an entry point of `erl_pipeline.environments` names it.

    The module that holds it imports neither torch nor transformers, and heavy packages of its own only
    within functions: it is imported in every process, also where only a plan is made.
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
    test_tasks: Callable[[SettingsT, int], Sequence[Task]] = _no_test_tasks
    """The tasks of a third split, which `compare` alone reports on: none of them equals a training or a
    held-out task, so that no setting was tuned on them. The number is the run's seed. Empty where these
    settings give no such split."""
    test_needs: str = field(default="", metadata=NO_BYTES)
    """The settings with which `test_tasks` gives some, such as `test_boards: 256`."""
    tasks_from_file: Callable[[SettingsT, int, Path], Sequence[Task]] | None = None
    """The tasks of a file. Raises `InputError` naming the file, the line and what is wrong."""
    prompts: Callable[[SettingsT], PromptFormat | None] = _no_prompts
    """Prompts that go with the environment's own rendering; None: the method's templates, as chat."""
    files: Callable[[SettingsT], Mapping[str, Path]] = _no_files
    """Setting that names a file -> that file. Identity has the file's digest instead of the setting."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what happens, such as a game's rules; its own always counts."""
    used_packages: Callable[[SettingsT], Sequence[str]] = field(default=_no_packages, metadata=NO_BYTES)
    """As `packages`, but for packages that depend on the settings, such as that of the scorer they name."""
    task_key: Callable[[Mapping[str, Any]], str] = payload_key
    """The key of a problem, from a task's payload: tasks with the same key are the same problem, so that
    held-out tasks are never trained on, whatever their ids are. It must take any JSON object, since payloads
    are also read from imported rows."""
    kept_split: Callable[[SettingsT, int], FindSplit] | None = None
    """Arguments: the settings and the run's seed. Gives a function that tells of a payload whether its
    problem is held out or in the test split, by its content alone and however many tasks were asked for.
    None: only the tasks that `held_out_tasks` and `test_tasks` give for a run are kept from training."""
    timing: Timing = "instant"
    """`instant`: no method ever waits, so that the episodes of a batch can go in step, and rollouts can be
    repeated byte for byte. `waiting`: steps take as long as they take; no episode waits for another's."""
    mean_metrics: frozenset[str] = frozenset()
    """Metrics of turns whose mean over an attempt's turns is kept; for all others the sum is kept."""
    twin_key: Callable[[Mapping[str, Any]], str] | None = field(default=None, metadata=NO_BYTES)
    """A text that is equal for payloads which are one problem seen in different ways, such as a board and its
    mirror image; `env show` counts held-out tasks with such a twin in training. None: tasks have no twins."""
    left_out: Callable[[SettingsT], Sequence[str]] = field(default=_nothing_left_out, metadata=NO_BYTES)
    """What of the files in these settings is no task, a sentence for each reason with number and names, for
    people. Raises `InputError` for bad files."""
    tiny: Callable[[SettingsT], TinyParts | None] = _no_tiny_parts
    """What the cold start of a tiny policy needs; None where these settings have no form for one."""
    tiny_needs: str = field(default="", metadata=NO_BYTES)
    """The settings with which `tiny` gives something, such as `format: compact`."""
    tiny_exclude: frozenset[str] = frozenset()
    """Settings that the cold start does not depend on; runs that differ in them share its checkpoint."""
    experience: Callable[[SettingsT], ExperienceFormat | None] = _no_experience
    """How a model that extracts experience from episodes is asked, in the environment's own words; None: the
    method's templates, as chat."""
    tiny_extractor: Callable[[SettingsT], TinyParts | None] = _no_tiny_parts
    """What the cold start of a tiny model that extracts experience needs; its prompts are those of
    `experience`. None where these settings have no form for such a model."""
    difficulty: Callable[[SettingsT, Task], float] | None = None
    """How hard a task is: the larger the number, the harder the task, such as the moves of its shortest
    solution. Only the order of the numbers counts. None where the environment cannot tell."""
    parts: Callable[[SettingsT], Mapping[str, Part]] = _no_parts
    """The environments that a mixture consists of, by name; empty for all other environments. The code of
    each part counts as the mixture's. The ids and types of a part's tasks begin with `NAME/`."""
    tiny_view: Callable[[SettingsT], SettingsT] | None = None
    """The settings that the cold start depends on, where `tiny_exclude` cannot say it."""
    gold_answer: Callable[[SettingsT, Task], str | Sequence[str] | None] | None = field(
        default=None, metadata=NO_BYTES
    )
    """A perfect attempt; `env qualify` checks that it gets reward 1. It is what the policy would say in each
    turn, word for word as `step` reads it (a tool call with its `<tool_call>` around it); a single text is an
    attempt of one turn. The task is one that these settings gave. The function may look into the payload,
    needs no state, and gives the same for the same task. None for a task without a known solution; the field
    itself is None where the environment can solve none. Nothing that it gives ever reaches a policy."""
    wrong_answers: Callable[[SettingsT, Task], Sequence[str]] | None = field(default=None, metadata=NO_BYTES)
    """Replies that resemble the gold answer and are wrong; `env qualify` checks that an attempt which makes
    one of them gets less than reward 1. None where the environment has none to offer."""
    picture: Callable[[SettingsT, Task, Sequence[str]], Picture] | None = field(
        default=None, metadata=NO_BYTES
    )
    """An attempt as a picture for the user interface, from what the policy said in each of its turns. The
    task is a stored one; `KeyError`, `TypeError` or `ValueError` for a payload that is not of this
    environment. None: the task is shown as text."""
    documents: Callable[[SettingsT, Task, str], FoundDocuments | None] | None = field(
        default=None, metadata=NO_BYTES
    )
    """The documents in one message of the environment, such as what a search found, for the user interface;
    None for a message without any. The task is a stored one, as for `picture`. None: messages are shown as
    text."""
    extra: str = field(default="", metadata=NO_BYTES)
    """The extra of its distribution that the environment needs, such as `reasoning-gym` for
    `pip install 'erl-pipeline[reasoning-gym]'`; `env list` says where it is missing. Empty for none."""
    built_files: BuiltFiles | None = None
    """Files that are built once and that episodes are opened with, by `built_files.open` instead of `open`;
    None where there are none. A mixture has some where a part has (`built_files_of`)."""

    for_template: Callable[[SettingsT, bool], SettingsT] = _for_any_template
    """The settings for the episodes of a policy. The second argument: whether its chat template knows tools,
    which means that it shows them and has them called as `erl_pipeline.environments.tool_calls` reads calls.
    Raises `InputError` where the settings ask for tools that the policy cannot be given."""

    warm_start: WarmStart | None = None
    """Demonstrations for the warm start of a pretrained policy; None where no settings have any."""

    quick_to_list: Callable[[SettingsT], bool] = field(default=_quick, metadata=NO_BYTES)
    """Whether the training and held-out tasks are listed in seconds. `config check`, `plan` and the start of
    `train` then list them, so that too few or wrong ones are found before anything is trained."""

    @property
    def is_mixture(self) -> bool:
        """Whether its tasks are those of other environments."""
        return self.parts is not _no_parts

    def part(self, settings: SettingsT, task: Task) -> tuple[Part, Task]:
        """The part of a mixture that a task is of, and the task as that part made it; for any other
        environment, the environment itself and the task.

        Raises `InputError` for a task that is of no part.
        """
        parts = self.parts(settings)
        return part_of(parts, task) if parts else (Part(self, settings), task)

    def built_files_of(self, settings: SettingsT) -> BuiltFiles | None:
        """`built_files`; None also for a mixture of which no part builds files."""
        parts = self.parts(settings).values()
        needed = any(part.plugin.built_files is not None for part in parts) if parts else True
        return self.built_files if needed else None

    def timing_of(self, settings: SettingsT) -> Timing:
        """`timing`; `waiting` also for a mixture of which a part waits."""
        parts = self.parts(settings).values()
        return "waiting" if any(part.plugin.timing == "waiting" for part in parts) else self.timing

    def shown_to_tiny(self, settings: SettingsT) -> SettingsT:
        """The settings that the cold start depends on; all others at their defaults."""
        if self.tiny_view is not None:
            return self.tiny_view(settings)
        fields = type(settings).model_fields
        return settings.model_copy(update={name: fields[name].get_default() for name in self.tiny_exclude})

    def require_tiny(self, settings: SettingsT) -> TinyParts:
        """The parts for the cold start. Raises `ValueError` where these settings give none."""
        parts = self.tiny(settings)
        if parts is None:
            needed = f"; policy.type: tiny needs {self.tiny_needs}" if self.tiny_needs else ""
            raise ValueError(f"environment: these settings have no form for a policy of type: tiny{needed}")
        return parts

    def require_warm_start(self, settings: SettingsT) -> WarmStartParts:
        """The demonstrations for a warm start. Raises `ValueError` where these settings give none."""
        return require_parts(self.warm_start, settings)


def part_name(task_id: str) -> str:
    """The name of the part of a mixture that a task is of, by the task's id."""
    return task_id.partition("/")[0]


def part_of(parts: Mapping[str, Part], task: Task) -> tuple[Part, Task]:
    """The part that a task of a mixture is of, and the task as that part made it.

    Raises `InputError` for a task that is of none.
    """
    name = part_name(task.task_id)
    if name not in parts:
        raise InputError(
            f"task {task.task_id} belongs to no part of the mixture, which has {', '.join(parts)}"
        )
    mark = f"{name}/"
    own = replace(task, task_id=task.task_id.removeprefix(mark), task_type=task.task_type.removeprefix(mark))
    return parts[name], own
