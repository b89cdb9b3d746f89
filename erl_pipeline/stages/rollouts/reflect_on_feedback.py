"""The stage in which a served policy looks back on conversations that people did not like, or spoke about."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.base import Settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.messages import without_thoughts
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import ROLLOUTS, TRAJECTORIES, trajectory_files
from erl_pipeline.stages.rollouts.generate_rollouts import RETRY_SECONDS
from erl_pipeline.stages.rollouts.playing import PlaySettings, play_settings
from erl_pipeline.stages.rollouts.single_turn import SingleTurnPrompt, SingleTurnSampler
from storage.artifacts.recipe import derive_seed
from storage.tables.scored import is_scored

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.artifacts.artifact import Artifact
    from storage.artifacts.store import ArtifactStore
    from storage.tables.trajectories import Trajectory

ASKED = "asked"
"""What a reflection's `task_payload` holds: the user's last words before the policy first spoke."""


class ReflectSettings(Settings):
    """What reflections on served conversations depend on, besides these and the checkpoint."""

    play: PlaySettings
    shown_to: Literal["user", "run"]
    """Whose conversations get the notes: those of the same user, or all of the run."""


def _slice(config: RunConfig, _sources: Sources) -> ReflectSettings:
    assert config.served_feedback.reflect is not None
    return ReflectSettings(play=play_settings(config), shown_to=config.served_feedback.reflect)


def _compute(call: StageCall[ReflectSettings]) -> StageResult:
    """Write a reflection for each such conversation. One whose user is not known, where notes are the user's
    alone, and one that leaves no room in the context have none, and are counted."""
    from storage.serving.users import user_task_type
    from storage.tables.trajectories import read_trajectories, trajectory_id, write_trajectories

    play, store = call.settings.play, call.resources.store
    method = plugins("methods")[play.episode.type].value
    spec = method.reflecting(play.episode)
    limits = method.role_limits(play.episode, play.sampling)[spec.reflection]
    wanted = to_reflect_on(read_trajectories(trajectory_files(call.inputs[ROLLOUTS], store)))
    users, corrected = _beside(call.inputs[ROLLOUTS], store)
    by_user = call.settings.shown_to == "user"
    prompts = []
    for row in wanted:
        user = users.get(row.trajectory_id, "")
        if by_user and not user:
            continue
        instructions, report = conversation_report(row, corrected.get(row.trajectory_id, ()))
        prompts.append(
            SingleTurnPrompt(
                request_id=trajectory_id(call.artifact_id, row.trajectory_id),
                messages=spec.prompts.reflection(instructions, report, []),
                seed=derive_seed(call.seed, row.trajectory_id),
                role=spec.reflection,
                episode_id=row.episode_id,
                parent_trajectory_id=row.trajectory_id,
                iteration=row.iteration,
                task_id=row.task_id,
                task_type=user_task_type(user) if by_user else row.task_type,
                environment=row.environment,
                sample_index=row.sample_index,
                revision_index=1,
                feedback=report.feedback,
                task_payload=json.dumps({ASKED: report.observation}, ensure_ascii=False),
            )
        )
    policy = SingleTurnSampler(
        call, POLICY, play.weights, play.engine, limits.max_new_tokens, limits.temperature
    )
    call.progress.begin(len(prompts), "reflections")
    answers = policy.ask(prompts)
    call.progress.advance(len(prompts))
    rows = [
        policy.trajectory(prompt, answer, spec.prompts.read_reflection(answer.text))
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer is not None
    ]
    return StageResult(
        counters={
            "reflections": len(rows),
            "parse_failures": sum(row.text is None for row in rows),
            "without_user": len(wanted) - len(prompts),
            "without_room": len(prompts) - len(rows),
            "generated_tokens": sum(len(row.response_token_ids) for row in rows),
            **policy.texts.counters(),
        },
        rows={TRAJECTORIES: write_trajectories(call.folder / TRAJECTORIES, rows)},
        policy_version=policy.version,
        determinism=policy.determinism,
    )


REFLECT_ON_FEEDBACK = Stage(
    name="reflect_on_feedback",
    version=4,
    output="trajectories",
    settings=ReflectSettings,
    compute=_compute,
    slice=_slice,
    code=("method", "engine"),
    needs="sampling",
    retry_seconds=RETRY_SECONDS,
)


def plan_reflections(planner: Planner, begun: RunState, iteration: int, rollouts: str) -> None:
    """Plan reflections on stored traffic by the checkpoint with which training begins."""
    planner.add(
        REFLECT_ON_FEEDBACK,
        {ROLLOUTS: rollouts, **begun.model_inputs(POLICY)},
        iteration=iteration,
        seed=derive_seed(planner.config.seed, iteration, REFLECT_ON_FEEDBACK.name),
    )


def to_reflect_on(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """Rated conversations that did not succeed, or about which somebody said something."""
    return [row for row in rows if is_scored(row) and (not row.success or row.feedback)]


def conversation_report(row: Trajectory, corrected: Sequence[str]) -> tuple[str, AttemptReport]:
    """A conversation as the prompt of a reflection shows it: what was said before the policy first spoke, and
    what came then and afterwards. `corrected`: what answers should have been."""
    from erl_pipeline.episodes.context import opening_messages

    opening = opening_messages(row)
    turns = [without_thoughts(each) for each in json.loads(row.messages)[len(opening) :]]
    said = [row.feedback, *(f"It should have been: {text}" for text in corrected)]
    report = AttemptReport(
        observation=opening[-1]["content"] if opening else "",
        trace="\n".join(f"{each['role']}: {each['content']}" for each in turns),
        feedback="\n".join(filter(None, said)) or "none in words",
        reward=row.reward,
    )
    return "\n".join(each["content"] for each in opening), report


def _beside(rollouts: Artifact, store: ArtifactStore) -> tuple[Mapping[str, str], Mapping[str, list[str]]]:
    """Row -> its user, and row -> corrected answers, as far as they were sealed."""
    from storage.serving.collected import SERVED_CORRECTIONS, SERVED_TRAJECTORIES, collected_rows

    found = collected_rows(rollouts, store, SERVED_TRAJECTORIES)
    users = {row["trajectory_id"]: row["user"] for row in found}
    corrected: defaultdict[str, list[str]] = defaultdict(list)
    for row in collected_rows(rollouts, store, SERVED_CORRECTIONS):
        if row["text"]:
            corrected[row["trajectory_id"]].append(row["text"])
    return users, corrected
