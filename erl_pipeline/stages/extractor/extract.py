"""The stage in which the extractor reads an iteration's episodes and writes experience."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from erl_pipeline.environments import prompt_format
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.extractor.extractor import (
    AskingSettings,
    asking_settings,
    experience_format,
    lessons_of,
    opened_extractor,
)
from erl_pipeline.stages.extractor.names import CALLS_FILE, EXTRACTION, FIRST_ATTEMPT
from erl_pipeline.stages.memory import seen_entries
from erl_pipeline.stages.names import ROLLOUTS, TRAJECTORIES, trajectory_files
from erl_pipeline.stages.rollouts.counts import count_tokens
from erl_pipeline.stages.rollouts.generate_rollouts import RETRY_SECONDS
from erl_pipeline.stages.rollouts.single_turn import SingleTurnPrompt
from storage.artifacts.recipe import derive_seed
from storage.tables.scored import is_scored

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources
    from storage.tables.trajectories import Trajectory
    from storage.texts import StorableTexts


@dataclass(frozen=True)
class ExtractionRequest:
    """A request to the extractor about one episode. `lessons` are the ids of the entries that the episode
    saw, in the order in which they are shown."""

    request_id: str
    episode: Trajectory
    record: prompt_format.EpisodeRecord
    lessons: tuple[str, ...]


def requests_of(
    trajectories: Sequence[Trajectory], texts: Mapping[str, str], artifact_id: str
) -> Iterator[ExtractionRequest]:
    """A request for every attempt that was scored, whether it succeeded or not.

    Args:
        texts: entry id -> text, of all entries that attempts saw.
        artifact_id: id of the artifact that will hold the requests.
    """
    from erl_pipeline.episodes.context import opening_messages
    from storage.tables.trajectories import trajectory_id

    for row in trajectories:
        opening = opening_messages(row)
        if row.role != FIRST_ATTEMPT or not opening or not is_scored(row):
            continue
        lessons = tuple(reversed(row.memory_entry_ids))
        record = prompt_format.EpisodeRecord(
            opening=opening,
            turns=json.loads(row.messages)[len(opening) :],
            lessons=[texts[entry_id] for entry_id in lessons],
            feedback=row.feedback,
            reward=row.reward,
        )
        request_id = trajectory_id(artifact_id, row.task_id, row.sample_index, EXTRACTION, 0)
        yield ExtractionRequest(request_id, row, record, lessons)


def read_answer(
    text: str,
    request: ExtractionRequest,
    prompts: prompt_format.ExperienceFormat,
    max_operations: int,
    texts: StorableTexts,
) -> Sequence[prompt_format.ExperienceOperation] | None:
    """The operations of an answer; None where it is ill-formed, or has too many. `texts` counts the texts in
    which something is replaced."""
    operations = prompts.read_extraction(text, len(request.lessons))
    if operations is None or len(operations) > max_operations:
        return None
    return [replace(each, text=texts.text(each.text)) for each in operations]


def call_row(
    request: ExtractionRequest,
    operations: Sequence[prompt_format.ExperienceOperation] | None,
    extractor_version: str,
    prompts: prompt_format.ExperienceFormat,
) -> Mapping[str, Any]:
    row, done = request.episode, operations or ()
    return {
        "request_id": request.request_id,
        "extractor_version": extractor_version,
        "source_trajectory_id": row.trajectory_id,
        "task_type": row.task_type,
        "environment": row.environment,
        "situation": prompts.situation(request.record),
        "feedback": row.feedback,
        "seen_entry_ids": list(request.lessons),
        "parse_ok": operations is not None,
        "operations": [each.operation for each in done],
        "texts": [each.text for each in done],
        "replaced_entry_ids": [[request.lessons[place] for place in each.lessons] for each in done],
        "produced_entry_ids": [
            "" if each.operation == "return" else f"m-{request.request_id}{f'-{place}' if place else ''}"
            for place, each in enumerate(done)
        ],
    }


def _compute(call: StageCall[AskingSettings]) -> StageResult:
    """Ask about every episode; write the answers as trajectories, and their operations as a table."""
    from erl_pipeline.stages.extractor.tables import EXTRACTOR_CALLS
    from storage.tables.parquet import write_rows
    from storage.tables.trajectories import read_trajectories, write_trajectories

    settings = call.settings
    attempts = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))
    seen = seen_entries(call, settings.embedding_model, attempts)
    texts_seen = {entry_id: entry.text for entry_id, entry in seen.items()}
    requests = list(requests_of(attempts, texts_seen, call.artifact_id))
    prompts = experience_format(settings)
    extractor = opened_extractor(call, settings)
    call.progress.begin(len(requests), "requests")
    asked = [_prompt(call, request, prompts) for request in requests]
    answers = extractor.ask(asked)
    call.progress.advance(len(requests))
    trajectories: list[Trajectory] = []
    calls: list[Mapping[str, Any]] = []
    for request, prompt, answer in zip(requests, asked, answers, strict=True):
        if answer is None:
            continue
        operations = read_answer(answer.text, request, prompts, settings.max_operations, extractor.texts)
        text = None if operations is None else "\n".join(each.text for each in operations if each.text)
        trajectories.append(extractor.trajectory(prompt, answer, text))
        calls.append(call_row(request, operations, extractor.version, prompts))
    write_trajectories(call.folder / TRAJECTORIES, trajectories)
    write_rows(call.folder / CALLS_FILE, calls, EXTRACTOR_CALLS)
    counts = _counts(requests, calls)
    return StageResult(
        counters={
            **counts,
            "requests_without_room": answers.count(None),
            "episodes_left_out": sum(row.role == FIRST_ATTEMPT for row in attempts) - len(requests),
            **count_tokens(trajectories),
            **extractor.texts.counters(),
        },
        metrics=_shares(counts),
        rows={TRAJECTORIES: len(trajectories), CALLS_FILE: len(calls)},
        policy_version=extractor.version,
        determinism=extractor.determinism,
    )


def _prompt(
    call: StageCall[AskingSettings], request: ExtractionRequest, prompts: prompt_format.ExperienceFormat
) -> SingleTurnPrompt:
    row = request.episode
    return SingleTurnPrompt(
        request_id=request.request_id,
        messages=prompts.extraction(request.record),
        seed=derive_seed(call.seed, row.iteration, row.task_id, row.sample_index, EXTRACTION),
        role=EXTRACTION,
        episode_id=row.episode_id,
        parent_trajectory_id=row.trajectory_id,
        iteration=row.iteration,
        task_id=row.task_id,
        task_type=row.task_type,
        environment=row.environment,
        sample_index=row.sample_index,
        feedback=row.feedback,
        task_payload=row.task_payload,
    )


def _counts(requests: Sequence[ExtractionRequest], calls: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    done = Counter(name for row in calls for name in row["operations"])
    lessons = {request.request_id: set(request.record.lessons) for request in requests}
    return {
        "requests": len(calls),
        "parse_failures": sum(not row["parse_ok"] for row in calls),
        **{f"operations_{name}": done[name] for name in ("add", "update", "return")},
        "texts": sum(bool(text) for row in calls for text in row["texts"]),
        "copies": sum(text in lessons[row["request_id"]] for row in calls for text in row["texts"] if text),
    }


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Shares of the operations, of ill-formed answers, and of texts that are copies of a lesson."""
    names = ("add", "update", "return")
    done = sum(counts[f"operations_{name}"] for name in names)
    shares = {f"share_{name}": counts[f"operations_{name}"] / done for name in names if done}
    if counts["requests"]:
        shares["parse_failure_rate"] = counts["parse_failures"] / counts["requests"]
    if counts["texts"]:
        shares["copy_rate"] = counts["copies"] / counts["texts"]
    return shares


def _slice(config: RunConfig, _sources: Sources) -> AskingSettings:
    return asking_settings(config, lessons_of(config).settings.extractor.max_tokens)


EXTRACT_EXPERIENCE = Stage(
    name="extract_experience",
    version=7,
    output="trajectories",
    settings=AskingSettings,
    compute=_compute,
    slice=_slice,
    code=("environment", "engine"),
    needs="sampling",
    retry_seconds=RETRY_SECONDS,
)
