"""How far a run is, according to its ledger and the shape of its plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.run_plans import policy_stages
from storage.runs.ledger import LedgerEntry


@dataclass(frozen=True)
class PolicyMakers:
    """The stages that make the policy: the first policy of the run, and the last one of each iteration."""

    first: str
    last: str


def policy_makers(config: RunConfig) -> PolicyMakers:
    """The stages that make the policy of a run with this configuration. They do not depend on the
    environment, which need not be installed."""
    first, last = policy_stages(config)
    return PolicyMakers(first.name, last.name)


def completed_iterations(config: RunConfig, entries: Iterable[LedgerEntry]) -> int:
    """The number of the last iteration whose policy is committed."""
    last = policy_makers(config).last
    return max((entry.iteration or 0 for entry in entries if entry.stage == last), default=0)


def begun_iterations(entries: Iterable[LedgerEntry]) -> int:
    """The number of the last iteration of which anything is committed.

    It may be beyond the configuration: a run does not record the `--iterations` of its commands.
    """
    return max((entry.iteration or 0 for entry in entries), default=0)


def latest_checkpoint(
    config: RunConfig, entries: Iterable[LedgerEntry], iteration: int | None = None
) -> LedgerEntry | None:
    """The policy at the end of a run, or of one of its iterations; iteration 0 has the first policy.

    Args:
        entries: the latest entry of each place (`Run.stages`).
        iteration: None: the last one.
    """
    makers = policy_makers(config)
    found = [
        entry
        for entry in entries
        if entry.stage == (makers.last if entry.iteration else makers.first)
        and iteration in (None, entry.iteration or 0)
    ]
    return max(found, key=lambda entry: entry.iteration or 0, default=None)
