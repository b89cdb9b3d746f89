"""Notes of a memory in the system message of conversations that begin."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

from erl_pipeline.config.memory import RetrievalSettings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptPrompts, ChatPrompts
from erl_pipeline.episodes.context import situation
from erl_pipeline.plan.stage import Resources
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.serving.requests import USER_TASK_TYPE
from erl_pipeline.serving.settings import ServedMemory
from erl_pipeline.stages.memory import opened_memory
from storage.errors import ConfigError, PipelineError
from storage.memory.search import MemoryFilter, Scoring
from storage.memory.versions import latest_version
from storage.memory.view import MemoryHit, MemoryView
from storage.runs.run import Run, RunStore
from storage.serving.users import user_task_type

MOST_SECONDS = 0.2
"""How long a call waits for its notes."""
_FAILURES = (PipelineError, OSError, RuntimeError, ValueError)
"""What the store, and LanceDB, raise where a memory cannot be searched."""
_VERSION_SECONDS = 30.0
_CANDIDATES = 64
"""Most entries that are ranked by more than their similarity; a run's own searches may rank more."""


@dataclass(frozen=True)
class Notes:
    """What was put into a system message, and where it came from; all empty for nothing."""

    text: str = ""
    memory_version: str = ""
    entry_ids: tuple[str, ...] = ()


NO_NOTES = Notes()


@dataclass(frozen=True)
class _OfNoUser(MemoryFilter):
    """Leaves out entries that reach one user only."""

    def condition(self) -> str:
        common = f"task_type NOT LIKE '{USER_TASK_TYPE}%'"
        return f"{own} AND {common}" if (own := super().condition()) else common


class SearchMemory(Protocol):
    """Finds entries for a situation: (version, hits, the best first). `user` is a digest, empty for none.

    Raises PipelineError where the memory cannot be read.
    """

    def __call__(self, situation: str, task_type: str, user: str) -> tuple[str, Sequence[MemoryHit]]: ...


class RunMemorySearch:
    """Searches the newest memory version of a run, which is looked up again every half minute.

    `at` opens a version. The run's method says how entries are ranked.
    """

    def __init__(
        self, run: Run, how: RetrievalSettings, settings: ServedMemory, at: Callable[[str], MemoryView]
    ) -> None:
        self._run, self._how, self._settings = run, how, settings
        self._at = at
        self._looked_up = -math.inf
        self._version = ""
        self._view: MemoryView | None = None

    def __call__(self, situation: str, task_type: str, user: str) -> tuple[str, Sequence[MemoryHit]]:
        if self._settings.scope == "user" and not user:
            return "", []
        try:
            return self._found(situation, task_type, user)
        except _FAILURES:
            if self._view is None:
                raise
            # Another process may have removed the table, as `forget-user` does: what was opened before
            # fails for good.
            self._view = None
            return self._found(situation, task_type, user)

    def _found(self, situation: str, task_type: str, user: str) -> tuple[str, Sequence[MemoryHit]]:
        view, how = self._newest(), self._how
        hits = view.search(
            [situation],
            max(self._settings.top_k, min(how.candidates or 0, _CANDIDATES)),
            searched_entries(self._settings.scope, task_type if how.same_task_type else "", user),
            exact=False,
        )[0]
        least = -1.0 if how.min_similarity is None else how.min_similarity
        scoring = Scoring(how.credit_weight, how.support_weight, how.retrieval_penalty)
        similar = [hit for hit in hits if hit.score >= least]
        similar.sort(key=lambda hit: -_score(scoring, hit))
        return self._version, similar[: self._settings.top_k]

    def _newest(self) -> MemoryView:
        now = time.monotonic()
        if self._view is None or now - self._looked_up >= _VERSION_SECONDS:
            version = latest_version(self._run)
            if self._view is None or version != self._version:
                self._view, self._version = self._at(version), version
            self._looked_up = now
        return self._view


def searched_entries(scope: Literal["run", "user", "none"], task_type: str, user: str) -> MemoryFilter:
    """The entries that a call may see: its own user's, or those that are no user's."""
    if scope == "user":
        return MemoryFilter(task_type=user_task_type(user))
    return _OfNoUser(task_type=task_type or None)


def _score(scoring: Scoring, hit: MemoryHit) -> float:
    entry = hit.entry
    return scoring.score(hit.score, entry.credit, entry.support, entry.retrievals)


class NoteSearch:
    """Finds notes for conversations that begin, and gives up where that takes too long.

    `unanswered` counts calls that got no notes since the search failed or was slow. `tell` shows people one
    line.
    """

    def __init__(
        self,
        search: SearchMemory,
        prompts: AttemptPrompts,
        tell: Callable[[str], None],
        seconds: float = MOST_SECONDS,
    ) -> None:
        self._search = search
        self._prompts = prompts
        self._tell = tell
        self._seconds = seconds
        self._thread = ThreadPoolExecutor(1, "memory")
        self._failing = False
        self.unanswered = 0

    async def notes_for(
        self, messages: Sequence[Message], task_type: str, user: str
    ) -> tuple[Sequence[Message], Notes]:
        """The messages as the policy is to be shown them, and the notes in them."""
        asked = situation([{"role": "user", "content": _asked(messages)}], "")
        found = asyncio.get_running_loop().run_in_executor(self._thread, self._search, asked, task_type, user)
        try:
            version, hits = await asyncio.wait_for(asyncio.shield(found), self._seconds)
        except TimeoutError:
            self.unanswered += 1
            found.cancel()  # It need not begin any more.
            found.add_done_callback(_retrieved)
            return messages, NO_NOTES
        except _FAILURES as error:
            if not self._failing:
                self._tell(f"The memory cannot be searched, and calls are answered without notes: {error}")
            self._failing = True
            self.unanswered += 1
            return messages, NO_NOTES
        self._failing = False
        if not hits:
            return messages, Notes(memory_version=version)
        return self._inserted(messages, version, hits)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _inserted(
        self, messages: Sequence[Message], version: str, hits: Sequence[MemoryHit]
    ) -> tuple[Sequence[Message], Notes]:
        has_system = messages[0]["role"] == "system"
        instructions = messages[0]["content"] if has_system else ""
        # In prompts, the best note comes last.
        texts = [hit.entry.text for hit in reversed(hits)]
        opening = self._prompts.attempt(instructions, _asked(messages), texts)
        told = opening[0]["content"] if has_system else opening[0]["content"].lstrip()
        ids = tuple(hit.entry.entry_id for hit in hits)
        notes = Notes(told.removeprefix(instructions), version, ids)
        system: Message = {"role": "system", "content": told}
        return [system, *messages[has_system:]], notes


def run_memory_search(config: RunConfig, settings: ServedMemory, resources: Resources) -> RunMemorySearch:
    """Searches the memory of a run. Raises ConfigError for a run without one."""
    how = config.retrieval
    if how is None:
        raise ConfigError(
            f"memory.scope: {settings.scope}; run {config.name} has no memory (its configuration says "
            "method.memory: off, or its method has none); use scope: none"
        )
    if policy_traits(config.policy).own_words:
        raise ConfigError(
            f"memory.scope: {settings.scope}; the policy of run {config.name} reads only the words of its "
            "environment, and no notes; use scope: none"
        )
    run = RunStore(resources.store.uri).open(config.name)
    return RunMemorySearch(run, how, settings, opened_memory(resources, how.embedding_model).at)


def prompts_with_notes(config: RunConfig) -> AttemptPrompts:
    """How a run's method writes notes into the prompt of an attempt."""
    method = plugins("methods")[config.method.type].value
    reflecting = method.reflecting(method.episode_settings(config.method))
    return ChatPrompts(PromptTemplates()) if reflecting is None else reflecting.prompts


def _retrieved(found: asyncio.Future[tuple[str, Sequence[MemoryHit]]]) -> None:
    """Nobody waits for this search any more, however it ends."""
    if not found.cancelled():
        found.exception()


def _asked(messages: Sequence[Message]) -> str:
    """What the conversation is about: the last message of the user."""
    return next((each["content"] for each in reversed(messages) if each["role"] == "user"), "")
