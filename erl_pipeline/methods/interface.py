"""What a method gives: its settings, the plan of its iteration, its episode protocol, its roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins import NO_BYTES

if TYPE_CHECKING:
    from erl_pipeline.config.distillation import DistilledRoles, Form
    from erl_pipeline.config.experience import Lessons
    from erl_pipeline.config.memory import RetrievalSettings
    from erl_pipeline.config.prompts import JudgeFeedback
    from erl_pipeline.config.rollouts import SamplingConfig
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.config.self_distillation import SelfDistilledRoles
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol, RoleLimits
    from erl_pipeline.plan.column import Column
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


class PlanLearning(Protocol):
    """Plans the learning of an iteration from an artifact of kind `rollouts`; without `remember`, as
    in offline training, no memory is kept."""

    def __call__(
        self, planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
    ) -> RunState: ...


class PlanEvaluation(Protocol):
    """Plans what a method measures besides the evaluation of first attempts, where it is due; `last` says
    that the run ends with this iteration."""

    def __call__(self, planner: Planner, state: RunState, iteration: int, *, last: bool) -> None: ...


class OpenEpisode(Protocol):
    """Makes the protocol of episodes with these settings.

    `prompts` are the environment's own, None where the method's are used. `first_only`: an episode is its
    first attempt. `retrieval`: there is a memory to retrieve from.
    """

    def __call__(
        self, settings: Any, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
    ) -> EpisodeProtocol: ...


@dataclass(frozen=True)
class ReflectionSpec:
    """How a method reflects, for evaluations that pass in notes themselves.

    `prompts` are for environments that have none of their own. The other fields are the roles that a first
    attempt, a reflection and the attempt after it have in `Method.role_limits`.
    """

    prompts: PromptFormat
    attempt: str
    reflection: str
    retry: str


def _no_evaluation(planner: Planner, state: RunState, iteration: int, *, last: bool) -> None:
    return None


@dataclass(frozen=True)
class Method(Generic[SettingsT]):
    """A method, as an entry point of group `erl_pipeline.methods` names it."""

    settings: type[SettingsT]
    roles: Callable[[SettingsT], tuple[str, ...]]
    """Roles of the trajectories that it generates and trains."""
    plan_rollouts: Callable[[Planner, RunState, int], str] = field(metadata=NO_BYTES)
    """Plans what generates the data of an iteration; returns the id of an artifact of kind `rollouts`. The
    state names the policies to sample from."""
    plan_learning: PlanLearning = field(metadata=NO_BYTES)
    """Plans what an iteration learns from rollouts, its own or stored ones; returns the state after it."""
    episode_settings: Callable[[SettingsT], PluginSettings]
    """The settings that its episodes depend on, for the recipes of stages that play them."""
    open_episode: OpenEpisode
    """How an episode is played, given those settings."""
    role_limits: Callable[[Any, SamplingConfig], Mapping[str, RoleLimits]]
    """How the turns of each role are sampled, given the settings of episodes."""
    columns: Callable[[SettingsT], Sequence[Column]] = field(metadata=NO_BYTES)
    """What tables and reports show of its runs, in order."""
    first_attempt_settings: Callable[[Any], PluginSettings] = lambda settings: settings
    """Those settings with the defaults in place of all that first attempts without memory do not depend on,
    so that evaluations are computed again only where they can change."""
    retrieval: Callable[[SettingsT], RetrievalSettings | None] = lambda _settings: None
    """How its memory is searched; None where it has none."""
    reflecting: Callable[[Any], ReflectionSpec | None] = lambda _settings: None
    """How it reflects, given the settings of episodes; None where it has no prompts for that."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what happens in its stages; the method's own package always
    counts."""
    chat_server: Callable[[Any], JudgeFeedback | None] = lambda _settings: None
    """The model on an external server that its episodes ask, given their settings; None where they ask
    none."""
    shows_failed_attempts: Callable[[SettingsT], bool] = lambda _settings: False
    """Whether prompts of attempts show how another one failed (`PromptFormat.retry`)."""
    plan_beginning: Callable[[Planner, RunState], RunState] = field(
        default=lambda _planner, state: state, metadata=NO_BYTES
    )
    """Plans what the method needs once, before the first iteration, such as a second model."""
    require_possible: Callable[[RunConfig], None] = field(default=lambda _config: None, metadata=NO_BYTES)
    """Raises ConfigError or ValueError, which names them, for settings of a run that exclude each other with
    the method."""
    takes_experience: bool = field(default=False, metadata=NO_BYTES)
    """Whether its episodes can see the lessons of an `experience` beside the method: they begin with an
    attempt of role `first_attempt`, and search a memory."""
    own_experience: Callable[[SettingsT], Lessons | None] = field(
        default=lambda _settings: None, metadata=NO_BYTES
    )
    """The extractor of a method that has one by its own settings."""
    replayed: str | None = field(default=None, metadata=NO_BYTES)
    """Role of the attempts that `replay` stores and trains again, in the group of fresh ones at their task;
    None for a method that cannot be combined with it."""
    distilled: DistilledRoles | None = field(default=None, metadata=NO_BYTES)
    """Roles of the trajectories for `distillation`; None for a method that cannot be combined with it."""
    distils_by_itself: Form = field(default="off", metadata=NO_BYTES)
    """The form of distillation where a configuration names none."""
    self_distilled: SelfDistilledRoles | None = field(default=None, metadata=NO_BYTES)
    """Roles of the trajectories for `self_distillation`; None for a method that cannot be combined with
    it."""
    plan_evaluation: PlanEvaluation = field(default=_no_evaluation, metadata=NO_BYTES)
    """Plans evaluations of its own."""
    trains: bool = field(default=True, metadata=NO_BYTES)
    """Whether it changes weights. One that does not learns nothing from stored rollouts."""
