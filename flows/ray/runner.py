"""The runner `ray`: stages on workers over the nodes of a cluster, each as a task that Prefect runs.

The plan's walk decides what is computed and when, and Prefect runs a stage again whose worker is lost. Ray
only runs the workers. The walk never has more stages at work than there are workers, so no stage waits inside
Ray.
"""

from collections.abc import Callable

from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin
from flows.ray.cluster import connected, worker_variables
from flows.ray.settings import RayConfig
from flows.stage_tasks import StageTasks, prepare_for_prefect
from storage.filesystem import open_root


def run_with_ray(settings: RayConfig, call: RunnerCall, body: Callable[[Runner], None]) -> None:
    """Compute on the nodes of a cluster; the workers have ended when this returns.

    Raises:
        ConfigError: there is no cluster at the address, it lacks the resources, or a node is not fit.
        NoWorkerLeft: no node is left that can compute.
        OrchestratorError: Prefect's API cannot be started, or cannot be reached at first.
    """
    folder = open_root(call.worker.store_uri).scratch / "runs" / call.worker.run
    folder.mkdir(parents=True, exist_ok=True)
    with connected(settings.address, worker_variables(call.worker.threads)):
        prepare_for_prefect()
        from flows.ray.pool import RayPool  # here, since it imports Ray and Prefect

        with (
            RayPool(call, settings, folder) as pool,
            StageTasks(call, pool, settings.stages, folder / "prefect.log") as tasks,
        ):
            body(tasks)


def _lacks_for_groups(settings: RayConfig) -> str:
    if settings.workers < 2:
        return "it has one worker; set runner.workers: 2"
    if settings.device_stage.gpus is not None:
        return "runner.device_stage.gpus also says how many GPUs a worker has; leave that out"
    return ""


RAY = RunnerPlugin(
    settings=RayConfig,
    run=run_with_ray,
    elsewhere=True,
    finds_nodes=True,
    lacks_for_groups=_lacks_for_groups,
)
