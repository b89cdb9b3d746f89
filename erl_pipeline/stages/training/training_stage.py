"""What the stages that train have in common: the trainer of a checkpoint, its progress, its new
checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pydantic import SerializeAsAny, field_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.objective import OBSERVED
from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.plugins import as_in_recipes, plugins, with_operational
from erl_pipeline.engines.interface import release_engine
from erl_pipeline.episodes.ahead import end_episodes_ahead
from erl_pipeline.episodes.roles import NEVER_TRAINED, is_trainable, trainable
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies import checkpoints
from erl_pipeline.trainers import interface
from erl_pipeline.trainers.metrics import SequenceRecord
from storage.artifacts.late_files import wait_until_whole
from storage.artifacts.layout import StagingFolder
from storage.artifacts.recipe import derive_seed
from storage.errors import StateNotKept
from storage.tables.scored import NOT_SCORED, NotScored

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
    from erl_pipeline.trainers.sequences import TrainingSequence
    from storage.tables.training import SftRow
    from storage.tables.trajectories import Trajectory


class TrainingSettings(Settings):
    """The part of the configuration that every training stage reads."""

    optimizer: OptimizerConfig
    trainer: SerializeAsAny[PluginSettings]
    weights: checkpoints.WeightsSettings

    @field_validator("trainer")
    @classmethod
    def _without_operational(cls, trainer: PluginSettings) -> PluginSettings:
        return as_in_recipes("trainers", trainer)


TrainingT = TypeVar("TrainingT", bound=TrainingSettings)


def training_settings(config: RunConfig) -> dict[str, Any]:
    """The fields of `TrainingSettings`, from a configuration."""
    return {
        "optimizer": config.optimizer,
        "trainer": config.trainer,
        "weights": checkpoints.weights_settings(config),
    }


def plan_training(
    planner: Planner,
    state: RunState,
    iteration: int,
    stage: Stage[TrainingT],
    inputs: Mapping[str, str],
    model: str,
    settings: TrainingT | None = None,
) -> RunState:
    """Plan the training of a model by a stage, from its latest checkpoint and `inputs`. Returns the state
    after it.

    `settings`: those of the stage, where the configuration alone does not give them.
    """
    checkpoint = planner.add(
        stage,
        {**state.model_inputs(model), **inputs},
        iteration=iteration,
        settings=settings,
        seed=derive_seed(planner.config.seed, iteration, stage.name),
    )
    return replace(state, models={**state.models, model: checkpoint})


@contextmanager
def open_trainer(call: StageCall[TrainingT]) -> Iterator[interface.Trainer]:
    """The trainer of the checkpoint among the stage's inputs. An engine releases its device first. A trainer
    that is not kept for the next stage is closed with the block.

    Raises StateNotKept if neither a file nor this worker has the state of its optimizer."""
    trainer = _trainer(call)
    try:
        yield trainer
    finally:
        if not loaded_policies(call).keeps(trainer):
            trainer.close()


def _trainer(call: StageCall[TrainingT]) -> interface.Trainer:
    trainer, optimizer, weights = call.settings.trainer, call.settings.optimizer, call.settings.weights
    end_episodes_ahead(call.resources)
    call.resources.late_files.wait()  # What is being written must not change.
    release_engine(call.resources)
    policies = loaded_policies(call)
    parts = checkpoints.checkpoint_parts(call.inputs)
    kept: interface.Trainer | None = policies.take_trainer(parts.checkpoint_id, (trainer, optimizer, weights))
    if kept is not None:
        if kept.lasts():
            return kept
        kept.close()  # Some of its processes may be left.
    start = interface.TrainingStart(
        checkpoint=_state_folder(call, policies),
        load=lambda: policies.take(parts, weights),
        optimizer=optimizer,
        context=interface.TrainerContext(
            checkpoints.StoredPolicy(parts, weights),
            call.resources.scratch,
            call.resources.settings.threads,
            call.resources.deterministic,
            call.progress.raise_if_stopped,
            call.progress.waiting,
            call.resources.other_nodes,
            call.resources.keep,
        ),
    )
    plugin: interface.TrainerPlugin[Any] = plugins("trainers")[trainer.type].value
    if plugin.elsewhere:
        from erl_pipeline.policies.hardware import release_cached_memory

        policies.forget()
        policies.give_up_processes()
        release_cached_memory()
    return plugin.open(with_operational("trainers", trainer, call.resources.settings.trainer), start)


def _state_folder(call: StageCall[TrainingT], policies: checkpoints.LoadedPolicies) -> Path:
    """The folder with the state of the checkpoint's optimizer. If the checkpoint lacks it, a trainer that has
    it, and was opened with other settings, writes it into a temporary one."""
    checkpoint = call.inputs[checkpoints.CHECKPOINT]
    manifest = checkpoint.manifest
    if not checkpoints.lacks_state(manifest):
        for entry in manifest.files:
            if fnmatch(entry.path, checkpoints.OPTIMIZER_STATE_FILES):  # Another worker may still write it.
                wait_until_whole(checkpoint.folder / entry.path, entry.bytes)
        return checkpoint.folder
    holder: interface.Trainer | None = policies.take_trainer(manifest.artifact_id, None)
    if holder is None or not holder.lasts():
        fact = (
            f"{checkpoints.OPTIMIZER_STATE} of {manifest.stage} of iteration {manifest.iteration} "
            f"({manifest.artifact_id}) was not committed (retention.optimizer_every)"
        )
        raise StateNotKept(f"{fact}.", manifest.artifact_id, fact)
    # A trainer may read it in a later stage.
    parent = call.resources.store.staging_folder
    folder = call.resources.keep(f"state of {manifest.artifact_id}", lambda: StagingFolder(parent))
    holder.save(folder.path)
    holder.close()
    return folder.path


@contextmanager
def borrowed_trainer(call: StageCall[TrainingT]) -> Iterator[interface.Trainer]:
    """The trainer of the checkpoint among the stage's inputs, to read its policy without changing it: the
    next stage that trains continues with it."""
    with open_trainer(call) as trainer:
        yield trainer
        loaded_policies(call).put(
            checkpoints.checkpoint_parts(call.inputs).checkpoint_id,
            trainer.trained_policy(),
            _carried(call.settings, trainer),
            sole=checkpoints.lacks_state(call.inputs[checkpoints.CHECKPOINT].manifest),
        )


def other_policy(
    call: StageCall[TrainingT], name: str
) -> checkpoints.StoredPolicy | Literal["own_base"] | None:
    """Where the policy of another checkpoint is, the input `name` of the stage; the base of an adapter is in
    memory already. None without such an input."""
    if name not in call.inputs:
        return None
    other, base = call.inputs[name], call.inputs.get(checkpoints.BASE)
    inputs = {checkpoints.CHECKPOINT: other}
    if base is not None:
        if base.manifest.artifact_id == other.manifest.artifact_id:
            return "own_base"
        inputs[checkpoints.BASE] = base
    return checkpoints.StoredPolicy(checkpoints.checkpoint_parts(inputs), call.settings.weights)


def _carried(
    settings: TrainingSettings, trainer: interface.Trainer
) -> tuple[Hashable, interface.Trainer] | None:
    """The settings with which a trainer can continue, as its key, and the trainer; None where moments are not
    carried, or its processes end with the stage."""
    key = (settings.trainer, settings.optimizer, settings.weights)
    return (key, trainer) if settings.optimizer.carry_state and trainer.lasts() else None


def policy_here(call: StageCall[TrainingT]) -> LoadedPolicy:
    """The policy of the checkpoint among the stage's inputs, in this process."""
    interface.make_room(call.resources.kept)
    return loaded_policies(call).get(checkpoints.checkpoint_parts(call.inputs), call.settings.weights)


def loaded_policies(call: StageCall[Any]) -> checkpoints.LoadedPolicies:
    return call.resources.keep("policies", checkpoints.LoadedPolicies)


def count_steps(call: StageCall[Any], total: int) -> Callable[[int, float], None]:
    """A function to call after every optimizer step: it shows the loss, and ends a run that was stopped."""
    call.progress.begin(total, "steps")

    def on_step(_step: int, loss: float) -> None:
        call.progress.raise_if_stopped()
        call.progress.advance(1, loss=loss)

    return on_step


def reinforce(
    call: StageCall[TrainingT],
    work: interface.Reinforcement,
    rows: Sequence[Trajectory],
    counters: Mapping[str, int],
    old: Collection[str] = (),
    distilled: Sequence[SftRow] = (),
) -> StageResult:
    """Train on the sequences of `rows` and those of `distilled`; write the new checkpoint and the training
    record.

    Args:
        counters: what the stage itself has counted.
        old: ids of the rows that have no sequence because of their age.
        distilled: rows of a dataset, whose sequences follow in the work. Sequences after these have no
            record: they train the environment's words in trajectories that have one.
    """
    observed = sum(sequence.role == OBSERVED for sequence in work.sequences)
    own = len(work.sequences) - len(distilled) - observed
    end = own + len(distilled)
    with open_trainer(call) as trainer:
        metrics = trainer.reinforce(work, count_steps(call, work.update.optimizer_steps))
        if observed:
            trained = sum(each.trained_tokens for each in metrics.records[end:])
            counters = {**counters, "observed_sequences": observed, "observed_tokens": trained}
        record = chain(
            reinforcement_rows(rows, work.sequences[:own], metrics.records[:own], old),
            supervised_rows(distilled, work.sequences[own:end], metrics.records[own:end]),
        )
        return training_result(call, trainer, metrics, record, counters)


def training_result(
    call: StageCall[TrainingT],
    trainer: interface.Trainer,
    metrics: UpdateMetrics | FineTuneMetrics,
    record: Iterable[Mapping[str, Any]],
    counters: Mapping[str, int] | None = None,
) -> StageResult:
    """Write the new checkpoint and the training record, and keep its policy and the trainer for the next
    stage.

    A kept trainer has the state that it would read from the checkpoint, or that the checkpoint lacks where
    `call.state` is false. None is kept where the configuration says that moments are not carried from stage
    to stage; then the checkpoint always has the state.

    Args:
        record: the rows of the training record.
        counters: what the stage itself has counted.
    """
    from storage.tables.training import TRAINING_RECORD_FILE, write_training_record

    carried = _carried(call.settings, trainer)
    state = call.state or carried is None
    late: Mapping[str, int] = {}
    if state and call.may_write_later:
        late = trainer.begin_state(call.folder, call.resources.late_files)
    trainer.save(call.folder, state=state and not late)
    recorded = write_training_record(call.folder / TRAINING_RECORD_FILE, record)
    policy = trainer.trained_policy()
    if policy is not None:
        _put_into_memory(call, policy)
    loaded_policies(call).put(call.artifact_id, policy, carried, sole=not state)
    return StageResult(
        counters={**metrics.counters(), **(counters or {})},
        metrics=metrics.metrics(),
        rows={TRAINING_RECORD_FILE: recorded},
        policy_version=call.artifact_id,
        determinism=trainer.determinism,
        environment={"attention": metrics.attention},
        # Without a step the weights, their decay included, and the moments are those of the input.
        unchanged="" if metrics.optimizer_steps else checkpoints.CHECKPOINT,
        late=late,
    )


def _put_into_memory(call: StageCall[Any], policy: LoadedPolicy) -> None:
    """Put the weights of the new checkpoint where an engine on this machine takes them from, if there is such
    an engine. An adapter is small, and is read from its file."""
    from erl_pipeline.engines.probe_file import PROBE_FILE
    from erl_pipeline.engines.weights_in_memory import WeightsWriter, memory_is_usable
    from erl_pipeline.policies.adapters import has_adapter

    worker = call.resources.settings
    if not worker.weights_in_memory or not memory_is_usable() or has_adapter(policy.model):
        return
    writer = call.resources.keep("weights in memory", lambda: WeightsWriter(worker.store_uri, worker.run))
    not_put = writer.put(
        call.artifact_id,
        call.folder / PROBE_FILE,
        policy.model.get_memory_footprint(return_buffers=False),
        policy.model.save_pretrained,
    )
    if not_put and not writer.warned:
        writer.warned = True
        call.progress.warn(f"the sampler will read files, not memory (engine.transfer): {not_put}")


_NEVER_TRAINED = SequenceRecord(weight=0.0, not_trained="never_trained")
_NOT_SCORED = {reason: SequenceRecord(weight=0.0, not_trained=reason) for reason in NOT_SCORED}
_TOO_OLD = SequenceRecord(weight=0.0, not_trained="too_old")


def reinforcement_rows(
    trajectories: Sequence[Trajectory],
    sequences: Sequence[TrainingSequence],
    records: Sequence[SequenceRecord],
    old: Collection[str] = (),
) -> Iterator[Mapping[str, Any]]:
    """A row for each trajectory; the first three arguments are in the same order. Trajectories of roles that
    are never trained, those that were not scored, and those whose ids are in `old` have neither sequence
    nor record, and get a row that says so.

    Raises ValueError where the trainer reported more or fewer than it was given.
    """
    from storage.tables.training import REINFORCEMENT

    # Matched by position: a trajectory that is replayed can occur twice.
    given = [row for row in trainable(trajectories) if row.trajectory_id not in old]
    trained = iter(list(zip(given, sequences, records, strict=True)))
    for row in trajectories:
        advantage, record = None, _NEVER_TRAINED
        if row.trajectory_id in old:
            record = _TOO_OLD
        elif is_trainable(row):
            _, sequence, record = next(trained)
            advantage = sequence.advantage
        elif row.role not in NEVER_TRAINED:
            record = _NOT_SCORED[cast(NotScored, row.finish_reason)]
        yield {**_record_row(row, record), "kind": REINFORCEMENT, "advantage": advantage, "role": row.role}


def supervised_rows(
    rows: Sequence[SftRow], sequences: Sequence[TrainingSequence], records: Sequence[SequenceRecord]
) -> Iterator[Mapping[str, Any]]:
    """A row for each row of a dataset; all arguments are in the same order. Raises as
    `reinforcement_rows`."""
    from storage.tables.training import SUPERVISED

    for row, sequence, record in zip(rows, sequences, records, strict=True):
        yield {**_record_row(row, record), "kind": SUPERVISED, "advantage": None, "role": sequence.role}


_OF_EVERY_ROW = ("trajectory_id", "episode_id", "task_id", "task_type", "iteration", "policy_version")
_OF_ONE_KIND = ("sft_row_id", "group_id", "subgroup", "reward", "success")


def _record_row(row: Trajectory | SftRow, record: SequenceRecord) -> dict[str, Any]:
    """The columns that are those of a trained row, None where rows of its kind have none, and the record."""
    of_every_row = {name: getattr(row, name) for name in _OF_EVERY_ROW}
    return {**vars(record), **of_every_row, **{name: getattr(row, name, None) for name in _OF_ONE_KIND}}
