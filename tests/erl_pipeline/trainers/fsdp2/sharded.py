"""Small runs that train in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.erl_pipeline.runs.small_runs import small
from tests.erl_pipeline.trainers.fsdp2.orders import Orders


def sharded(processes: int, sleep: bool = False, **changes: Any) -> Any:
    """A small run in other processes, whose updates take steps, since entropy is rewarded."""
    return small(
        objective={"advantages_per": "group", "entropy_coefficient": 0.1},
        trainer={"type": "fsdp2", "processes": processes, "sleep": sleep},
        resources={"threads": processes},
        **changes,
    )


@dataclass(frozen=True)
class TrainedOnOne:
    """Two iterations of `sharded(1)`, where no commit waits: their store, and what the ranks were told."""

    store: Path
    orders: Orders
