"""What the task of a stage does in the process in which Ray runs it: it has an actor compute the stage.

Ray promises no task the process of an earlier one, so models are kept by actors. The task's process is on the
driver's machine, where Prefect's API can be reached, whatever the node of the actor.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayTaskError

from erl_pipeline.plan.runner import StageJob, WorkerDied
from erl_pipeline.plan.stage import Listener
from flows.ray.actor import LINE
from flows.ray.kept_nodes import DEATHS, Invitation, reason
from flows.ray.survey import uri_for_all
from flows.stage_reports import reports_to
from storage.artifacts.manifest import Manifest

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_LOOK_SECONDS = 0.1


class ActorWork:
    """A stage on an actor.

    Args:
        address: of the actor's node.
        reports: a file of the driver, to which is appended what the stage reports.
        stop: a file that exists when the run was asked to stop.
    """

    stop: threading.Event | None = None

    def __init__(self, job: StageJob, actor: ActorHandle, address: str, reports: Path, stop: Path) -> None:
        uri = uri_for_all(job.worker.store_uri)
        # Put here, Prefect does not look into it.
        self._job = ray.put(replace(job, worker=replace(job.worker, store_uri=uri)))
        self._actor = actor
        self._address = address
        self._reports = reports
        self._stop = stop

    def begin(self) -> Listener:
        """Nothing has to be prepared."""
        return reports_to(self._reports)

    def is_stopped(self) -> bool:
        """Whether the run was asked to stop."""
        return self._stop.exists()

    def compute(self, listener: Listener, stop: threading.Event) -> Manifest:
        """Have the stage computed. Raises what it raises, and WorkerDied if process or node are gone."""
        asked_to_stop = False
        try:
            messages = self._actor.compute.options(num_returns="streaming").remote(self._job)
            while True:
                if ray.wait([messages], timeout=_LOOK_SECONDS)[0]:
                    message = ray.get(next(messages))
                    if isinstance(message, Manifest):
                        return message
                    if isinstance(message, Invitation):
                        text = base64.b64encode(ray.cloudpickle.dumps(message)).decode()
                        reports_to(self._reports).invite(text)
                    else:
                        what, *arguments = message
                        getattr(listener, what)(*arguments)
                elif stop.is_set() and not asked_to_stop:
                    asked_to_stop = True
                    self._actor.stop.options(concurrency_group=LINE).remote()
        except DEATHS as error:
            raise WorkerDied(f"the worker on node {self._address} is gone: {reason(error)}") from error
        except RayTaskError as error:
            raise error.cause from error
