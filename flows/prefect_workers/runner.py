"""The runner `prefect_workers`: stages on the machines of Prefect's workers.

Prefect decides on which machines workers are started. The plan's walk decides what is computed and when;
the flow runs are workers that wait for stages.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin
from flows.prefect_workers.settings import PrefectWorkersConfig
from flows.stage_tasks import StageTasks
from storage.filesystem import open_root


def run_with_prefect_workers(
    settings: PrefectWorkersConfig, call: RunnerCall, body: Callable[[Runner], None]
) -> None:
    """Compute on workers that Prefect starts; they have ended when this returns.

    Raises:
        ConfigError: no Prefect server is named, a work pool cannot be used, workers do not come, or a machine
            is not fit.
        NoWorkerLeft: all workers are lost.
        OrchestratorError: Prefect's API cannot be reached at first.
    """
    # Prefect's client reports usage to its makers unless this is set before the import.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    # Here, since these import Prefect.
    from flows.prefect_workers.flow_runs import FlowRuns, api_url
    from flows.prefect_workers.pool import DialInPool

    flow_runs = FlowRuns(api_url(), settings, call.worker, call.devices)
    flow_runs.prepare()
    folder = open_root(call.worker.store_uri).scratch / "runs" / call.worker.run
    folder.mkdir(parents=True, exist_ok=True)
    with (
        DialInPool(call, settings, flow_runs) as pool,
        StageTasks(call, pool, settings.stages, folder / "prefect.log") as tasks,
    ):
        body(tasks)


PREFECT_WORKERS = RunnerPlugin(settings=PrefectWorkersConfig, run=run_with_prefect_workers, elsewhere=True)
