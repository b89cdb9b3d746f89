"""Stored runs that commands begin from: whether one is finished, its configuration, a branch of it as a
plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.config.loading import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import changed_settings
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.config import refuse_other_settings, run_config
from erl_pipeline.runs.origins import lines_in_branch
from erl_pipeline.runs.planning import lost_stages, plan_before_branch, plan_for, recorded_ids
from erl_pipeline.runs.run_plans import plan_branch, shared_stages
from erl_pipeline.runs.state import completed_iterations
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, StoreError
from storage.filesystem import open_root
from storage.memory.versions import forget_requests
from storage.runs.documents import BranchOrigin
from storage.runs.ledger import latest_entries
from storage.runs.run import Run, RunStore
from storage.texts import counted


def run_folder(store_uri: str, run_name: str) -> Path:
    """The local folder for files of a run that are not artifacts, such as its report and Prefect's log."""
    return open_root(store_uri).scratch / "runs" / run_name


def find_finished_run(config: RunConfig, store_uri: str, iterations: int) -> Run | None:
    """The run of `config`, if its ledger has all of the plan and the last iteration's artifacts are intact.

    Their files are hashed again. If one is damaged the result is None: training, which also checks them, then
    reports it and makes it again. Of artifacts of earlier iterations only the manifests are looked at.
    """
    runs = RunStore(store_uri)
    if config.name not in runs.list():
        return None
    run = runs.open(config.name)
    entries = run.recorded()
    if not entries:
        return None
    refuse_other_settings(run, config)
    recorded = recorded_ids(entries)
    plan = plan_for(store_uri, run, config, iterations, entries=entries)
    if any(recorded.get(node.place) != node.artifact_id for node in plan.nodes):
        return None
    store = ArtifactStore(store_uri)
    try:
        if lost_stages(store, plan, recorded):
            return None
        for node in plan.of_iteration(iterations):
            store.open(node.artifact_id)
    except (InputError, StoreError):
        return None
    return run


@dataclass(frozen=True)
class StoredRun:
    """The run to start from, its configuration, and how many iterations it has."""

    run: Run
    config: RunConfig
    done: int

    @classmethod
    def open(cls, name: str, store: str) -> StoredRun:
        """Open a run of the store. Raises InputError for an unknown name."""
        run = RunStore(store).open(name)
        config = run_config(run)
        return cls(run, config, completed_iterations(config, run.stages()))

    def last_of_span(self, first: int, last: int | None) -> int:
        """The last iteration of a span to compute again: `last`, or that of the run if it is None.

        Raises InputError when the run does not have these iterations.
        """
        if first > self.done:
            raise InputError(
                f"--iteration {first}: run {self.run.name} ended in iteration {self.done}"
                + (f"; 1 to {self.done} are allowed" if self.done else "")
            )
        last = self.done if last is None else last
        if not first <= last <= self.done:
            raise InputError(
                f"run {self.run.name} has iterations 1 to {self.done}; it cannot be computed again from "
                f"iteration {first} to {last}"
            )
        return last


def require_other_name(run: str, name: str) -> None:
    """Raise InputError when a new run would have the same name as the run that it starts from."""
    if run == name:
        raise InputError(f"--name {name}: stored artifacts are never replaced; give the new run another name")


def own_settings(settings: Sequence[str]) -> list[str]:
    """The user's overrides. Raises InputError for those that have an option of this command."""
    options = {"name": "--name", "iterations": "--iterations"}
    for setting in settings:
        option = options.get(setting.partition("=")[0].strip())
        if option:
            raise InputError(f"--set {setting}: use {option}")
    return list(settings)


@dataclass(frozen=True)
class PlannedBranch:
    """A branch before it begins: its configuration, its plan, and how many artifacts it shares with the run:
    those `before` its first stage, and those `after` it, which the changed settings do not reach."""

    config: RunConfig
    origin: BranchOrigin
    plan: Plan
    before: int
    after: int
    changed: Sequence[str]

    def describe_shared(self) -> str:
        """`195 artifacts, 194 before update_policy of iteration 30 and 1 after it`."""
        place = f"before {self.origin.stage} of iteration {self.origin.iteration}"
        total = counted(self.before + self.after, "artifact")
        if not self.after:
            return f"{total}, all {place}"
        after = f"{self.after:,} after it, which the branch does not change"
        return f"{total}, {self.before:,} {place} and {after}"


def planned_branch(
    run: str, store: str, iteration: int, stage: str, last: int | None, settings: Sequence[str], name: str
) -> PlannedBranch:
    """Plan a branch; `last` is its last iteration, by default that of `run`.

    Raises ConfigError for changed settings that artifacts before the branch depend on; InputError when `run`
    has no such iteration or stage, or when neither settings are changed nor an entry was forgotten.
    """
    stored = StoredRun.open(run, store)
    if iteration < 1:
        raise InputError(
            "a branch begins in iteration 1 or later; for other tasks or another first checkpoint "
            "train a new run with `train --name`"
        )
    last = last or max(stored.done, iteration)
    if last < iteration:
        raise InputError(f"--iterations {last}: the branch begins in iteration {iteration}")
    options = {"--name": ("name", name), "--iterations": ("iterations", last)}
    config = change_config(stored.config, own_settings(settings), options)
    changed = changed_settings(stored.config, config)
    entries = stored.run.recorded()
    if not changed and not any(entry.kind == "request" for entry in entries):
        raise InputError(
            f"run {run} has these settings already, and no entry of its memory was forgotten; leave out "
            "--set and --name to audit it"
        )
    origin = BranchOrigin(run=run, iteration=iteration, stage=stage)
    source = plan_before_branch(store, stored.run, origin)
    shared = shared_stages(source, iteration, stage)
    lines = lines_in_branch(latest_entries(entries), shared, iteration)
    plan = plan_branch(
        config,
        read_sources(config),
        source,
        stored.config,
        origin,
        iterations=last,
        requests=forget_requests(lines),
    )
    before = {node.place for node in shared}
    recorded = recorded_ids(entries)
    after = [
        node
        for node in plan.nodes
        if node.place not in before and recorded.get(node.place) == node.artifact_id
    ]
    return PlannedBranch(config, origin, plan, len(before), len(after), changed)
