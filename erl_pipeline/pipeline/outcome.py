"""What a stage gives back, and who is told of its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from erl_pipeline.pipeline.context import RunContext

T = TypeVar("T")


@dataclass(frozen=True)
class StageOutcome:
    """A committed artifact and the numbers of its manifest. `seconds` is wall time, small when `reused`."""

    stage: str
    iteration: int | None
    artifact_id: str
    reused: bool
    seconds: float
    counters: Mapping[str, float]
    metrics: Mapping[str, float]


class ProgressListener(Protocol):
    """Is told what the stages do; a progress display, or nothing."""

    def stage_started(self, stage: str, iteration: int | None, total: int | None, unit: str) -> None: ...

    def advance(self, stage: str, amount: int, **numbers: float) -> None: ...

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """The stage at work has waited for `what` this long; `detail` is the newest that is known of it."""
        ...

    def stage_finished(self, outcome: StageOutcome) -> None: ...

    def warn(self, message: str) -> None: ...


class Silent:
    """A listener that shows nothing."""

    def stage_started(self, stage: str, iteration: int | None, total: int | None, unit: str) -> None:
        return

    def advance(self, stage: str, amount: int, **numbers: float) -> None:
        return

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        return

    def stage_finished(self, outcome: StageOutcome) -> None:
        return

    def warn(self, message: str) -> None:
        return


class StageRunner(Protocol):
    """How stage functions are called: directly, or as tasks of an orchestrator."""

    def call(self, stage: str, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome: ...

    def map(
        self, stage: str, function: Callable[..., StageOutcome], context: RunContext, items: Sequence[Any]
    ) -> list[StageOutcome]: ...

    def iteration(self, iteration: int, body: Callable[[], T]) -> T: ...


class DirectRunner:
    """Calls the stage functions in this thread, one after the other."""

    def call(self, stage: str, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome:
        return function(*args)

    def map(
        self, stage: str, function: Callable[..., StageOutcome], context: RunContext, items: Sequence[Any]
    ) -> list[StageOutcome]:
        return [function(context, item) for item in items]

    def iteration(self, iteration: int, body: Callable[[], T]) -> T:
        return body()
