"""Predicting a full disk: before a run begins, and before each of its iterations."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.runs.disk_sizes import (
    ArtifactSize,
    DiskForecast,
    bytes_of,
    estimate_checkpoints,
    forecast_disk,
)
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.store_lookups import StoreLookups, artifact_size
from storage.errors import StoreError
from storage.filesystem import free_bytes, open_root


def expected_sizes(
    config: RunConfig, nodes: Sequence[PlannedStage], lookups: StoreLookups
) -> dict[str, ArtifactSize]:
    """The size of an artifact of each stage: from those of runs that train the same model, else from the
    model's size."""
    stages = {node.stage.name: node for node in nodes}
    known = {name: size for name in stages if (size := lookups.size(name)) is not None}
    return {
        **estimate_checkpoints(config, [node for name, node in stages.items() if name not in known]),
        **known,
    }


class DiskWatch:
    """Compares the disk space that a run needs with what is free. It does nothing for an object store.

    Args:
        plan: the plan to be executed.
    """

    def __init__(self, opened: OpenRun, plan: Plan) -> None:
        self._opened = opened
        self._plan = plan
        self._root = open_root(opened.store.uri)
        recorded = opened.recorded
        self._pending = [node for node in plan.nodes if recorded.get(node.place) != node.artifact_id]
        config = opened.config
        lookups = StoreLookups(opened.store.uri, config.model_dump(mode="json"), entries=opened.entries())
        self._sizes = expected_sizes(config, self._pending, lookups)
        own = {place.stage for place in recorded}
        # A run that goes on does not list the store's artifacts, to start fast.
        if any(node.stage.name not in own for node in self._pending):
            self._pending = [node for node in self._pending if lookups.made_by(node) is None]

    def before_run(self) -> None:
        """Warn if the whole run will not fit, and say what to do.

        Raises StoreError if not even the next iteration fits and `resources.full_disk` is `refuse`.
        """
        free = free_bytes(self._root)
        if free is None or not self._pending:
            return
        self._require_room(min(node.iteration or 0 for node in self._pending))
        config = self._opened.config
        need = forecast_disk(self._pending, self._sizes, config.retention.rules(), config.pipeline.lag)
        if need.peak > free:
            self._opened.listener.warn(
                f"the run to iteration {self._plan.iterations} {lack_of_room(need, free)}"
            )

    def take(self, outcome: StageOutcome) -> None:
        """Expect the next artifact of a stage to be as large as this one."""
        if outcome.reused:
            return
        manifest = self._opened.store.find(outcome.artifact_id, outcome.stage)
        if manifest is not None:
            self._sizes[outcome.stage] = artifact_size(manifest)

    def after_iteration(self, iteration: int) -> None:
        """Look at the next iteration. Raises StoreError if it does not fit and `resources.full_disk` is
        `refuse`."""
        self._require_room(iteration + 1)

    def _require_room(self, iteration: int) -> None:
        free = free_bytes(self._root)
        if free is None:
            return
        nodes = [node for node in self._pending if (node.iteration or 0) == iteration]
        need = bytes_of(nodes, self._sizes)
        if need <= free:
            return
        what = f"iteration {iteration}" if iteration else "what comes before the first iteration"
        said = (
            f"the disk would be full: {what} needs about {_gigabytes(need)}, and {_gigabytes(free)} are free "
            f"at {self._opened.store.uri}. Free some space or set retention.checkpoints and "
            "retention.optimizer, then run the same command again"
        )
        if self._opened.config.resources.full_disk == "refuse":
            raise StoreError(f"{said}; to go on anyway, set resources.full_disk=warn.")
        self._opened.listener.warn(f"{said}.")


def lack_of_room(need: DiskForecast, free: int) -> str:
    """The message about a run that does not fit, without its subject."""
    return (
        f"needs about {_gigabytes(need.peak)} on the disk, and {_gigabytes(free)} are free. Free some space, "
        "or set retention.checkpoints and retention.optimizer, such as 2, to remove files of old iterations"
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB"
