"""What a run is doing now, as far as its ledger and its lock show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from command_line.ui.stored import RunStatus, Stored, StoredRun
from erl_pipeline.config.base import NotInstalledSettings
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.planning import plan_for

_NEWEST = 6


@dataclass(frozen=True)
class LiveState:
    """The state of a run at one moment.

    `next_stage` is the first planned stage that has no artifact: the stage at work, if a process works on the
    run. `rate` is that of the newest shard, in generated tokens per second.
    """

    status: RunStatus
    holder: str
    next_stage: PlannedStage | None
    rate: float | None
    newest: Sequence[StageRecord]


def live_state(stored: Stored, run: StoredRun) -> LiveState:
    """What a run does now."""
    holder = stored.holder(run.name)
    shards = [record for record in reversed(run.history) if record.kind == "trajectories"]
    rate = None
    if shards and shards[0].seconds:
        rate = (shards[0].number("generated_tokens") or 0.0) / shards[0].seconds
    newest = sorted(run.history, key=lambda record: record.manifest.finished_at, reverse=True)[:_NEWEST]
    return LiveState(
        stored.status(run),
        "" if holder is None else f"process {holder.pid} on {holder.host}",
        stored.kept(
            run.name,
            "next stage",
            lambda: _next_stage(stored, run),
        ),
        rate,
        newest,
    )


def _next_stage(stored: Stored, run: StoredRun) -> PlannedStage | None:
    return next((node for node in planned_stages(stored, run) if node.place not in run.places), None)


def planned_stages(stored: Stored, run: StoredRun) -> Sequence[PlannedStage]:
    """The stages of a run's plan, in order; empty where its environment, which a plan needs, cannot be used.
    Their ids have no meaning, since no code was fingerprinted."""
    if run.config is None or isinstance(run.config.environment, NotInstalledSettings):
        return ()
    config = run.config
    # The plan depends only on the settings and on the requests in the ledger.
    return stored.kept(
        run.name,
        "plan",
        lambda: (
            plan_for(
                stored.uri, run.run, config, run.total, sources=unread_sources(config), entries=run.recorded
            ).nodes
        ),
    )
