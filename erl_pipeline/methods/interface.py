"""What a method gives: its settings, the plan of its iteration, its episode protocol, its roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from erl_pipeline.config.base import Settings

if TYPE_CHECKING:
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True)
class Column:
    """A number that people look at: where a run's manifests hold it, and how it is shown.

    Terminal tables, reports, differences of runs and progress bars all show the columns of the run's
    method. `format` is a format specification such as `.3f` or `,d`. `compare` says that differences between
    runs are of interest.
    """

    stage: str
    metric: str
    label: str
    meaning: str
    format: str = ".3f"
    compare: bool = False


class PlanLearning(Protocol):
    """Plans the learning of an iteration from an artifact of kind `rollouts`; without `remember` (as in offline
    training) no memory is kept."""

    def __call__(
        self, planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
    ) -> RunState: ...


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
    episode_settings: Callable[[SettingsT], Settings]
    """The settings that its episodes follow from, for the recipes of stages that play them."""
    open_episode: Callable[[Any, PromptFormat | None], EpisodeProtocol]
    """How an episode goes, given those settings and the environment's own prompts, if it has any."""
    columns: Callable[[SettingsT], Sequence[Column]]
    """What tables and reports show of its runs, in order."""
    plan_beginning: Callable[[Planner, RunState], RunState] = _nothing_more
    """Plans what the method needs once, before the first iteration, such as a second model."""
