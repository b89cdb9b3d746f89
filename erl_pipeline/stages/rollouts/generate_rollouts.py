"""The stages that generate rollouts: shard by shard, and the list of an iteration's shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.config.rollouts import EpisodeConfig
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.names import GENERATED, MEMORY, TASKS, TRAINING, TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import (
    SIGNAL_GROUPS,
    count_parts,
    count_rollouts,
    part_rates,
    signal_groups,
    success_rates,
)
from erl_pipeline.stages.rollouts.playing import (
    PlaySettings,
    play_settings,
    play_with_checkpoint,
    write_beside_attempts,
)
from erl_pipeline.stages.rollouts.select_tasks import plan_selection
from erl_pipeline.stages.tasks.draw_tasks import SAMPLES, draw_tasks, planned_samples
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks, read_weights
from erl_pipeline.stages.training.replay.plan import plan_replay
from storage.errors import ConfigError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.interface import Task
    from erl_pipeline.plan.sources import Sources

RETRY_SECONDS = (1.0, 5.0)

_EARLIER = "earlier-"
"""Prefix of the inputs through which a shard that may not be needed gets those before it."""


class RolloutSettings(Settings):
    """What a shard's episodes depend on, besides the checkpoint, the tasks and the memory."""

    play: PlaySettings
    rollouts: EpisodeConfig
    """Without the selection of tasks: where that is not uniform, the drawn tasks are an input."""


class ListSettings(Settings):
    """Nothing: the shards are inputs."""


_NOTHING = ListSettings()


def plan_shards(
    planner: Planner,
    state: RunState,
    iteration: int,
    *,
    memory: str | None,
    samples: str | None = None,
) -> str:
    """Plan an iteration's episodes, in shards, and the list of the shards; returns the id of the list.

    Args:
        memory: the memory version to retrieve from; None for no memory.
        samples: the artifact that says which tasks are played and how often
            (`erl_pipeline.stages.tasks.draw_tasks`); None for what `replay` selects, and without it
            `group_size` episodes of each task that is drawn as `rollouts.selection` says.

    Raises ConfigError where `samples` are given and `rollouts.refill` asks for more tasks than these.
    """
    rollouts = planner.config.rollouts
    inputs = {**state.model_inputs(POLICY), TASKS: state.tasks}
    if memory is not None:
        inputs[MEMORY] = memory
    if samples is None:
        samples = plan_replay(planner, state, iteration)
    if samples is not None and rollouts.refill > 1:
        raise ConfigError(
            f"rollouts.refill: {rollouts.refill}; the tasks of an iteration are chosen beforehand, by replay "
            "or the method; allowed with it is 1"
        )
    if samples is None:
        samples = plan_selection(
            planner, state, iteration, lambda earlier: planner.planned(GENERATE_ROLLOUTS, earlier)
        )
    if samples is not None:
        inputs[SAMPLES] = samples
    shards: list[str] = []
    for shard in range(rollouts.shards * rollouts.refill):
        earlier = shards if shard >= rollouts.shards else []
        shards.append(
            planner.add(
                ROLLOUT_SHARD,
                {**inputs, **{f"{_EARLIER}{number:04d}": id_ for number, id_ in enumerate(earlier)}},
                iteration=iteration,
                seed=planner.config.seed,
                index={"iteration": iteration, "shard": shard},
                key=f"{shard:04d}",
            )
        )
    listed = {f"shard-{number:04d}": shard for number, shard in enumerate(shards)}
    return planner.add(GENERATE_ROLLOUTS, listed, iteration=iteration, settings=_NOTHING)


def _generate(call: StageCall[RolloutSettings]) -> StageResult:
    """Generate one shard's episodes and write their trajectories."""
    from storage.tables.trajectories import write_trajectories

    rollouts = call.settings.rollouts
    iteration, shard = call.index["iteration"], call.index["shard"]
    if _found_groups(call) >= rollouts.tasks_per_iteration:
        return _not_needed(call)
    tasks = read_tasks(call.inputs[TASKS], TRAINING, call.resources)
    weights = read_weights(call.inputs[TASKS])
    if SAMPLES in call.inputs:
        counts = planned_samples(call.inputs[SAMPLES], tasks)
    else:
        drawn = draw_tasks(tasks, rollouts.drawn_tasks, call.seed, iteration, weights)
        counts = [(task, rollouts.group_size) for task in drawn]

    def of_shard(number: int) -> tuple[list[Task], list[range]]:
        part = counts
        if rollouts.refill > 1:
            time, number = divmod(number, rollouts.shards)
            part = counts[time * rollouts.tasks_per_iteration : (time + 1) * rollouts.tasks_per_iteration]
        mine = part[number * rollouts.tasks_per_shard : (number + 1) * rollouts.tasks_per_shard]
        return [task for task, _ in mine], [range(count) for _, count in mine]

    mine, samples = of_shard(shard)
    call.progress.begin(sum(map(len, samples)), "episodes")
    play = call.settings.play
    if play.retrieval is not None:
        withheld = play.retrieval.withheld_at(iteration, rollouts.group_size)
        play = play.model_copy(update={"retrieval": play.retrieval.model_copy(update={"withhold": withheld})})
    played = play_with_checkpoint(
        call,
        play,
        mine,
        samples,
        iteration=iteration,
        run_seed=call.seed,
        must_fit=tasks if (iteration, shard) == (1, 0) else (),
        following={each.artifact_id: of_shard(each.index["shard"]) for each in call.following},
    )
    rows = {
        TRAJECTORIES: write_trajectories(call.folder / TRAJECTORIES, played.rows),
        **write_beside_attempts(call.folder, [played]),
    }
    further = {"further_sequences": len(played.further)} if played.further else {}
    memory = call.inputs.get(MEMORY)
    return StageResult(
        counters={
            **count_rollouts(played.rows),
            **(count_parts(played.rows) if weights else {}),
            **further,
            **({SIGNAL_GROUPS: signal_groups(played.rows)} if rollouts.refill > 1 else {}),
            **played.counters,
        },
        rows=rows,
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        memory_version=None if memory is None else memory.manifest.artifact_id,
        determinism=played.determinism,
        environment=played.environment,
    )


def _found_groups(call: StageCall[RolloutSettings]) -> int:
    """Groups with a signal in the shards before one that may not be needed; 0 for one that always is."""
    return sum(
        int(artifact.manifest.counters[SIGNAL_GROUPS])
        for name, artifact in call.inputs.items()
        if name.startswith(_EARLIER)
    )


def _not_needed(call: StageCall[RolloutSettings]) -> StageResult:
    """Write a shard without episodes."""
    from storage.tables.trajectories import write_trajectories

    memory = call.inputs.get(MEMORY)
    return StageResult(
        counters={**count_rollouts([]), SIGNAL_GROUPS: 0},
        rows={TRAJECTORIES: write_trajectories(call.folder / TRAJECTORIES, [])},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        memory_version=None if memory is None else memory.manifest.artifact_id,
    )


def _list(call: StageCall[ListSettings]) -> StageResult:
    """Add up the counts of the shards, and compare retries with first attempts over all of them; the
    trajectories stay in the shards. Raises `EnvironmentFailed` where too many episodes could not be
    scored."""
    from erl_pipeline.stages.rollouts.counts import gain_metrics, graded_rewards, require_scored
    from storage.tables.trajectories import scan_trajectories

    files = [call.inputs[name].path(TRAJECTORIES) for name in sorted(call.inputs)]
    counters: dict[str, int] = {}
    manifests = [shard.manifest for shard in call.inputs.values()]
    for manifest in manifests:
        for name, value in manifest.counters.items():
            counters[name] = counters.get(name, 0) + int(value)
    require_scored(counters, scan_trajectories(files))
    return StageResult(
        counters=counters,
        metrics={
            **success_rates(counters),
            **part_rates(counters),
            **graded_rewards(scan_trajectories(files)),
            **gain_metrics(scan_trajectories(files)),
        },
        policy_version=manifests[0].policy_version,
        memory_version=manifests[0].memory_version,
    )


GENERATE_ROLLOUTS = Stage(
    name=GENERATED,
    version=4,
    output="rollouts",
    settings=ListSettings,
    compute=_list,
)


def _slice(config: RunConfig, _sources: Sources) -> RolloutSettings:
    return RolloutSettings(play=play_settings(config), rollouts=config.rollouts)


ROLLOUT_SHARD = Stage(
    name="rollout_shard",
    version=13,
    output="trajectories",
    settings=RolloutSettings,
    compute=_generate,
    slice=_slice,
    code=("environment", "method", "engine"),
    needs="sampling",
    retry_seconds=RETRY_SECONDS,
    begins_next=True,
    part_of=GENERATE_ROLLOUTS.name,
)
