"""How far a run is, told from its ledger and the shape of its plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.run_plans import plan_run
from storage.runs.ledger import LedgerEntry


@dataclass(frozen=True)
class PolicyMakers:
    """The stages that make the policy: the one that a run begins with, and the one that ends an iteration."""

    first: str
    last: str


def policy_makers(config: RunConfig) -> PolicyMakers:
    """Which stages make the policy of a run with this configuration."""
    plan = plan_run(config, unread_sources(config), iterations=1)
    first, last = (plan.by_id[state.models[POLICY]].stage.name for state in plan.states)
    return PolicyMakers(first, last)


def completed_iterations(config: RunConfig, entries: Iterable[LedgerEntry]) -> int:
    """Iterations whose last checkpoint is committed."""
    last = policy_makers(config).last
    return max((entry.iteration or 0 for entry in entries if entry.stage == last), default=0)


def latest_checkpoint(
    config: RunConfig, entries: Iterable[LedgerEntry], iteration: int | None = None
) -> LedgerEntry | None:
    """The policy with which a run, or an iteration of it, ended; iteration 0 has the one it began with.

    Args:
        entries: the latest of each place (`Run.stages`).
    """
    makers = policy_makers(config)
    found = [
        entry
        for entry in entries
        if entry.stage == (makers.last if entry.iteration else makers.first)
        and iteration in (None, entry.iteration or 0)
    ]
    return max(found, key=lambda entry: entry.iteration or 0, default=None)
