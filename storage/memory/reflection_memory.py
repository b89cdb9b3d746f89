"""The reflection memory of a run: entries of committed memory versions, searched by similarity and words."""

from __future__ import annotations

from storage.memory.embedder import Embedder
from storage.memory.selection import MemoryLimits
from storage.memory.standalone import StandaloneMemory
from storage.memory.view import MemoryVersions


class ReflectionMemory(MemoryVersions):
    """A run's memory. The stages of the run add to it.

    Without a run, `open` gives a memory to which a program adds lessons itself:

        memory = ReflectionMemory.open("store", "kitchen", embedder)
        burnt = Lesson("This oven runs hot: bake at 180, not 200.", "the bread came out black")
        version = memory.add([burnt, Lesson("Weigh the flour.", "the dough was too wet to knead")])
        hit = memory.search("why is my loaf burnt?", top_k=1)[0]
        memory.forget(hit.entry.entry_id, "we have a new oven")
        memory.at(version).search(["why is my loaf burnt?"], top_k=1)  # as it was then
    """

    @staticmethod
    def open(
        store_uri: str, name: str, embedder: Embedder, limits: MemoryLimits | None = None
    ) -> StandaloneMemory:
        """A standalone memory in a store, created if it is not there; see `StandaloneMemory`.

        Raises InputError if `name` is a training run, or a memory with another embedding model.
        """
        return StandaloneMemory(store_uri, name, embedder, limits)
