"""What a method gives: its settings, the plan of its iteration, its episode protocol, its roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings

if TYPE_CHECKING:
    from erl_pipeline.config.generation import SamplingConfig
    from erl_pipeline.config.memory import RetrievalSettings
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.episodes.limits import RoleLimits
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


@dataclass(frozen=True)
class ChartLine:
    """How reports draw a column: a line in the chart with this title, beside those of the same title.

    `line` is its name there, `unit` that of the vertical axis, `note` is written below the title.
    """

    chart: str
    line: str
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Headline:
    """A figure at the head of a report: the total over all iterations, the newest value, or the first and the
    newest. In `detail` names of counters of the stage in braces stand for their totals."""

    label: str
    over: Literal["total", "newest", "change"]
    detail: str


@dataclass(frozen=True)
class Column:
    """A number that people look at: where a run's manifests hold it, and how it is shown.

    Terminal tables, reports, differences of runs, drawings and progress displays all show the columns of the
    run's method. `label` is short, for terminals; `title` heads the column in reports (default: the label).
    `format` is a format specification such as `.3f` or `,d`. `compare` says that differences between runs are
    of interest, `share` that it is a share in [0, 1], which reports give in percent, `interval` that the
    manifest has the ends of its 95 % interval as `METRIC_low` and `METRIC_high`, and `adds_up` that its sum
    over iterations is of interest. With `only_with` the number means something only where the manifest has
    that other number and it is not 0. Without `in_tables` only reports show it, by its `drawn` line.
    """

    stage: str
    metric: str
    label: str
    meaning: str
    format: str = ".3f"
    compare: bool = False
    title: str = ""
    share: bool = False
    interval: bool = False
    adds_up: bool = False
    only_with: str = ""
    in_tables: bool = True
    drawn: ChartLine | None = None
    headline: Headline | None = None

    @property
    def name(self) -> str:
        """What tells it from all others; trackers and JSON output call the number so."""
        return f"{self.stage}/{self.metric}"

    def text(self, value: float) -> str:
        """A value as tables show it."""
        return format(round(value) if self.format.endswith("d") else value, self.format)


class PlanLearning(Protocol):
    """Plans the learning of an iteration from an artifact of kind `rollouts`; without `remember` (as in
    offline
    training) no memory is kept."""

    def __call__(
        self, planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
    ) -> RunState: ...


class OpenEpisode(Protocol):
    """The protocol of episodes with these settings.

    `prompts` are the environment's own, None where the method's are used. `first_only`: an episode is its
    first attempt. `retrieval`: there is a memory to retrieve from.
    """

    def __call__(
        self, settings: Any, prompts: PromptFormat | None, *, first_only: bool, retrieval: bool
    ) -> EpisodeProtocol: ...


def _no_retrieval(_settings: Any) -> RetrievalSettings | None:
    return None


def _nothing_more(_planner: Planner, state: RunState) -> RunState:
    return state


@dataclass(frozen=True)
class Method(Generic[SettingsT]):
    """A method, as an entry point of group `erl_pipeline.methods` names it."""

    settings: type[SettingsT]
    roles: Callable[[SettingsT], tuple[str, ...]]
    """Roles of the trajectories that it generates and trains."""
    plan_rollouts: Callable[[Planner, RunState, int], str]
    """Plans what generates the data of an iteration; returns the id of an artifact of kind `rollouts`. The
    state names the policies to sample from."""
    plan_learning: PlanLearning
    """Plans what an iteration learns from rollouts, its own or stored ones; returns the state after it."""
    episode_settings: Callable[[SettingsT], PluginSettings]
    """The settings that its episodes follow from, for the recipes of stages that play them."""
    open_episode: OpenEpisode
    """How an episode goes, given those settings."""
    role_limits: Callable[[Any, SamplingConfig], Mapping[str, RoleLimits]]
    """How the turns of each role are sampled, given the settings of episodes."""
    columns: Callable[[SettingsT], Sequence[Column]]
    """What tables and reports show of its runs, in order."""
    retrieval: Callable[[SettingsT], RetrievalSettings | None] = _no_retrieval
    """How its memory is searched; None where it has none."""
    packages: tuple[str, ...] = ()
    """Further packages whose code decides what happens; the method's own always counts."""
    plan_beginning: Callable[[Planner, RunState], RunState] = _nothing_more
    """Plans what the method needs once, before the first iteration, such as a second model."""
