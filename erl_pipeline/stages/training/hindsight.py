"""The prompts behind which a teacher reads an attempt: the attempt's own, and a text that knows more."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.prompts import render
from erl_pipeline.config.self_distillation import SelfDistillationConfig, SelfDistilledRoles
from erl_pipeline.environments.messages import without_thoughts, words_of
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Task
    from erl_pipeline.environments.messages import Message
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from storage.tables.trajectories import Trajectory

LEAK_CHARACTERS = 32
"""Shorter answers of held-out tasks stand in many texts by chance."""


@dataclass(frozen=True)
class Hindsight:
    """A prompt that holds more than that of the attempt, and where this comes from. `wrong`: prompts with
    wrong hints, each with its source."""

    prompt_token_ids: tuple[int, ...]
    source_trajectory_id: str
    wrong: tuple[Hindsight, ...] = ()


@dataclass(frozen=True)
class _Told:
    """A text, and the trajectory that it is from. `prompt`: the whole prompt with it, where it exists."""

    text: str
    source: str
    prompt: tuple[int, ...] | None = None


@dataclass(frozen=True)
class HindsightSources:
    """What texts are taken from.

    `rows`: trajectories of the iteration. `earlier`: those of earlier ones, the latest last. `held_out`:
    tasks whose answers no text may hold. `context_length` is in tokens.
    """

    how: SelfDistillationConfig
    roles: SelfDistilledRoles
    rows: Sequence[Trajectory]
    earlier: Sequence[Trajectory] = ()
    held_out: Sequence[Task] = ()


def hindsight_of(
    sources: HindsightSources, chat: ChatTokenizer, context_length: int, seed: int
) -> dict[str, Hindsight | str]:
    """For each first attempt its prompt with hindsight, or a word for why it has none.

    The tokens that were sampled follow the prompt as they are, so nothing is tokenized again behind it.
    Prompts that are rendered anew begin from the messages of the attempt, and only where these give its very
    tokens.

    Raises InputError where a demonstration is of a held-out task, or holds the answer to one.
    """
    how = sources.how
    attempts = [row for row in sources.rows if row.role == sources.roles.attempt]
    told = _told(sources, attempts, seed)
    if how.block == "shuffled":
        told = _shuffled(told, attempts, seed)
    found: dict[str, Hindsight | str] = {}
    for row in attempts:
        texts = told[row.trajectory_id]
        if not any(row.response_mask):
            found[row.trajectory_id] = "no_tokens"
        elif isinstance(texts, str):
            found[row.trajectory_id] = texts
        else:
            found[row.trajectory_id] = _prompts(row, texts, how, chat, context_length)
    return found


def _told(
    sources: HindsightSources, attempts: Sequence[Trajectory], seed: int
) -> dict[str, list[_Told] | str]:
    """For each attempt the texts that it is told, the right one first, or why there is none."""
    how = sources.how
    retries = {row.episode_id: row for row in reversed(sources.rows) if row.role == sources.roles.retry}
    by_success: defaultdict[tuple[str, bool], list[Trajectory]] = defaultdict(list)
    for row in attempts:
        by_success[row.group_id, row.success].append(row)
    demonstrated = _Demonstrations(sources) if how.hindsight == "demonstration" else None

    def of(row: Trajectory) -> list[_Told] | str:
        if how.rows == "failed" and row.success:
            return "succeeded"
        if how.hindsight == "reflection":
            return _of_retry(row, retries.get(row.episode_id))
        if how.hindsight == "feedback":
            return _texts(_Told(row.feedback, row.trajectory_id))
        if demonstrated is not None:
            return demonstrated.of(row)
        right, wrong = (
            [each for each in by_success[row.group_id, success] if each is not row]
            for success in (True, False)
        )
        if not right:
            return "no_sibling"
        chosen = [right[derive_seed(seed, row.trajectory_id) % len(right)]]
        if how.combination == "modulate":
            if not wrong:
                return "no_wrong_sibling"
            ordered = sorted(wrong, key=lambda each: derive_seed(seed, row.trajectory_id, each.trajectory_id))
            chosen += ordered[: how.contrast.wrong_hints]
        return _texts(*(_Told(_said(each), each.trajectory_id) for each in chosen))

    return {row.trajectory_id: of(row) for row in attempts}


def _texts(*told: _Told) -> list[_Told] | str:
    return list(told) if all(each.text.strip() for each in told) else "no_text"


def _of_retry(row: Trajectory, retry: Trajectory | None) -> list[_Told] | str:
    from storage.tables.trajectories import OTHER_OPENING

    if retry is None:
        return "no_retry"
    if any(OTHER_OPENING in json.loads(each.metrics) for each in (row, retry)):
        return "other_prompt"  # An agent has begun one of them otherwise.
    if retry.prompt_token_ids == row.prompt_token_ids:
        return "no_text"
    return [_Told("", retry.parent_trajectory_id or retry.trajectory_id, retry.prompt_token_ids)]


def _said(row: Trajectory) -> str:
    said = [each for each in json.loads(row.messages) if each["role"] == "assistant"]
    return "\n".join(words_of(without_thoughts(each)) for each in said)


class _Demonstrations:
    """The solutions of tasks, stored or the policy's own."""

    def __init__(self, sources: HindsightSources) -> None:
        self._how = sources.how.demonstration
        self._own = {
            row.task_id: row for row in sources.earlier if row.role == sources.roles.attempt and row.success
        }
        self._held_out = {task.task_id for task in sources.held_out}
        answers = (_solution(task.payload, self._how.solution) for task in sources.held_out)
        long = [each for each in answers if len(each) >= LEAK_CHARACTERS]
        # In a tool call, a text is written as JSON.
        self._answers = [*long, *(json.dumps(each, ensure_ascii=False)[1:-1] for each in long)]

    def of(self, row: Trajectory) -> list[_Told] | str:
        if row.task_id in self._held_out:
            raise InputError(
                f"trajectory {row.trajectory_id} is of the held-out task {row.task_id}: its solution would "
                "be taught; take the task out of the training tasks"
            )
        if self._how.source == "own_success":
            own = self._own.get(row.task_id)
            told = None if own is None else _Told(_said(own), own.trajectory_id)
        else:
            text = _solution(json.loads(row.task_payload), self._how.solution)
            told = _Told(text, row.trajectory_id) if text else None
        if told is None:
            return "no_demonstration"
        if any(answer in told.text for answer in self._answers):
            raise InputError(
                f"the demonstration for task {row.task_id} (trajectory {told.source}) holds the whole "
                "solution of a held-out task, which would be taught; take it out, or hold other tasks out"
            )
        return _texts(told)


def _solution(payload: Any, key: str) -> str:
    """The text at a key of a payload; empty without one."""
    value = payload.get(key) if isinstance(payload, dict) else None
    return value.strip() if isinstance(value, str) else ""


def _shuffled(
    told: dict[str, list[_Told] | str], attempts: Iterable[Trajectory], seed: int
) -> dict[str, list[_Told] | str]:
    """The same with the texts of attempts at other tasks."""
    task_of = {row.trajectory_id: row.task_id for row in attempts}
    there = {id_: texts for id_, texts in told.items() if not isinstance(texts, str)}
    found = dict(told)
    for id_ in there:
        others = [texts for other, texts in there.items() if task_of[other] != task_of[id_]]
        found[id_] = others[derive_seed(seed, id_, "other") % len(others)] if others else "no_other_task"
    return found


def _prompts(
    row: Trajectory,
    texts: Sequence[_Told],
    how: SelfDistillationConfig,
    chat: ChatTokenizer,
    context_length: int,
) -> Hindsight | str:
    made, most = [], min(context_length, how.max_tokens or context_length)
    for told in texts:
        if how.block == "empty":
            prompt: tuple[int, ...] | None = row.prompt_token_ids
        else:
            prompt = told.prompt or _rendered(row, told.text, chat, how.template)
        if prompt is None:
            return "other_prompt"
        if len(prompt) + len(row.response_token_ids) > most:
            return "too_long"
        made.append(Hindsight(prompt, told.source))
    return Hindsight(made[0].prompt_token_ids, made[0].source_trajectory_id, tuple(made[1:]))


def _rendered(row: Trajectory, text: str, chat: ChatTokenizer, template: str) -> tuple[int, ...] | None:
    """The prompt of an attempt with a text in it; None where its messages do not give its tokens."""
    from erl_pipeline.episodes.context import opening_messages

    messages = opening_messages(row)
    if not messages or chat.prompt(messages) != row.prompt_token_ids:
        return None
    last = messages[-1]
    told: Message = {**last, "content": render(template, {"task": last["content"], "text": text})}
    return chat.prompt([*messages[:-1], told])
