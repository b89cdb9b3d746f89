"""The stage that evaluates a checkpoint on streams of tasks in held-out realms, with notes and without.

In a held-out realm the weights cannot know what its words mean: only a note can help. Each stream is a series
of tasks of one realm, with a memory that begins empty and keeps the latest reflection that led to success. It
is compared with no note, the realm's true note and another realm's. The policy is frozen, and always takes
the most probable token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.base import Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.plan.plan import POLICY, Plan, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.runs.on_request import execute_on_request
from erl_pipeline.stages.rollouts.counts import count_rollouts, replaced_texts
from erl_pipeline.stages.rollouts.playing import (
    EpisodeOverride,
    PlaySettings,
    play_settings,
    play_with_checkpoint,
)
from erl_pipeline.stages.tasks.prepare_tasks import located
from realms.tasks import StreamConfig, stream_tasks
from storage.artifacts.recipe import derive_seed
from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import RoleLimits
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.plan.stage import StageOutcome
    from erl_pipeline.runs.driver import OpenRun

TRAJECTORIES = "streamed.parquet"
SCORES = "stream_scores.parquet"


class StreamEvaluationSettings(Settings):
    """What a streamed evaluation depends on, besides the checkpoint."""

    play: PlaySettings
    files: dict[str, str]
    """Setting of the environment that names a file -> SHA-256 of the file."""
    run_seed: int
    """The run's seed, which chooses what is hidden from the policy."""
    stream: StreamConfig


def evaluate_streams(
    opened: OpenRun, iteration: int, checkpoint_id: str, base_id: str | None, shape: StreamConfig
) -> StageOutcome:
    """Evaluate a checkpoint of a run on streams of tasks in held-out realms.

    Args:
        iteration: the checkpoint's iteration; 0 for the one with which the run began.
        base_id: the weights below the adapter, if the run trains one.

    Raises ConfigError if the run's environment has no realms, or if nothing has prompts for reflections.
    """
    config = opened.config
    _require_possible(config)
    planner = Planner(
        config, read_sources(config), external=frozenset({checkpoint_id, base_id or checkpoint_id})
    )
    bases = {} if base_id is None else {POLICY: base_id}
    state = RunState(tasks="", models={POLICY: checkpoint_id}, initial={}, bases=bases)
    stage = Stage(
        name="evaluate_stream_on_request",
        version=5,
        output="evaluation",
        settings=StreamEvaluationSettings,
        compute=_evaluate,
        slice=partial(_slice, shape),
        code=("environment", "method"),
        needs="sampling",
    )
    wanted = planner.add(
        stage,
        state.model_inputs(POLICY),
        iteration=iteration,
        seed=derive_seed(config.seed, stage.name),
        index={"iteration": iteration},
    )
    return execute_on_request(opened, Plan(tuple(planner.nodes), (state,)), wanted)


def _require_possible(config: RunConfig) -> None:
    if config.environment.type != "frozen_lake":
        raise ConfigError(f"environment.type: {config.environment.type} has no realms; frozen_lake has")
    method = plugins("methods")[config.method.type].value
    reflecting = method.reflecting(method.episode_settings(config.method))
    environment = plugins("environments")[config.environment.type].value
    if environment.prompts(config.environment) is None and reflecting is None:
        raise ConfigError(
            f"neither the environment nor method.type: {config.method.type} has prompts for reflections; "
            "evaluate a run of erl, or one with environment.format: compact"
        )


def _slice(shape: StreamConfig, config: RunConfig, sources: Sources) -> StreamEvaluationSettings:
    plugin = plugins("environments")[config.environment.type].value
    return StreamEvaluationSettings(
        # Nothing is retrieved from a memory: what a stream remembers is passed in as it is.
        play=play_settings(config).model_copy(update={"retrieval": None}),
        files={
            name: sources.files[str(path)]
            for name, path in plugin.dependencies.files(config.environment).items()
        },
        run_seed=config.seed,
        stream=shape,
    )


def _evaluate(call: StageCall[StreamEvaluationSettings]) -> StageResult:
    """Play all streams side by side, encounter by encounter; write rows and scores."""
    from realms.encounters import EncounterRules, play_encounter
    from realms.scores import (
        StreamMemory,
        StreamScore,
        score_encounter,
        stream_metrics,
        write_stream_scores,
    )
    from storage.tables.trajectories import Trajectory, write_trajectories
    from storage.texts import StorableTexts

    settings = call.settings
    play = settings.play
    prompts, limits = _episodes(play)
    environment = located(play.environment, settings.files, call.locations)
    assert isinstance(environment, FrozenLakeConfig)
    texts = StorableTexts()
    tasks = stream_tasks(environment, settings.run_seed, settings.stream, texts)
    call.progress.begin(len(tasks), "encounters")
    memory = StreamMemory()
    rows: list[Trajectory] = []
    scores: list[StreamScore] = []
    plays = []
    for encounter in sorted({each.encounter for each in tasks}):
        met = [each for each in tasks if each.encounter == encounter]
        notes = {each.task.task_id: memory.notes(each) for each in met}
        rules = EncounterRules(prompts, notes)
        played = play_with_checkpoint(
            call,
            play,
            [each.task for each in met],
            range(1),
            iteration=call.index["iteration"],
            run_seed=call.seed,
            own=EpisodeOverride(partial(play_encounter, rules=rules), limits),
        )
        by_task: dict[str, list[Trajectory]] = {}
        for row in played.rows:
            by_task.setdefault(row.task_id, []).append(row)
        for each in met:
            of_task = by_task[each.task.task_id]
            memory.remember(each, of_task)
            scores += score_encounter(each, notes[each.task.task_id], of_task)
        rows += played.rows
        plays.append(played)
    write_trajectories(call.folder / TRAJECTORIES, rows)
    write_stream_scores(call.folder / SCORES, scores)
    return StageResult(
        counters={"encounters": len(tasks), **count_rollouts(rows), **replaced_texts(plays, texts.replaced)},
        metrics=stream_metrics(scores),
        rows={TRAJECTORIES: len(rows), SCORES: len(scores)},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        determinism=plays[-1].determinism,
    )


def _episodes(play: PlaySettings) -> tuple[PromptFormat, Mapping[str, RoleLimits]]:
    """Prompts, and the lengths of attempts and reflections; the most probable token is taken each time.

    The lengths are those of the method. For a method without reflections all are that of `sampling`.
    """
    from erl_pipeline.episodes.context import RoleLimits
    from realms.encounters import STREAMED_ATTEMPT, STREAMED_REFLECTION, STREAMED_RETRY

    environment: Any = plugins("environments")[play.environment.type].value
    method: Any = plugins("methods")[play.episode.type].value
    reflecting = method.reflecting(play.episode)
    prompts = environment.prompts(play.environment)
    streamed = (STREAMED_ATTEMPT, STREAMED_REFLECTION, STREAMED_RETRY)
    if reflecting is None:
        return prompts, dict.fromkeys(streamed, RoleLimits(0.0, play.sampling.max_new_tokens))
    lengths = method.role_limits(play.episode, play.sampling)
    of_method = (reflecting.attempt, reflecting.reflection, reflecting.retry)
    by_role = {
        role: RoleLimits(0.0, lengths[like].max_new_tokens)
        for role, like in zip(streamed, of_method, strict=True)
    }
    return prompts or reflecting.prompts, by_role
