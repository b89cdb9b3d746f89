"""Which policies and evaluation scores an artifact or a row reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.lineage import Reach, Reached
from storage.lineage.questions import DESCENDANT, DIRECTLY


@dataclass(frozen=True)
class ReachedPolicy:
    """A checkpoint that was reached. `how` says whether its own training read what reached it, or only that
    of an ancestor."""

    policy: str
    how: str
    stage: str
    iteration: int
    run: str


@dataclass(frozen=True)
class ReachedScore:
    """An evaluation of a policy that was reached; `how` is the policy's."""

    artifact_id: str
    policy: str
    how: str
    iteration: int
    run: str
    greedy_success: float


def policies_reached(reach: Reach) -> list[ReachedPolicy]:
    """The policies among the things that were reached, by iteration."""
    found = [
        ReachedPolicy(
            thing.id,
            DIRECTLY if thing.id in reach.trained else DESCENDANT,
            thing.facts["stage"],
            thing.facts["iteration"],
            thing.facts["run"],
        )
        for thing in _artifacts(reach)
        if thing.facts["kind"] == "checkpoint"
    ]
    return sorted(found, key=lambda policy: policy.iteration)


def scores_reached(reach: Reach) -> list[ReachedScore]:
    """Held-out scores of the policies that were reached, by iteration."""
    how = {policy.policy: policy.how for policy in policies_reached(reach)}
    found = [
        ReachedScore(
            thing.id,
            thing.facts["policy_version"],
            how[thing.facts["policy_version"]],
            thing.facts["iteration"],
            thing.facts["run"],
            thing.facts["metrics"]["greedy_success"],
        )
        for thing in _artifacts(reach)
        if thing.facts["kind"] == "evaluation" and thing.facts["policy_version"] in how
    ]
    return sorted(found, key=lambda score: score.iteration)


def _artifacts(reach: Reach) -> Sequence[Reached]:
    return [thing for thing in reach.things if thing.kind == "artifact" and thing.facts]
