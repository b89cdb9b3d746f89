"""The stage that evaluates a checkpoint on streams of tasks in held-out realms, with notes and without.

In a held-out realm the weights cannot know what its words mean: only a note can help. Each stream is a series
of tasks of one realm, with a memory that begins empty and keeps the latest reflection that led to success. It
is compared with no note, the realm's true note and another realm's. The policy is frozen, and always takes
the most probable token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.base import Settings
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.stream import StreamConfig
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.evaluation.stream_tasks import stream_tasks
from erl_pipeline.stages.rollouts.counts import count_rollouts, replaced_texts
from erl_pipeline.stages.rollouts.playing import OwnEpisodes, PlaySettings, play_episodes, play_settings
from erl_pipeline.stages.tasks.prepare_tasks import located
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.limits import RoleLimits
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources

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


def plan_stream(planner: Planner, state: RunState, iteration: int, *, on_request: bool = False) -> str:
    """Plan the evaluation of an iteration's checkpoint; returns its id.

    Args:
        on_request: somebody asked for it, outside the training.
    """
    stage = EVALUATE_STREAM_ON_REQUEST if on_request else EVALUATE_STREAM
    return planner.add(
        stage,
        state.model_inputs(POLICY),
        iteration=iteration,
        seed=derive_seed(planner.config.seed, stage.name),
        index={"iteration": iteration},
    )


def _slice(config: RunConfig, sources: Sources) -> StreamEvaluationSettings:
    assert config.evaluation.stream is not None
    plugin = plugins("environments")[config.environment.type].value
    return StreamEvaluationSettings(
        # Nothing is retrieved from a memory: what a stream remembers is passed in as it is.
        play=play_settings(config).model_copy(update={"retrieval": None}),
        files={
            name: sources.files[str(path)]
            for name, path in plugin.dependencies.files(config.environment).items()
        },
        run_seed=config.seed,
        stream=config.evaluation.stream,
    )


def _evaluate(call: StageCall[StreamEvaluationSettings]) -> StageResult:
    """Play all streams side by side, encounter by encounter; write rows and scores."""
    from erl_pipeline.episodes.encounters import EncounterRules, play_encounter
    from erl_pipeline.stages.evaluation.stream_scores import StreamMemory, score_encounter, stream_metrics
    from storage.tables.stream_scores import StreamScore, write_stream_scores
    from storage.tables.trajectories import Trajectory, write_trajectories
    from storage.texts import StorableTexts

    settings = call.settings
    play = settings.play
    prompts, limits = _episodes(play)
    environment = located(play.environment, settings.files, call.locations)
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
        played = play_episodes(
            call,
            play,
            [each.task for each in met],
            range(1),
            iteration=call.index["iteration"],
            run_seed=call.seed,
            own=OwnEpisodes(partial(play_encounter, rules=rules), limits),
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
    from erl_pipeline.episodes.encounters import STREAMED_ATTEMPT, STREAMED_REFLECTION, STREAMED_RETRY
    from erl_pipeline.episodes.limits import RoleLimits

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


EVALUATE_STREAM = Stage(
    name="evaluate_stream",
    version=4,
    output="evaluation",
    settings=StreamEvaluationSettings,
    compute=_evaluate,
    slice=_slice,
    code=("environment", "method"),
    needs="device",
)

EVALUATE_STREAM_ON_REQUEST = replace(EVALUATE_STREAM, name="evaluate_stream_on_request")
"""A streamed evaluation that somebody asked for, outside the training."""
