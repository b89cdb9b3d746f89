"""What a run has committed, iteration by iteration, for those who go on from it or compute it again."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.pipeline.iteration import STAGES, IterationState, stage_rank
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.stages.index_memory import INDEX_STAGE
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, StoreError
from storage.memory.forgetting import FORGET_STAGE, REQUEST_STAGE
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run

PREPARATIONS = ("prepare_tasks", "bootstrap")
"""Stages before the first iteration, beside the evaluation of the first checkpoint."""


class StoredRun:
    """The ledger of a run. Iteration 0 is what came before the first.

    Args:
        entries: the latest of each place, where they were read already (`Run.stages`).
    """

    def __init__(self, run: Run, entries: Sequence[LedgerEntry] | None = None) -> None:
        self.name = run.name
        self.run = run
        known = (*PREPARATIONS, "rollout_shard", *STAGES, FORGET_STAGE)
        self._entries = {
            (entry.iteration or 0, entry.stage, entry.key): entry
            for entry in (run.stages() if entries is None else entries)
            if entry.stage in known
        }
        self._forgotten: dict[int, LedgerEntry] = {}
        for (iteration, stage, _), entry in sorted(self._entries.items(), key=lambda item: item[0]):
            if stage == FORGET_STAGE:
                self._forgotten[iteration] = entry

    @property
    def last_iteration(self) -> int:
        """The last iteration whose policy update is committed; 0 when there is none."""
        return max((place[0] for place in self._entries if place[1] == "update_policy"), default=0)

    def find(self, iteration: int, stage: str, key: str = "") -> LedgerEntry | None:
        """The entry of one place; None where nothing is committed there."""
        return self._entries.get((iteration, stage, key))

    def entry(self, iteration: int, stage: str, key: str = "") -> LedgerEntry:
        """Like `find`; raises InputError, with how far the run is, where nothing is committed."""
        found = self.find(iteration, stage, key)
        if found is None:
            place = f"{stage} {key}".strip()
            raise InputError(
                f"run {self.name} has no {place} in iteration {iteration}; its policy is updated through "
                f"iteration {self.last_iteration}"
            )
        return found

    def shards(self, iteration: int) -> list[LedgerEntry]:
        """The rollout shards of an iteration, by key."""
        places = sorted(place for place in self._entries if place[:2] == (iteration, "rollout_shard"))
        return [self._entries[place] for place in places]

    def before(self, iteration: int, stage: str) -> list[LedgerEntry]:
        """All that is shared by a run that goes its own way from a stage of an iteration (from 1).

        In the order of the ledger, and with what somebody asked to have forgotten. Requests that were made
        later come with the first memory that the other run makes itself: what they name is in what is shared.
        """
        end = iteration, stage_rank(stage)
        own = iteration if end[1] <= stage_rank(INDEX_STAGE) else iteration + 1
        shared = []
        for entry in self.run.stages():
            at = entry.iteration or 0
            if entry.stage == REQUEST_STAGE:
                shared.append(entry.model_copy(update={"iteration": min(at, own)}))
            elif (at, entry.stage, entry.key) in self._entries and (at, stage_rank(entry.stage)) < end:
                shared.append(entry)
        return shared

    def memory(self, iteration: int) -> LedgerEntry | None:
        """The last memory version of an iteration; None when it made none."""
        return self._forgotten.get(iteration) or self.find(iteration, INDEX_STAGE)

    def state_before(self, iteration: int) -> IterationState:
        """What an iteration (from 1) began with. Raises InputError when the run has not come that far."""
        first = self.entry(0, "bootstrap").artifact_id
        checkpoint, memory = first, None
        for at in range(1, iteration):
            checkpoint = (self.find(at, "fine_tune") or self.entry(at, "update_policy")).artifact_id
            indexed = self.memory(at)
            memory = indexed.artifact_id if indexed else memory
        return IterationState(self.entry(0, "prepare_tasks").artifact_id, first, checkpoint, memory)


def stored_outcome(store: ArtifactStore, entry: LedgerEntry) -> StageOutcome:
    """What a stage gave, from its manifest. Raises StoreError when it is not in the store."""
    manifest = store.find(entry.artifact_id, entry.stage)
    if manifest is None:
        raise StoreError(
            f"artifact {entry.artifact_id} of stage {entry.stage} (iteration {entry.iteration or 0}) is not "
            "in the store; train the run it belongs to with --check, which makes it again"
        )
    return StageOutcome(
        stage=entry.stage,
        iteration=entry.iteration,
        artifact_id=entry.artifact_id,
        reused=True,
        seconds=0.0,
        counters=manifest.counters,
        metrics=manifest.metrics,
    )
