"""The memory versions that a run has recorded, and requests to forget an entry, as recipes.

Plans look up a run's requests, so to keep them fast this module imports neither polars nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.artifacts.recipe import Recipe
from storage.errors import InputError
from storage.runs.ledger import LedgerEntry, latest_entries

if TYPE_CHECKING:
    from storage.runs.run import Run

EMPTY_MEMORY = "empty"
"""The version of a memory to which nothing was added yet."""

PARENT_INPUT = "memory"
"""Name of the input by which a memory version names its parent."""

REQUEST_STAGE = "forget_request"
"""Stage of a request: which entries to forget, and why."""

FORGET_STAGE, FORGET_VERSION = "forget_memory", 2
"""Stage that removes the entries that a request names, and the stage's version."""

REQUEST_INPUT = "request"
"""Name of the input that is the request."""


def request_recipe(version: str, entry_ids: Sequence[str], reason: str) -> Recipe:
    """The recipe of the request to forget entries, made when `version` was the newest memory."""
    # One entry is named as it was before a request could name several: its id stays the same.
    named = {"entry_id": entry_ids[0]} if len(entry_ids) == 1 else {"entry_ids": list(entry_ids)}
    return Recipe(REQUEST_STAGE, 1, {**named, "reason": reason}, {PARENT_INPUT: version}, 0, kind="request")


def requested_entries(settings: Mapping[str, Any]) -> list[str]:
    """The entries that a request names, by its settings."""
    one = settings.get("entry_id")
    return [str(each) for each in settings["entry_ids"]] if one is None else [str(one)]


def forget_recipe(parent: str, request_id: str) -> Recipe:
    """The recipe of the memory version that fulfils a request."""
    return Recipe(
        FORGET_STAGE,
        FORGET_VERSION,
        {},
        {PARENT_INPUT: parent, REQUEST_INPUT: request_id},
        0,
        kind="memory",
    )


@dataclass(frozen=True)
class ForgetRequest:
    """A request to forget, by the id of its artifact. `made`: the stages that its iteration had recorded by
    then; None: all that it has."""

    artifact_id: str
    made: frozenset[str] | None = None

    def came_before(self, stage: str) -> bool:
        """Whether its iteration had not made a stage when it was asked."""
        return self.made is not None and stage not in self.made


def forget_requests(entries: Iterable[LedgerEntry]) -> dict[int, tuple[ForgetRequest, ...]]:
    """Iteration -> the requests to be fulfilled after it, in order."""
    made: dict[int, set[str]] = {}
    requests: dict[int, list[tuple[LedgerEntry, frozenset[str]]]] = {}
    for entry in latest_entries(entries):
        iteration = entry.iteration or 0
        stages = made.setdefault(iteration, set())
        if entry.kind == "request":
            requests.setdefault(iteration, []).append((entry, frozenset(stages)))
        stages.add(entry.stage)
    return {
        iteration: tuple(
            ForgetRequest(entry.artifact_id, stages)
            for entry, stages in sorted(of, key=lambda each: _order(each[0]))
        )
        for iteration, of in requests.items()
    }


def _order(entry: LedgerEntry) -> tuple[int, int, str]:
    """By iteration and key. Keys are numbers of four digits, and of more from 10000 on."""
    return entry.iteration or 0, len(entry.key), entry.key


@dataclass(frozen=True)
class MemoryVersion:
    """A memory version and the iteration after which it was the run's memory."""

    iteration: int
    stage: str
    artifact_id: str


def memory_versions(run: Run) -> list[MemoryVersion]:
    """All memory versions of a run, the oldest first."""
    found = [entry for entry in run.stages() if entry.kind == "memory"]
    # The sort is stable: within an iteration the ledger lists them in the order in which they were made.
    found.sort(key=lambda entry: entry.iteration or 0)
    # Removals are in the order of their requests: one may be recorded again after a later one.
    places = [place for place, entry in enumerate(found) if entry.stage == FORGET_STAGE]
    removals = sorted((found[place] for place in places), key=_order)
    for place, entry in zip(places, removals, strict=True):
        found[place] = entry
    return [MemoryVersion(entry.iteration or 0, entry.stage, entry.artifact_id) for entry in found]


def latest_version(run: Run, iteration: int | None = None) -> str:
    """The newest memory version, or the newest one at the end of an iteration; `empty` before the first.

    Raises InputError for an iteration that the run does not have.
    """
    versions = memory_versions(run)
    if iteration:
        last = max((entry.iteration or 0 for entry in run.stages()), default=0)
        if iteration > last:
            raise InputError(f"run {run.name} has no iteration {iteration}; its last one is {last}.")
    ids = [each.artifact_id for each in versions if iteration is None or each.iteration <= iteration]
    return ids[-1] if ids else EMPTY_MEMORY
