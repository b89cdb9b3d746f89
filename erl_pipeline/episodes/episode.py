"""One episode of ERL: attempt, gate, feedback, retrieval, reflection, second attempt (arXiv 2602.13949).

An episode is a generator. It yields what it needs (a turn of the policy, reflections from memory) and
is sent the answer, so that any number of episodes can be run in step by a batched engine, or each on
its own by a server. It returns its trajectories, the first attempt first.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.base import AttemptReport, Task, TextEnvironment
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.episodes.prompts import Message, PromptFormat
from erl_pipeline.episodes.requests import Answer, EpisodeSteps, Phase, ReflectionsWanted, TurnWanted, Wanted
from erl_pipeline.episodes.rows import (
    Attempt,
    EpisodeIdentity,
    Provenance,
    Reflection,
    attempt_row,
    reflection_row,
)
from storage.errors import InputError
from storage.memory.view import MemoryHit

_NO_ROOM = "The conversation reached the end of the policy's context before the attempt was over."


@dataclass(frozen=True)
class EpisodeRules:
    """What all episodes of a shard have in common."""

    retries: bool
    reflection: bool
    retrieval: bool
    max_revisions: int
    success_threshold: float
    temperature: float
    max_new_tokens: int
    max_reflection_tokens: int
    context_length: int
    end_token_ids: frozenset[int]


def run_episode(
    task: Task,
    sample_index: int,
    environment: TextEnvironment,
    prompts: PromptFormat,
    chat: ChatTokenizer,
    rules: EpisodeRules,
    provenance: Provenance,
) -> EpisodeSteps:
    """The steps of one episode on `task`, the `sample_index`-th of its group."""
    episode = EpisodeIdentity(task, sample_index, provenance)
    opening = prompts.attempt(environment.instructions, environment.reset(), [])
    first = yield from _attempt(environment, opening, chat, rules, episode, revision=0)
    rows = [attempt_row(episode, first, "first_attempt", revision=0, parent=None)]
    if not rules.retries:
        return rows
    latest = first
    for revision in range(1, rules.max_revisions + 1):
        if latest.success or latest.finish_reason == "context":
            break
        parent = rows[-1].trajectory_id
        if rules.reflection:
            reflection = yield from _reflect(
                latest.report,
                first.situation(latest.report.feedback),
                environment,
                prompts,
                chat,
                rules,
                episode,
                revision,
            )
            if reflection is None:
                break
            rows.append(reflection_row(episode, reflection, latest, revision, parent))
            if reflection.text is None:
                break
            parent = rows[-1].trajectory_id
            opening = prompts.attempt(environment.instructions, latest.report.observation, [reflection.text])
        else:
            opening = prompts.retry(environment.instructions, latest.report)
        latest = yield from _attempt(environment, opening, chat, rules, episode, revision)
        if rules.reflection:
            rows[-1] = replace(rows[-1], reward=latest.report.reward, success=latest.success)
        rows.append(attempt_row(episode, latest, "second_attempt", revision, parent))
    return rows


def _attempt(
    environment: TextEnvironment,
    opening: Sequence[Message],
    chat: ChatTokenizer,
    rules: EpisodeRules,
    episode: EpisodeIdentity,
    revision: int,
) -> Generator[Wanted, Answer, Attempt]:
    """Play the task once, from the beginning."""
    observation = environment.reset()
    dialogue = Dialogue(chat, opening, rules.end_token_ids)
    phase = Phase.FIRST_ATTEMPT if revision == 0 else Phase.SECOND_ATTEMPT
    reward, done, turn = 0.0, False, 0
    finish_reason = "done"
    while not done:
        room = rules.context_length - len(dialogue.token_ids)
        if room < 1:
            if turn == 0 and revision == 0:
                raise InputError(
                    f"task {episode.task.task_id}: its prompt has {len(dialogue.token_ids)} tokens, but the "
                    f"policy's context holds {rules.context_length}; use smaller tasks or a longer context"
                )
            finish_reason = "context"
            break
        request = GenerationRequest(
            prompt_token_ids=dialogue.token_ids,
            max_new_tokens=min(rules.max_new_tokens, room),
            temperature=rules.temperature,
            seed=episode.seed(phase.name, revision, turn),
            conversation=f"{episode.episode_id}/{phase.name}/{revision}",
        )
        generation = cast(Generation, (yield TurnWanted(phase, request)))
        transition = environment.step(dialogue.add_turn(generation))
        reward += transition.reward
        done = transition.done
        turn += 1
        if not done:
            dialogue.add_observation(transition.observation)
    return Attempt(
        dialogue=dialogue,
        opening=opening,
        report=AttemptReport(
            observation=observation,
            trace=environment.trace(),
            feedback=environment.feedback() if done else _NO_ROOM,
            reward=reward,
        ),
        success=reward >= rules.success_threshold,
        finish_reason=finish_reason,
    )


def _reflect(
    report: AttemptReport,
    situation: str,
    environment: TextEnvironment,
    prompts: PromptFormat,
    chat: ChatTokenizer,
    rules: EpisodeRules,
    episode: EpisodeIdentity,
    revision: int,
) -> Generator[Wanted, Answer, Reflection | None]:
    """Reflect on a failed attempt; None when the prompt leaves no room in the context."""
    hits: Sequence[MemoryHit] = ()
    if rules.retrieval:
        hits = cast("list[MemoryHit]", (yield ReflectionsWanted(situation, episode.task.task_type)))
    messages = prompts.reflection(environment.instructions, report, [hit.entry.text for hit in hits])
    dialogue = Dialogue(chat, messages, rules.end_token_ids)
    room = rules.context_length - len(dialogue.token_ids)
    if room < 1:
        return None
    request = GenerationRequest(
        prompt_token_ids=dialogue.token_ids,
        max_new_tokens=min(rules.max_reflection_tokens, room),
        temperature=rules.temperature,
        seed=episode.seed(Phase.REFLECTION.name, revision, 0),
        conversation=f"{episode.episode_id}/{Phase.REFLECTION.name}/{revision}",
    )
    generation = cast(Generation, (yield TurnWanted(Phase.REFLECTION, request)))
    text = dialogue.add_turn(generation)
    return Reflection(dialogue, prompts.read_reflection(text), hits, generation.finish_reason)
