"""A memory without a policy or training run, for any program that learns from its attempts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from storage.artifacts.recipe import Recipe, digest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory.chain import read_chain, scan_entries
from storage.memory.changes import MemoryLimits, plan_change, write_change
from storage.memory.entries import Embedder, MemoryEntry
from storage.memory.forgetting import forget
from storage.memory.search import MemoryFilter, SearchMode
from storage.memory.versions import EMPTY_MEMORY, PARENT_INPUT, MemoryVersion, latest_version, memory_versions
from storage.memory.view import MemoryHit, MemoryView, ReflectionMemory
from storage.runs.run import Run, RunStore
from storage.texts import storable

STANDALONE = "standalone"
"""Key in the settings of a run that is a memory by itself; such a run is not trained."""

_ADD_STAGE = "add_lessons"
_LESSON_IDS = "lesson_ids"


@dataclass(frozen=True)
class Lesson:
    """Something worth remembering, and the situation in which it should come to mind."""

    text: str
    situation: str
    """The text that queries are compared with, by similarity."""
    task_type: str = ""
    environment: str | None = None

    @property
    def entry_id(self) -> str:
        """A digest of text and task type, so that the same lesson is never stored twice."""
        return "m-" + digest([self.text, self.task_type])


class StandaloneMemory(ReflectionMemory):
    """A memory to which a program adds lessons itself, created if it is not there:

        memory = StandaloneMemory("store", "kitchen", embedder)
        burnt = Lesson("This oven runs hot: bake at 180, not 200.", "the bread came out black")
        version = memory.add([burnt, Lesson("Weigh the flour.", "the dough was too wet to knead")])
        hit = memory.search("why is my loaf burnt?", top_k=1)[0]
        memory.forget(hit.entry.entry_id, "we have a new oven")
        memory.at(version).search(["why is my loaf burnt?"], top_k=1)  # as it was then

    The store holds it as a run that has only memory versions, so that `erl-pipeline memory` and
    `erl-pipeline lineage verify` can read it, and garbage collection leaves it alone. The iteration of an
    entry is the number of the `add` that added it.

    Raises InputError if `name` is a training run, or a memory with another embedding model.
    """

    def __init__(
        self, store_uri: str, name: str, embedder: Embedder, limits: MemoryLimits | None = None
    ) -> None:
        runs = RunStore(store_uri)
        settings = {STANDALONE: True, "memory": {"embedding_model": embedder.model}}
        self._run: Run = runs.open(name) if name in runs.list() else runs.create(name, settings)
        if self._run.config != settings:
            raise InputError(
                f"{name} in store {store_uri} is a training run or has another embedding model than "
                f"{embedder.model}. Give this memory another name, or its own model."
            )
        self._store = ArtifactStore(store_uri)
        self._limits = limits or MemoryLimits()
        super().__init__(store_uri, name, self._store, embedder)

    def add(self, lessons: Sequence[Lesson]) -> str:
        """Store lessons and return the new memory version.

        A lesson that was added before, for any situation, changes nothing, even if it was merged into
        another, evicted or forgotten since: what was forgotten stays forgotten. If none is new, the version
        stays the same. Halves of characters are replaced.

        Raises InputError for a lesson without a text, RunBusy while another process adds lessons.
        """
        lessons = list(map(_storable, lessons))
        with self._run.lock():
            parent = latest_version(self._run)
            wanted = {lesson.entry_id: lesson for lesson in lessons}
            known = self._known(parent, list(wanted))
            new = [lesson for entry_id, lesson in wanted.items() if entry_id not in known]
            if not new:
                return parent
            number = max((each.iteration for each in memory_versions(self._run)), default=0) + 1
            content = [[each.entry_id, each.situation, each.environment] for each in new]
            limits = self._limits
            # A near-duplicate becomes no entry, so that only this tells that it was added.
            named = {} if limits.merge_similarity is None else {_LESSON_IDS: [each.entry_id for each in new]}
            recipe = Recipe(
                _ADD_STAGE,
                2,
                {
                    "lessons": digest(content),
                    "embedding_model": self.embedder.embedding_model,
                    "limits": [limits.merge_similarity, limits.max_entries, limits.evict],
                    "iteration": number,
                    **named,
                },
                {} if parent == EMPTY_MEMORY else {PARENT_INPUT: parent},
                0,
                kind="memory",
            )
            entries = [_entry(lesson, number, recipe.artifact_id) for lesson in new]
            self._commit(recipe, number, entries, self.at(parent))
            return recipe.artifact_id

    def search(
        self, text: str, top_k: int = 5, *, task_type: str | None = None, mode: SearchMode = "vector"
    ) -> list[MemoryHit]:
        """The `top_k` best entries of the newest version; see `MemoryView.search`."""
        return self.at(latest_version(self._run)).search([text], top_k, MemoryFilter(task_type), mode=mode)[0]

    def forget(self, entry_id: str, reason: str) -> str:
        """Remove an entry from all future versions and record the reason; returns the new version.

        Raises InputError when the memory does not hold it.
        """
        forgotten = forget(self._store, self._run, entry_id, reason)
        assert forgotten.memory_version is not None
        return forgotten.memory_version

    def versions(self) -> list[MemoryVersion]:
        """All versions, the oldest first; `at(version.artifact_id)` opens one."""
        return memory_versions(self._run)

    def _known(self, version: str, entry_ids: Sequence[str]) -> set[str]:
        """Those lessons that the memory has or had, as entries or merged into others."""
        _, deltas = read_chain(self._store, version)
        chosen = scan_entries(deltas).filter(pl.col("entry_id").is_in(entry_ids))
        known = set(chosen.select("entry_id").collect()["entry_id"])
        for delta in deltas:
            known.update(self._store.open(delta.version).manifest.settings.get(_LESSON_IDS, ()))
        return known

    def _commit(
        self, recipe: Recipe, number: int, entries: Sequence[MemoryEntry], before: MemoryView
    ) -> None:
        version = recipe.artifact_id
        change = plan_change(
            before, entries, [], self._limits, self.embedder, iteration=number, version=version
        )
        with self._store.create(recipe, run=self._run.name, iteration=number) as staging:
            write_change(staging.path, change, self.embedder)
            staging.commit(counters=change.counters, memory_version=version)
        self._run.record(number, recipe.stage, version, kind=recipe.kind, reused=False, seconds=0.0)


def _storable(lesson: Lesson) -> Lesson:
    if not lesson.text:
        raise InputError(f"a lesson for {lesson.situation[:60]!r} has no text: there is nothing to remember.")
    texts = {name: storable(text) for name, text in vars(lesson).items() if text is not None}
    return replace(lesson, **texts)


def _entry(lesson: Lesson, number: int, version: str) -> MemoryEntry:
    return MemoryEntry(
        entry_id=lesson.entry_id,
        kind="lesson",
        text=lesson.text,
        task_type=lesson.task_type,
        task_text=lesson.situation,
        feedback="",
        key_text=lesson.situation,
        source_trajectory_id=None,
        iteration=number,
        last_iteration=number,
        policy_version="",
        parent_entry_ids=(),
        memory_version=version,
        environment=lesson.environment,
    )
