"""The evaluation of held-out first attempts that see experience, next to the evaluation without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.methods.complementary.settings import ComplementaryConfig, ComplementaryEpisodeSettings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.evaluation.evaluate import EVALUATION
from erl_pipeline.stages.names import HELD_OUT, MEMORY, TASKS
from erl_pipeline.stages.rollouts.counts import count_rollouts, replaced_texts
from erl_pipeline.stages.rollouts.playing import PlaySettings, play_settings, play_with_checkpoint
from erl_pipeline.stages.tasks.prepare_tasks import read_tasks

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources


class ExperienceEvaluationSettings(Settings):
    """What the evaluation depends on, besides the checkpoint, the tasks and the memory."""

    play: PlaySettings


def _slice(config: RunConfig, _sources: Sources) -> ExperienceEvaluationSettings:
    """As in training, but nothing is left to chance: no attempt is free, and the best entry is shown."""
    play = play_settings(config)
    assert isinstance(config.method, ComplementaryConfig)
    assert isinstance(play.episode, ComplementaryEpisodeSettings)
    assert play.retrieval is not None
    episode = play.episode.model_copy(update={"dropout": 0.0})
    retrieval = play.retrieval.model_copy(update={"withhold": 0.0, "top_k": play.episode.top_k})
    return ExperienceEvaluationSettings(
        play=play.model_copy(update={"episode": episode, "retrieval": retrieval})
    )


def _evaluate(call: StageCall[ExperienceEvaluationSettings]) -> StageResult:
    """Make a greedy attempt at every task, with experience in its prompt; write the rows and score them."""
    from erl_pipeline.stages.evaluation.scores import score_evaluation
    from storage.tables.trajectories import scan_trajectories, write_trajectories

    tasks = read_tasks(call.inputs[TASKS], HELD_OUT, call.resources)
    call.progress.begin(len(tasks), "episodes")
    played = play_with_checkpoint(
        call,
        call.settings.play,
        tasks,
        range(1),
        iteration=call.index["iteration"],
        run_seed=call.seed,
        temperature=0.0,
        first_only=True,
    )
    count = write_trajectories(call.folder / EVALUATION, played.rows)
    scores = score_evaluation(scan_trajectories([call.folder / EVALUATION]))
    return StageResult(
        counters={
            **count_rollouts(played.rows),
            **replaced_texts([played]),
            "with_entries": sum(bool(row.memory_entry_ids) for row in played.rows),
        },
        metrics=scores.metrics(),
        rows={EVALUATION: count},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        memory_version=call.inputs[MEMORY].manifest.artifact_id,
        determinism=played.determinism,
        environment=played.environment,
    )


EVALUATE_WITH_EXPERIENCE = Stage(
    name="evaluate_with_experience",
    version=10,
    output="evaluation",
    settings=ExperienceEvaluationSettings,
    compute=_evaluate,
    slice=_slice,
    code=("environment", "method", "engine"),
    needs="sampling",
)
