"""The reflection memory that the stages of one process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.plan.stage import Resources
    from storage.memory.view import ReflectionMemory


def opened_memory(resources: Resources, embedding_model: str) -> ReflectionMemory:
    """The memory of the run; its versions are searched and written through this object."""

    def open_memory() -> ReflectionMemory:
        from erl_pipeline.policies.embedding import SentenceEmbedder
        from storage.memory.view import ReflectionMemory

        store = resources.store
        return ReflectionMemory(store.uri, resources.settings.run, store, SentenceEmbedder(embedding_model))

    return resources.keep(f"memory {embedding_model}", open_memory)
