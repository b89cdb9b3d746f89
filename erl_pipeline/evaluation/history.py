"""What a run has done so far, read from its ledger and the manifests of its artifacts."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import polars as pl

from erl_pipeline.plan.column import Column
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.evaluation.evaluate import EVALUATE, EVALUATE_ON_TEST, EVALUATION, TEST_TASKS
from erl_pipeline.stages.evaluation.scores import SCORED_COLUMNS, greedy_outcomes
from erl_pipeline.stages.tasks.prepare_tasks import REQUESTED_TASKS
from erl_pipeline.statistics import PairedDifference, paired_difference
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, StoreError
from storage.lineage.graph import current_entries
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run
from storage.tables.scored import was_scored
from storage.tables.trajectories import scan_trajectories

_ON_REQUEST = frozenset(stage.name for stage in (REQUESTED_TASKS, EVALUATE_ON_TEST, TEST_TASKS))


@dataclass(frozen=True)
class StageRecord:
    """One committed artifact of a run. `iteration` is 0 for what came before the first iteration; `key`
    tells apart the shards of a stage. `reused`: the artifact existed before the run asked for it."""

    iteration: int
    stage: str
    key: str
    reused: bool
    manifest: Manifest

    @property
    def kind(self) -> ArtifactKind:
        """The kind of the artifact, whichever stage made it."""
        return self.manifest.kind

    @property
    def is_part(self) -> bool:
        """Whether another artifact sums it up, as rollouts sum up their shards."""
        return self.kind == "trajectories" and self.key != ""

    @property
    def on_request(self) -> bool:
        """Whether it was made on request, outside the training; it is then not part of an iteration."""
        return is_on_request(self.stage)

    @property
    def seconds(self) -> float:
        """Wall time for making the artifact, whenever that was and by whichever run."""
        return (self.manifest.finished_at - self.manifest.started_at).total_seconds()

    @property
    def counters(self) -> Mapping[str, float]:
        """The counters of the manifest."""
        return self.manifest.counters

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the manifest."""
        return self.manifest.metrics

    def number(self, name: str) -> float | None:
        """A counter or metric of the manifest; None if the stage did not report it."""
        value = self.manifest.counters.get(name, self.manifest.metrics.get(name))
        return float(value) if isinstance(value, int | float) else None

    def required_number(self, name: str) -> float:
        """Like `number`, for a number that the stage always reports; raises KeyError if it is missing."""
        value = self.number(name)
        if value is None:
            raise KeyError(f"artifact {self.manifest.artifact_id} of stage {self.stage} has no number {name}")
        return value

    def value(self, column: Column) -> float | None:
        """The number of a column; None if this artifact has none, or if it would have no meaning."""
        if column.stage != self.stage or (column.only_with and not self.number(column.only_with)):
            return None
        return self.number(column.metric)


@dataclass(frozen=True)
class CurvePoint:
    """Success of greedy first attempts after `iteration` with its 95 % interval, and what training had spent
    by then. `policy_steps` are the optimizer steps of the policy, `extractor_steps` those of a second model
    that is trained beside it. `teacher_tokens` were read once more with hindsight. Seconds are those of the
    iterations' stages, without evaluations. `left_out` tasks were not scored, so success is without them."""

    iteration: int
    success: float
    low: float
    high: float
    generated_tokens: int
    episodes: int
    policy_steps: int
    extractor_steps: int
    seconds: float
    prompt_tokens: int = 0
    teacher_tokens: int = 0
    left_out: int = 0


def is_on_request(stage: str) -> bool:
    """Whether artifacts of this stage are made on request, outside the plan of a run: all evaluations whose
    stage's name ends in `_on_request`, also those of other packages."""
    return stage.endswith("_on_request") or stage in _ON_REQUEST


def read_history(store: ArtifactStore, run: Run) -> list[StageRecord]:
    """The run's artifacts by iteration; within an iteration, in the order of the ledger.

    Raises StoreError when an artifact that the ledger names is not in the store.
    """
    records = []
    for entry in current_entries(store, run.recorded()):
        manifest = store.find(entry.artifact_id, entry.stage)
        if manifest is None:
            raise StoreError(
                f"run {run.name}: artifact {entry.artifact_id} of stage {entry.stage} is not in the store; "
                "`erl-pipeline train CONFIG --check` makes it again"
            )
        records.append(_record(entry, manifest))
    return sorted(records, key=lambda record: record.iteration)


def stored_records(store: ArtifactStore, entries: Iterable[LedgerEntry]) -> list[StageRecord]:
    """The artifacts of some ledger entries, without those whose manifests are missing or damaged."""
    records = []
    for entry in entries:
        try:
            manifest = store.find(entry.artifact_id, entry.stage)
        except DamagedArtifact:
            manifest = None
        if manifest is not None:
            records.append(_record(entry, manifest))
    return records


def of_stage(history: Sequence[StageRecord], stage: str) -> list[StageRecord]:
    """The records of one stage, by iteration."""
    return [record for record in history if record.stage == stage]


def of_kind(history: Sequence[StageRecord], kind: ArtifactKind) -> list[StageRecord]:
    """The records of one kind of artifact, by iteration."""
    return [record for record in history if record.kind == kind]


def held_out_evaluations(history: Sequence[StageRecord]) -> list[StageRecord]:
    """The evaluations on the run's own held-out tasks, by iteration."""
    return of_stage(history, EVALUATE.name)


def stage_order(history: Sequence[StageRecord]) -> list[str]:
    """Names of the stages: those that run only before the first iteration, then the others in the order in
    which iterations run them."""
    repeated = dict.fromkeys(record.stage for record in history if record.iteration)
    before = dict.fromkeys(record.stage for record in history if record.stage not in repeated)
    return [*before, *repeated]


def training_cost(history: Sequence[StageRecord], name: str, up_to: int) -> float:
    """A counter summed over all training stages of the iterations 1 to `up_to`.

    Shards are left out, since their rollouts count them again; so are evaluations, which train nothing.
    """
    return sum(
        record.number(name) or 0
        for record in history
        if not record.is_part and record.kind != "evaluation" and 1 <= record.iteration <= up_to
    )


def mean_rewards(trajectories: pl.LazyFrame) -> dict[str, dict[int, float]]:
    """Role -> iteration -> mean reward of its trajectories that were scored, in order."""
    scored = trajectories.filter(was_scored()).group_by("role", "iteration")
    means = scored.agg(pl.col("reward").cast(pl.Float64).mean()).sort("role", "iteration").collect()
    found: dict[str, dict[int, float]] = {}
    for role, iteration, reward in means.rows():
        found.setdefault(role, {})[iteration] = reward
    return found


def test_evaluations(history: Sequence[StageRecord]) -> list[StageRecord]:
    """The evaluations on the test tasks, by iteration."""
    return of_stage(history, EVALUATE_ON_TEST.name)


def learning_curve(
    history: Sequence[StageRecord], evaluations: Sequence[StageRecord] | None = None
) -> list[CurvePoint]:
    """One point for each evaluation; default: the evaluations on the run's held-out tasks."""
    trained = sorted(
        (record for record in history if record.iteration >= 1 and record.kind != "evaluation"),
        key=lambda record: record.iteration,
    )
    iterations = [record.iteration for record in trained]
    whole = [record for record in trained if not record.is_part]
    whole_iterations = [record.iteration for record in whole]
    evaluations = held_out_evaluations(history) if evaluations is None else evaluations
    policies = _policies(history, evaluations)
    of_policy = [record.manifest.artifact_id in policies for record in whole]
    steps = [record.number("optimizer_steps") or 0 for record in whole]
    spent = {name: _sums(record.number(name) or 0 for record in whole) for name in _SPENT} | {
        "policy_steps": _sums(n if mine else 0 for n, mine in zip(steps, of_policy, strict=True)),
        "extractor_steps": _sums(0 if mine else n for n, mine in zip(steps, of_policy, strict=True)),
    }
    seconds = _sums(record.seconds for record in trained)
    points = []
    for record in evaluations:
        counted = bisect_right(whole_iterations, record.iteration)
        points.append(
            CurvePoint(
                iteration=record.iteration,
                success=record.required_number("greedy_success"),
                low=record.required_number("greedy_success_low"),
                high=record.required_number("greedy_success_high"),
                **{name: int(sums[counted]) for name, sums in spent.items()},
                seconds=seconds[bisect_right(iterations, record.iteration)],
                left_out=int(record.number("greedy_success_left_out") or 0),
            )
        )
    return points


_SPENT = ("generated_tokens", "episodes", "prompt_tokens", "teacher_tokens")


def _policies(history: Sequence[StageRecord], evaluations: Sequence[StageRecord]) -> set[str]:
    """Ids of the checkpoints that were evaluated, and of all that they were trained from."""
    before = {
        record.manifest.artifact_id: record.manifest.inputs.get(CHECKPOINT)
        for record in history
        if record.kind == "checkpoint"
    }
    found: set[str] = set()
    for record in evaluations:
        policy = record.manifest.inputs.get(CHECKPOINT)
        while policy is not None and policy not in found:
            found.add(policy)
            policy = before.get(policy)
    return found


def _sums(values: Iterable[float]) -> list[float]:
    """The sums of the first 0, 1, 2, ... values."""
    return list(accumulate(values, initial=0.0))


def paired_outcomes(store: ArtifactStore, before: str, after: str) -> PairedDifference | None:
    """Compare two stored evaluations, given by their ids, task by task. Tasks that were not scored in one of
    them are left out.

    None where retention has removed attempts, where the two were not on the same tasks, or where no task is
    left. Raises DamagedArtifact if the file of the attempts is damaged.
    """
    rows = [_evaluated(store, artifact_id) for artifact_id in (before, after)]
    tasks = [set(each["task_id"]) for each in rows]
    if tasks[0] != tasks[1]:
        return None
    first, last = (greedy_outcomes(each) for each in rows)
    both = [task_id for task_id in first if task_id in last]
    if not both:
        return None
    return paired_difference({each: first[each] for each in both}, {each: last[each] for each in both})


def outcomes_by_task(store: ArtifactStore, evaluations: Sequence[StageRecord]) -> dict[str, list[bool]]:
    """Task -> whether its greedy first attempt succeeded in each evaluation, for tasks that were scored in
    all of them. Empty where retention has removed attempts.

    Raises DamagedArtifact if the file of the attempts is damaged.
    """
    outcomes = [greedy_outcomes(_evaluated(store, each.manifest.artifact_id)) for each in evaluations]
    everywhere = [task for task in outcomes[0] if all(task in each for each in outcomes)] if outcomes else []
    return {task: [each[task] for each in outcomes] for task in everywhere}


def _evaluated(store: ArtifactStore, artifact_id: str) -> pl.DataFrame:
    """The columns of an evaluation's attempts that scores are made of; no rows if retention removed them."""
    artifact = store.open(artifact_id)
    names = [entry.path for entry in artifact.files if entry.path == EVALUATION]
    if any(artifact.pruned.of(name) is not None for name in names):
        names = []
    rows = scan_trajectories([artifact.path(name) for name in names])
    return rows.select(SCORED_COLUMNS).collect()


def _record(entry: LedgerEntry, manifest: Manifest) -> StageRecord:
    return StageRecord(entry.iteration or 0, entry.stage, entry.key, entry.reused, manifest)
