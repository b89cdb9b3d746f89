"""The search index of HotpotQA: time and memory for building it, and the speed of searches.

    python benchmarks/stores/search_index.py --folder FOLDER [--passages 60000] [--queries 100]

The pages are generated: a title and 90 words. The words come from Python's own help texts, with frequencies
like those of a language (Zipf). The pages are embedded with the default model, as in a run, and an index is
built in FOLDER, which must be empty. Then each search mode is timed with new queries, one at a time. A query
of `vector` or `hybrid` must be embedded first; that time is included, and also reported separately.
`recall_at_10` compares vector searches with exact ones. The output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from erl_pipeline.environments.hotpotqa.index import SearchIndex, build_index
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig, SearchMode
from erl_pipeline.environments.hotpotqa.tasks import Passage
from erl_pipeline.policies.embedding import SentenceEmbedder

TITLE_WORDS, WORDS, QUERY_WORDS, COMMON = 3, 90, 8, 100
TOP = 10


def vocabulary() -> list[str]:
    """The words of Python's own help texts, the most frequent first; their lengths are those of English."""
    counts = Counter(word for text in topics.values() for word in re.findall(r"[a-z]{3,}", text.lower()))
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def generated_passages(count: int) -> list[Passage]:
    """Pages of words, each drawn with a probability proportional to 1 / rank."""
    drawn = np.random.default_rng(0)
    words = np.array(vocabulary())
    weights = 1.0 / np.arange(1, len(words) + 1)
    cumulated = np.cumsum(weights) / weights.sum()
    passages = []
    for _ in range(count):
        # Titles consist of rare words.
        title = " ".join(words[drawn.integers(COMMON, len(words), TITLE_WORDS)])
        text = " ".join(words[np.searchsorted(cumulated, drawn.random(WORDS))])
        passages.append(Passage(title.title(), text))
    return passages


def queries_of(passages: list[Passage], count: int) -> list[str]:
    """Queries of a word of a title and some words of its page, in random order."""
    drawn = np.random.default_rng(1)
    queries = []
    for number in drawn.integers(0, len(passages), count):
        page = passages[number]
        inside = drawn.choice(page.text.split(), QUERY_WORDS - 1, replace=False)
        queries.append(" ".join([page.title.split()[0], *inside]))
    return queries


def times_ms(ask: Callable[[str], object], queries: list[str]) -> dict[str, float]:
    seconds = []
    for query in queries:
        began = time.perf_counter()
        ask(query)
        seconds.append(time.perf_counter() - began)
    return {
        "median_ms": round(statistics.median(seconds) * 1e3, 2),
        "p95_ms": round(float(np.quantile(seconds, 0.95)) * 1e3, 2),
    }


def peak_gb() -> float:
    """The most memory that this process has had, imports included."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def measure(folder: Path, count: int, asked: int) -> dict[str, Any]:
    """Build an index and search it; return the measurements by name."""
    settings = HotpotQAConfig()
    passages = generated_passages(count)
    embedder = SentenceEmbedder(settings.embedding_model)
    embedder.embed(["the model is loaded"])
    began = time.perf_counter()
    build_index(passages, folder, embedder, settings.embedded_characters)
    found: dict[str, Any] = {
        "passages": count,
        "build_s": round(time.perf_counter() - began, 1),
        "build_peak_gb": peak_gb(),
        "index_mb": round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6, 1),
    }
    alone = SentenceEmbedder(settings.embedding_model, batch_tokens=1)
    index = SearchIndex(folder, alone)
    queries = queries_of(passages, 4 * asked + 5)
    for query in queries[-5:]:  # The first searches read the index from disk.
        index.search(query, settings.passages, "hybrid")
    modes: tuple[SearchMode, ...] = ("full_text", "vector", "hybrid")
    for place, mode in enumerate(modes):
        own = queries[place * asked : (place + 1) * asked]
        found[mode] = times_ms(partial(index.search, count=settings.passages, mode=mode), own)
    own = queries[3 * asked : 4 * asked]
    found["embedding a query"] = times_ms(lambda query: alone.embed([query]), own)
    vectors = embedder.embed(
        [f"{page.title}\n{page.text}"[: settings.embedded_characters] for page in passages]
    )
    near = 0
    for query in own:
        vector = alone.embed([query])[0]
        exact = set(np.argsort(-(vectors @ vector))[:TOP].tolist())
        near += len(exact & set(index.by_vector(vector, TOP)))
    found["recall_at_10"] = round(near / (TOP * len(own)), 3)
    found["peak_gb"] = peak_gb()
    found["load"] = round(os.getloadavg()[0], 1)
    found["machine"] = (
        f"{datetime.now(UTC).date().isoformat()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}, lancedb {metadata.version('lancedb')}"
    )
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description="Build and search an index of generated pages.")
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--passages", type=int, default=60_000)
    arguments.add_argument("--queries", type=int, default=100)
    given = arguments.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if any(given.folder.iterdir()):
        arguments.error(f"{given.folder} is not empty")
    print(json.dumps(measure(given.folder, given.passages, given.queries), indent=2))


if __name__ == "__main__":
    main()
