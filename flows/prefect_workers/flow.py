"""The flow whose flow runs are the workers of a run: it dials in to the run's driver and computes stages.

Prefect's workers find it by the name of this module, so the project must be installed on their machines.
"""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.prefect_workers.attendance import attend
from flows.prefect_workers.reception import Invitation


@flow(name="stage-worker")
def stage_worker(run: str, address: str, key: str, ticket: str) -> State[None]:
    """Compute stages of a run until its driver says that there are no more; ends with the driver.

    Args:
        run: name of the run.
        address: where the driver listens.
        key: the key of this run's connections, valid while the driver lives.
        ticket: which of the driver's workers this is.
    """
    attended = attend(Invitation(address, key, ticket))
    message = f"Run {run}: {attended.message}"
    return Completed(message=message) if attended.good else Failed(message=message)
