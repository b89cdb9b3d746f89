"""The kinds of pages over a long run, and the addresses requested of each; `page_speed.py` times them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlencode

import numpy as np
from workloads.long_history import RUN, WORDS, Readable, build

from erl_pipeline.config.loading import load_config
from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.lineage.rows import LineageRows, RowKind
from storage.memory.versions import latest_version
from storage.memory.view import ReflectionMemory
from storage.runs.run import RunStore

CONFIG = "configs/frozen_lake.yaml"
BOARD = {
    "actions": {"a": "up", "b": "left", "c": "down", "d": "right"},
    "board": ["SFFF", "FHFH", "FFFH", "HFFG"],
    "max_steps": 6,
    "symbols": {"frozen": "#", "goal": "&", "hole": "$", "player": "@"},
}
HERE = f"/runs/{RUN}"
_SEARCH_WORDS = 4
_DISTANT = 37
"""How many iterations lie between those of successive requests."""


@dataclass(frozen=True)
class Kind:
    """A kind of page: the addresses to request one after the other, and the most milliseconds that the median
    may take."""

    title: str
    addresses: Iterator[str]
    most_ms: float = 150.0


def generate(store_uri: str, iterations: int, rows: int) -> None:
    """Write the history, unless the store has it, and the table of its memory, as rollouts do."""
    settings = load_config(CONFIG, [f"name={RUN}", f"iterations={iterations}", "evaluation.every=1"])
    embedder = SentenceEmbedder()
    build(
        store_uri,
        iterations,
        rows,
        Readable(settings.model_dump(mode="json"), embedder.embedding_model, BOARD),
    )
    memory = ReflectionMemory(store_uri, RUN, ArtifactStore(store_uri), embedder)
    memory.at(latest_version(RunStore(store_uri).open(RUN)))


def kinds(store_uri: str) -> list[Kind]:
    """All kinds of pages. If there are many pages of a kind, each request is for another one."""
    things = _Things(store_uri)
    return [
        Kind("runs", _always("/")),
        Kind("run", _always(HERE)),
        Kind("curves' numbers", _always("/curves", run=RUN)),
        Kind("two axes of curves", _always("/compare", run=RUN, x="tokens")),
        Kind("iteration", (f"{HERE}/iterations/{each}" for each in things.iterations())),
        Kind("group", things.groups()),
        Kind("episode", things.episodes(), 50.0),
        Kind("rows, no filter", _paged(f"{HERE}/rows")),
        Kind("rows of a role", _paged(f"{HERE}/rows", role="second_attempt")),
        Kind("rows by reward", _paged(f"{HERE}/rows", reward=">0.5")),
        Kind("rows by success and role", _paged(f"{HERE}/rows", success="true", role="first_attempt")),
        Kind("rows with a text", _paged(f"{HERE}/rows", said=f"{WORDS[0]} {WORDS[1]}")),
        Kind("rows of an iteration with a text", things.texts_of_iterations()),
        Kind("evaluations", _paged(f"{HERE}/rows", held_out="true")),
        Kind("plan", _always(f"{HERE}/plan")),
        Kind("settings", _always(f"{HERE}/settings")),
        Kind("artifact", (f"/artifacts/{each}" for each in things.artifacts("checkpoint"))),
        Kind("lineage of an artifact", (f"/lineage/{each}" for each in things.artifacts("rollouts"))),
        Kind("lineage of a trajectory", (f"/lineage/{each}" for each in things.rows())),
        Kind("lineage of a memory entry", (f"/lineage/{each}" for each in things.entries())),
        Kind("memory", _paged(f"{HERE}/memory")),
        Kind("memory entry", (f"{HERE}/memory/{each}" for each in things.entries())),
        *(Kind(f"memory search, {title}", _searches(mode), 50.0) for mode, title in _MODES.items()),
    ]


_MODES = {"text": "by words", "vector": "by meaning", "hybrid": "by both"}


class _Things:
    """Ids of things from iterations all over a history."""

    def __init__(self, store_uri: str) -> None:
        self._store = ArtifactStore(store_uri)
        self._ledger = RunStore(store_uri).open(RUN).stages()
        self._last = max(entry.iteration or 0 for entry in self._ledger)

    def iterations(self) -> Iterator[int]:
        for number in count():
            yield self._last - number * _DISTANT % self._last

    def artifacts(self, kind: ArtifactKind) -> Iterator[str]:
        """The last of its kind in each of the iterations."""
        found = {entry.iteration: entry.artifact_id for entry in self._ledger if entry.kind == kind}
        return (found[iteration] for iteration in self.iterations())

    def rows(self) -> Iterator[str]:
        return (row["trajectory_id"] for _, row in self._rows("trajectories"))

    def episodes(self) -> Iterator[str]:
        for iteration, row in self._rows("trajectories"):
            yield f"{HERE}/iterations/{iteration}/episodes/{row['episode_id']}"

    def groups(self) -> Iterator[str]:
        for iteration, row in self._rows("trajectories"):
            yield f"{HERE}/iterations/{iteration}/group?{urlencode({'id': row['group_id']})}"

    def entries(self) -> Iterator[str]:
        return (row["entry_id"] for _, row in self._rows("memory"))

    def texts_of_iterations(self) -> Iterator[str]:
        for iteration in self.iterations():
            yield f"{HERE}/rows?{urlencode({'iteration': iteration, 'said': WORDS[0]})}"

    def _rows(self, kind: ArtifactKind) -> Iterator[tuple[int, Mapping[str, str]]]:
        """A row of each of the iterations, with its iteration."""
        table, columns = _COLUMNS[kind]
        for place, (iteration, artifact_id) in enumerate(
            zip(self.iterations(), self.artifacts(kind), strict=False)
        ):
            manifest = self._store.find(artifact_id)
            assert manifest is not None
            rows = LineageRows(self._store, [manifest]).read(table, columns)
            yield iteration, rows.row(place * _DISTANT % rows.height, named=True)


_COLUMNS: Mapping[ArtifactKind, tuple[RowKind, Sequence[str]]] = {
    "trajectories": ("trajectory", ("trajectory_id", "episode_id", "group_id")),
    "memory": ("memory_entry", ("entry_id",)),
}


def _always(address: str, **query: str) -> Iterator[str]:
    for _ in count():
        yield f"{address}?{urlencode(query)}" if query else address


def _paged(address: str, **query: str) -> Iterator[str]:
    """The addresses of one page after the other."""
    for page in count(1):
        yield f"{address}?{urlencode(query | {'page': str(page)})}"


def _searches(mode: str) -> Iterator[str]:
    """Searches with other words each time, so that no query was embedded before."""
    drawn = np.random.default_rng(len(mode))
    while True:
        text = " ".join(WORDS[word] for word in drawn.integers(0, len(WORDS), _SEARCH_WORDS))
        yield f"{HERE}/memory?{urlencode({'text': text, 'mode': mode})}"
