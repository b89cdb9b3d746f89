"""The run to certify: what its copy must produce, and which runs are refused before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.config.loading.load import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import POLICY, Place, Plan, PlannedStage
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.config import refuse_other_settings, run_config
from erl_pipeline.runs.planning import recorded_ids
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.state import completed_iterations
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory.requests import forget_requests
from storage.runs.origin import read_origin
from storage.runs.run import Run, RunStore


@dataclass(frozen=True)
class Subject:
    """A run, the plan of its copy, and the configuration with which the copy is trained.

    `expected` are the stages of the plan that the run has too: all, except perhaps evaluations. `seconds`
    says how long computing each of them took.
    """

    run: Run
    store: ArtifactStore
    config: RunConfig
    plan: Plan
    expected: tuple[PlannedStage, ...]
    seconds: tuple[float, ...]

    @property
    def checkpoint(self) -> str:
        """The policy after the last iteration."""
        return self.plan.states[-1].models[POLICY]


def find_subject(
    store_uri: str,
    name: str,
    iterations: int | None = None,
    settings: Sequence[str] = (),
    runner: str | None = None,
) -> Subject:
    """Find the run to certify, and plan its copy.

    A copy reports to no tracker: the numbers of a killed copy must not appear beside those of the run.

    Args:
        iterations: how many of the run's iterations; default: all.
        settings: operational settings of the copy, as `--set` takes them.
        runner: type of the copy's runner; default: that of the configuration.

    Raises:
        ConfigError: a setting is wrong, or artifacts depend on it.
        InputError: the run began from another, it was asked to forget something, it has no iteration or fewer
            than `iterations`, or today's code would make other artifacts than it has.
    """
    run = RunStore(store_uri).open(name)
    config = run_config(run)
    copied = change_config(config, settings, {} if runner is None else {"--runner": ("runner", runner)})
    refuse_other_settings(run, copied)
    entries = run.recorded()
    origin = read_origin(store_uri, name)
    if origin is not None:
        raise InputError(
            f"run {name} was begun {origin.describe()}, so a copy would not compute what it shares with that "
            f"run; certify run {origin.run}"
        )
    if forget_requests(entries):
        raise InputError(
            f"run {name} was asked to forget memory entries, which is not in its configuration, so a copy "
            "would not forget them; audit it with `replay RUN --iteration 0 --from STAGE`"
        )
    done = completed_iterations(config, entries)
    last = done if iterations is None else iterations
    if not 1 <= last <= done:
        held = f"has iterations 1 to {done}" if done else "has no complete iteration yet"
        raise InputError(f"run {name} {held}; {max(last, 1)} cannot be certified")
    plan = plan_run(copied, read_sources(copied), iterations=last)
    recorded = recorded_ids(entries)
    store = ArtifactStore(store_uri, copied.resources.threads, copied.store.cache())
    expected = _expected(name, plan, recorded)
    seconds = []
    for node in expected:
        manifest = store.find(node.artifact_id, node.stage.name)
        if manifest is None:
            raise InputError(f"run {name} has lost {node.title} ({node.artifact_id}); `train` makes it again")
        seconds.append((manifest.finished_at - manifest.started_at).total_seconds())
    return Subject(run, store, copied.model_copy(update={"metrics": ()}), plan, expected, tuple(seconds))


def _expected(name: str, plan: Plan, recorded: Mapping[Place, str]) -> tuple[PlannedStage, ...]:
    """The planned stages that the run has.

    A run may lack the evaluation with which its copy ends, if it ended in another iteration than its
    configuration says. Such an evaluation is skipped, since nothing is made from it.
    """
    expected = []
    for node in plan.nodes:
        found = recorded.get(node.place)
        if found is None and node.stage.output in ("evaluation", "table"):
            continue
        if found != node.artifact_id:
            raise InputError(
                f"this program would make another {node.title} than run {name} has, so a copy could not be "
                f"equal. `erl-pipeline plan {name}` says why."
            )
        expected.append(node)
    return tuple(expected)
