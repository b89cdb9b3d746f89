"""The plans of stored runs: as they would continue now, and as they were made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan, PlannedStage, RunState, StageKey
from erl_pipeline.plan.sources import Sources, read_sources, unread_sources
from erl_pipeline.runs.config import refuse_texts, run_config
from erl_pipeline.runs.run_plans import plan_branch, plan_offline, plan_run, shared_stages
from erl_pipeline.runs.state import REPORTED_ITERATIONS, completed_iterations, place_of
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError
from storage.filesystem import open_root
from storage.lineage.graph import current_entries
from storage.memory.versions import forget_requests
from storage.runs.documents import IMPORTED, BranchOrigin, OfflineOrigin, read_origin
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore
from storage.texts import counted


def recorded_ids(entries: Iterable[LedgerEntry]) -> dict[StageKey, str]:
    """The last artifact of each place in a ledger."""
    return {place_of(entry): entry.artifact_id for entry in entries}


def plan_for(
    store_uri: str,
    run: Run,
    config: RunConfig,
    iterations: int,
    *,
    sources: Sources | None = None,
    entries: Sequence[LedgerEntry] | None = None,
) -> Plan:
    """The plan with which a run continues to a number of iterations, with today's code.

    Args:
        config: the run's configuration; its operational settings may differ from those it began with.

    Raises ConfigError and InputError as `plan_branch` and `plan_offline` do, and InputError when an offline
    run would need more iterations than its data has.
    """
    return _plan(store_uri, run, config, iterations, sources or read_sources(config), entries, as_made=None)


def plan_as_made(
    store_uri: str, run: Run, iterations: int | None = None, *, sources: Sources | None = None
) -> Plan:
    """The plan of a stored run with the artifact ids of its ledger, whatever today's code would make.

    Args:
        iterations: how many; default: those whose policy is committed.
        sources: today's code and files, for the recipes; `unread_sources` if only ids are needed.

    Raises InputError when the run lacks an artifact of the plan.
    """
    config = run_config(run)
    entries = run.recorded()
    count = completed_iterations(config, entries) if iterations is None else iterations
    return _plan(store_uri, run, config, count, sources or read_sources(config), entries, as_made="whole")


def plan_beyond(
    store_uri: str,
    run: Run,
    config: RunConfig,
    iterations: int,
    entries: Sequence[LedgerEntry],
    sources: Sources,
) -> Plan:
    """The plan with which a run would continue past `iterations` and past what its ledger has, as far as
    later stages can still read earlier artifacts; an offline run ends with its data.

    Args: as for `plan_for`.
    """
    last = max([iterations, *(entry.iteration or 0 for entry in entries)]) + 1 + config.pipeline.lag
    origin = read_origin(store_uri, run.name)
    if isinstance(origin, OfflineOrigin):
        last = min(last, origin.iterations)
    return plan_for(store_uri, run, config, last, sources=sources, entries=entries)


def plan_before_branch(
    store_uri: str,
    run: Run,
    origin: BranchOrigin,
    *,
    sources: Sources | None = None,
    taken: Sequence[LedgerEntry] = (),
) -> Plan:
    """The plan of the run that a branch comes from, as it was made, through the iteration of the branch.

    Stages from the branch on that the run lacks have the ids that their recipes give.

    Args:
        taken: the ledger of the branch, if it has begun: what it has taken over stays, whatever the run has
            made since then, such as with other code.

    Raises InputError when the run lacks something before the branch, or generates no rollouts itself.
    """
    begun = read_origin(store_uri, run.name)
    if isinstance(begun, OfflineOrigin):
        raise InputError(
            f"run {run.name} trains on the stored rollouts of {begun.run} and generates none, so nothing can "
            "branch from it; train another run on these rollouts with `replay --offline`"
        )
    config = run_config(run)
    entries = _with_taken(store_uri, run, taken, origin.iteration)
    plan = _plan(
        store_uri,
        run,
        config,
        origin.iteration,
        sources or read_sources(config),
        entries,
        as_made="partial",
    )
    recorded = recorded_ids(entries)
    done = completed_iterations(config, entries)
    if origin.iteration > done + 1:
        raise InputError(
            f"run {run.name} ended in iteration {done}; a branch can begin in iteration 1 to {done + 1}"
        )
    earlier = [node for node in plan.nodes if (node.iteration or 0) < origin.iteration]
    for node in [*earlier, *shared_stages(plan, origin.iteration, origin.stage)]:
        if node.place not in recorded:
            raise InputError(
                f"run {run.name} ended in iteration {done}; it has no {node.title}, which comes before the "
                "branch"
            )
    return plan


def _with_taken(store_uri: str, run: Run, taken: Sequence[LedgerEntry], iteration: int) -> list[LedgerEntry]:
    """The lines of a run that still count, and behind them what another run has taken over from it through an
    iteration. Each run has its own requests to forget."""
    kept = [each for each in taken if each.kind != "request" and (each.iteration or 0) <= iteration]
    current = current_entries(ArtifactStore(store_uri), run.recorded())
    if taken:
        # What was asked of the run later was not asked of the one that began from it.
        known = {each.artifact_id for each in taken if each.kind == "request"}
        current = [each for each in current if each.kind != "request" or each.artifact_id in known]
    return [*current, *kept]


def whole_iterations(plan: Plan, recorded: Mapping[StageKey, str]) -> int:
    """The newest iteration up to whose end the ledger has all that the plan has.

    Evaluations do not count: nothing is made from them.
    """
    for iteration in range(1, plan.iterations + 1):
        for node in plan.of_iteration(iteration):
            chained = node.stage.output not in ("evaluation", "table")
            if chained and recorded.get(node.place) != node.artifact_id:
                return iteration - 1
    return plan.iterations


def lost_stages(store: ArtifactStore, plan: Plan, recorded: Mapping[StageKey, str]) -> list[PlannedStage]:
    """The stages of a plan whose artifacts the ledger names, and which are gone or have no readable manifest.

    Folders are listed, so that a start takes no longer for a long run. Of a run that is short enough to get
    its report automatically, for which all manifests are read at its end, they are read now too, if the store
    is local.
    """
    reads = plan.iterations <= REPORTED_ITERATIONS and open_root(store.uri).local
    listed: dict[str, frozenset[str]] = {}
    lost = []
    for node in plan.nodes:
        if recorded.get(node.place) != node.artifact_id:
            continue
        stage = node.stage.name
        if stage not in listed:
            listed[stage] = frozenset(store.ids(stage))
        if node.artifact_id not in listed[stage] or (reads and not _is_readable(store, node)):
            lost.append(node)
    return lost


def _is_readable(store: ArtifactStore, node: PlannedStage) -> bool:
    try:
        return store.find(node.artifact_id, node.stage.name) is not None
    except DamagedArtifact:
        return False


def _plan(
    store_uri: str,
    run: Run,
    config: RunConfig,
    iterations: int,
    sources: Sources,
    entries: Sequence[LedgerEntry] | None,
    as_made: Literal["whole", "partial"] | None,
) -> Plan:
    lines = run.recorded() if entries is None else entries
    requests = forget_requests(lines)
    recorded = None if as_made is None else recorded_ids(lines)
    partial = as_made == "partial"
    origin = read_origin(store_uri, run.name)
    if origin is None:
        return plan_run(
            config,
            sources,
            iterations=iterations,
            requests=requests,
            recorded=recorded,
            partial=partial,
        )
    source = RunStore(store_uri).open(origin.run)
    if isinstance(origin, BranchOrigin):
        return plan_branch(
            config,
            sources,
            plan_before_branch(
                store_uri, source, origin, sources=_alike(sources, run_config(source)), taken=lines
            ),
            run_config(source),
            origin,
            iterations=iterations,
            requests=requests,
            recorded=recorded,
            partial=partial,
        )
    if iterations > origin.iterations:
        raise InputError(
            f"run {run.name} has the stored rollouts of {counted(origin.iterations, 'iteration')} of "
            f"{origin.run}; it cannot be continued to {iterations}"
        )
    return plan_offline(
        config,
        sources,
        origin,
        stored_rollouts(source, origin, lines),
        beginning_of(store_uri, source, lines),
        iterations=iterations,
        recorded=recorded,
        partial=partial,
    )


def stages_as_made(store_uri: str, run: Run) -> Sequence[PlannedStage]:
    """The stages of a stored run with the artifact ids of its ledger and the recipes of today's code; none
    for a run that holds only imported trajectories.

    Raises what `plan_for` raises.
    """
    begun = begun_by(store_uri, run)
    if begun is None:
        return ()
    config, entries = run_config(begun), begun.recorded()
    last = max((entry.iteration or 0 for entry in entries), default=0)
    plan = _plan(store_uri, begun, config, last, read_sources(config), entries, as_made="partial")
    return plan.nodes


def stages_before(store_uri: str, run: Run) -> Sequence[PlannedStage]:
    """The stages of the run on whose stored rollouts a run trains; none for other runs."""
    origin = read_origin(store_uri, run.name)
    if not isinstance(origin, OfflineOrigin):
        return ()
    return stages_as_made(store_uri, RunStore(store_uri).open(origin.run))


def stored_rollouts(source: Run, origin: OfflineOrigin, taken: Sequence[LedgerEntry] = ()) -> dict[int, str]:
    """Iteration -> rollouts of a run. Raises InputError if rollouts that `origin` names are missing.

    Args:
        taken: the ledger of the run that trains on them, if it has begun (see `plan_before_branch`).
    """
    refuse_texts(source)
    found = {
        entry.iteration: entry.artifact_id
        for entry in source.stages()
        if entry.kind == "rollouts" and entry.iteration is not None
    }
    for iteration in range(origin.first_iteration, origin.last_iteration + 1):
        if iteration not in found:
            held = f"1 to {max(found)}" if found else "none"
            raise InputError(f"run {source.name} has no rollouts of iteration {iteration}; it has {held}")
    for entry in taken:
        if entry.kind == "rollouts" and entry.iteration is not None:
            found[origin.first_iteration - 1 + entry.iteration] = entry.artifact_id
    return found


def begun_by(store_uri: str, source: Run) -> Run | None:
    """The run that has the tasks and the first checkpoint of stored rollouts: the run itself or, for traffic,
    the one that served. None for a run that holds only imported trajectories."""
    if IMPORTED not in source.config:
        return source
    served = source.config[IMPORTED].get("served")
    return None if served is None else RunStore(store_uri).open(served)


def plan_of_beginning(store_uri: str, source: Run, taken: Sequence[LedgerEntry] = ()) -> Plan | None:
    """What a run that `begun_by` gives has made before its first iteration; None where there is none.

    Args:
        taken: the ledger of a run that begins with it, if it has begun (see `plan_before_branch`).
    """
    begun = begun_by(store_uri, source)
    if begun is None:
        return None
    config, entries = run_config(begun), _with_taken(store_uri, begun, taken, 0)
    return _plan(store_uri, begun, config, 0, unread_sources(config), entries, as_made="whole")


def beginning_of(store_uri: str, source: Run, taken: Sequence[LedgerEntry] = ()) -> RunState | None:
    """Tasks and first checkpoint of a run; None for a run that holds only imported trajectories. `taken` as
    for `plan_of_beginning`."""
    plan = plan_of_beginning(store_uri, source, taken)
    return None if plan is None else plan.states[0]


def _alike(sources: Sources, config: RunConfig) -> Sources:
    """The sources of another configuration; they are read only if these were."""
    return read_sources(config) if sources.read else unread_sources(config)
