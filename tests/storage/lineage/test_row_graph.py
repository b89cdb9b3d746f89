"""The links between rows are the same as those that a slow loop over their columns finds."""

from __future__ import annotations

import random
from pathlib import Path

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.lineage.row_graph import RowLinks
from storage.lineage.rows import LineageRows, RowKind
from storage.memory.entries import MEMORY
from storage.tables.parquet import write_rows
from storage.tables.training import SFT
from storage.tables.trajectories import TRAJECTORIES
from tests.histories import entry_row, sft_row, trajectory_row

Row = tuple[RowKind, str]


def write_random_rows(store: ArtifactStore, seed: int) -> list[tuple[Row, Row]]:
    """Write two artifacts of rows that refer to each other; returns their links as (origin, derived). Some
    refer to rows that do not exist, and some trajectories are in two artifacts.
    """
    chance = random.Random(seed)
    names = [f"t-{number}" for number in range(40)]
    entries = [f"m-{number}" for number in range(10)]
    trajectories, links = [], list[tuple[Row, Row]]()
    for name in names:
        parent = chance.choice([*names, "nowhere", None])
        saw = chance.sample([*entries, "m-nowhere"], chance.randint(0, 3))
        role = chance.choice(["first_attempt", "reflection", "second_attempt"])
        trajectories.append(
            trajectory_row(trajectory_id=name, role=role, parent_trajectory_id=parent, memory_entry_ids=saw)
        )
        links += [(("trajectory", str(parent)), ("trajectory", name))]
        links += [(("memory_entry", entry), ("trajectory", name)) for entry in saw]
    memory = []
    for name in entries:
        source, parents = chance.choice(names), chance.sample(entries, chance.randint(0, 2))
        memory.append(entry_row(name, source) | {"parent_entry_ids": parents})
        links += [(("trajectory", source), ("memory_entry", name))]
        links += [(("memory_entry", parent), ("memory_entry", name)) for parent in parents]
    dataset = []
    for number in range(5):
        source = chance.choice(names)
        dataset.append(sft_row(f"s-{number}", source))
        links.append((("trajectory", source), ("sft_row", f"s-{number}")))
    for number, (first, last) in enumerate([(0, 25), (20, 40)]):
        with store.create(Recipe("rollout_shard", 1, {}, {}, number), run="run", iteration=1) as staging:
            write_rows(staging.path / "rows.parquet", trajectories[first:last], TRAJECTORIES)
            write_rows(staging.path / "entries.parquet", memory[5 * number : 5 * number + 5], MEMORY)
            write_rows(staging.path / "sft.parquet", dataset[3 * number : 3 * number + 3], SFT)
            staging.commit()
    known: set[Row] = {
        *(("trajectory", name) for name in names),
        *(("memory_entry", name) for name in entries),
        *(("sft_row", row["sft_row_id"]) for row in dataset),
    }
    return [(origin, derived) for origin, derived in links if origin in known]


def slow_walk(links: list[tuple[Row, Row]], start: Row, depth: int | None = None) -> dict[Row, int]:
    """The number of steps to each row that can be reached from the start by links (from, to)."""
    found = {start: 0}
    level = [start]
    while level and (depth is None or found[level[0]] < depth):
        following = [end for row in level for begin, end in links if begin == row]
        level = [row for row in dict.fromkeys(following) if row not in found]
        found |= dict.fromkeys(level, max(found.values()) + 1)
    del found[start]
    return found


def test_walks_are_those_of_a_slow_loop_over_the_columns(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))
    links = write_random_rows(store, seed=3)
    backwards = [(derived, origin) for origin, derived in links]
    found = RowLinks(LineageRows(store, list(store.list())))
    starts = dict.fromkeys(row for link in links for row in link)
    reached = 0
    for start in starts:
        for depth in (None, 1, 2):
            derived = {(step.kind, step.id): step.depth for step in found.derived(*start, depth)}
            origins = {(step.kind, step.id): step.depth for step in found.origins(*start, depth)}
            assert derived == slow_walk(links, start, depth)
            assert origins == slow_walk(backwards, start, depth)
            reached += len(derived)
        for step in found.derived(*start):
            # The row that it was reached from names it directly, one step nearer.
            assert step.via in {row[1] for row, end in links if end == (step.kind, step.id)}
    assert reached > 500
