"""Writing a batch: the rows of its episodes, made in several processes, in groups, as tables in files.

The files hold the same bytes whatever the number of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.origins import kept_apart
from erl_pipeline.serving.learning.processes import Map
from erl_pipeline.serving.learning.rows import Batch, episode_rows
from erl_pipeline.serving.learning.settled import EpisodePlaces, TrafficIndex, read_episodes
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import count_rollouts
from erl_pipeline.stages.tasks.held_out import KeptApart
from storage.artifacts.uncommitted import Told
from storage.serving.collected import CORRECTIONS, SERVED, SERVED_CORRECTIONS, SERVED_TRAJECTORIES
from storage.tables.packed import packed_table
from storage.tables.parquet import RowWriter, TableFormat
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.trajectories import TRAJECTORIES as TRAJECTORY_TABLE
from storage.tables.trajectories import trajectory_id, validate_rows

SMALLEST_GROUP = 8
"""Rated episodes of one type of tasks in a batch; the mean of fewer says too little to compare with."""

_SHARE_EPISODES = 1000
"""Episodes whose rows are made, or written, at once. To hand over a table takes as long for few rows as for
many."""
_FILES: Mapping[str, TableFormat] = {
    TRAJECTORIES: TRAJECTORY_TABLE,
    FURTHER_SEQUENCES: TRAJECTORY_TABLE,
    SERVED: SERVED_TRAJECTORIES,
    CORRECTIONS: SERVED_CORRECTIONS,
}
_ALWAYS_THERE = (TRAJECTORIES, SERVED)


@dataclass(frozen=True)
class EpisodeTables:
    """The rows of some episodes: a table for each file, and where each episode's rows begin in it, with the
    end of the last one's."""

    tables: Mapping[str, pa.Table]
    begins: Mapping[str, Sequence[int]]
    task_types: Sequence[str]
    are_scored: Sequence[bool]
    counts: Mapping[str, int]


class GroupedEpisode(NamedTuple):
    """An episode by its place in tables, and the group it shares with others; empty where it is alone."""

    tables: EpisodeTables
    place: int
    group_id: str = ""

    @property
    def is_scored(self) -> bool:
        return self.tables.are_scored[self.place]


@lru_cache(maxsize=1)
def _kept_apart(config: str) -> KeptApart:
    return kept_apart(RunConfig.model_validate_json(config))


def held_out(config: str, said: Sequence[Mapping[str, str]]) -> str | None:
    """What a conversation asks that a run may not train on; None for nothing.

    Args:
        config: that of the run, as JSON: it goes to other processes.
    """
    return _kept_apart(config).asked(said)


def write_batch(
    batch: Batch,
    index: TrafficIndex,
    episodes: Sequence[int],
    corrections: bool,
    map_parts: Map,
    folder: Path,
) -> Told:
    """Write the files of a batch, some episodes at a time."""
    make = partial(_episode_tables, batch, index.run, index.paths, corrections)
    made = map_parts(make, index.shares(episodes, _SHARE_EPISODES))
    counts: Counter[str] = Counter()
    grouped = in_groups(batch.artifact_id, _each(made, counts), index.rated_by_type(episodes))
    with ExitStack() as opened:
        writers = {
            name: opened.enter_context(RowWriter(folder / name, table)) for name, table in _FILES.items()
        }
        while chunk := list(islice(grouped, _SHARE_EPISODES)):
            for name, writer in writers.items():
                writer.add_table(_rows(chunk, name))
            scored = [each for each in chunk if each.is_scored]
            counts["rated"] += len(scored)
            counts["not_grouped"] += sum(not each.group_id for each in scored)
    files = {name: writer.count for name, writer in writers.items()}
    for name in [name for name, count in files.items() if not count and name not in _ALWAYS_THERE]:
        (folder / name).unlink()
        del files[name]
    if corrections:
        counts["corrections"] = files.get(CORRECTIONS, 0)
    return {"counters": dict(counts), "rows": files}


def _episode_tables(
    batch: Batch, run: str, paths: Sequence[Path], corrections: bool, places: EpisodePlaces
) -> EpisodeTables:
    """The rows of some episodes, each alone in its group. Raises ValueError for contradictions in a row."""
    found = [episode_rows(batch, *each) for each in read_episodes(run, paths, places)]
    firsts, further = [each.trajectories[:1] for each in found], [each.trajectories[1:] for each in found]
    rows: dict[str, Sequence[Sequence[object]]] = {
        TRAJECTORIES: firsts,
        FURTHER_SEQUENCES: further,
        SERVED: [each.served for each in found],
        CORRECTIONS: [each.corrections if corrections else () for each in found],
    }
    tables = {
        name: packed_table([vars(row) for each in of_episodes for row in each], _FILES[name])
        for name, of_episodes in rows.items()
    }
    validate_rows(chain.from_iterable(firsts), tables[TRAJECTORIES])
    validate_rows(chain.from_iterable(further), tables[FURTHER_SEQUENCES])
    return EpisodeTables(
        tables,
        {name: [0, *accumulate(map(len, of_episodes))] for name, of_episodes in rows.items()},
        [each.task_type for each in found],
        [each.is_scored for each in found],
        count_rollouts([each.trajectories[0] for each in found]),
    )


def _each(made: Iterable[EpisodeTables], counts: Counter[str]) -> Iterator[GroupedEpisode]:
    for tables in made:
        counts.update(tables.counts)
        yield from (GroupedEpisode(tables, place) for place in range(len(tables.task_types)))


def in_groups(
    artifact_id: str, episodes: Iterable[GroupedEpisode], possible: Mapping[str, int]
) -> Iterator[GroupedEpisode]:
    """Episodes in groups: all scored ones of the same type of tasks, if they are at least `SMALLEST_GROUP`;
    any other is alone in a group.

    The first few of a type are given late, when it is known how many there are.

    Args:
        possible: how many of each type may be scored, at most.
    """
    waiting: dict[str, list[GroupedEpisode]] = {}
    for episode in episodes:
        task_type = episode.tables.task_types[episode.place]
        if not episode.is_scored or possible.get(task_type, 0) < SMALLEST_GROUP:
            yield episode
            continue
        of_type = waiting.setdefault(task_type, [])
        if len(of_type) < SMALLEST_GROUP:
            of_type.append(episode)
            if len(of_type) < SMALLEST_GROUP:
                continue
            ready = of_type
        else:
            ready = [episode]
        group = trajectory_id(artifact_id, "group", task_type)
        yield from (each._replace(group_id=group) for each in ready)
    for of_type in waiting.values():
        if len(of_type) < SMALLEST_GROUP:
            yield from of_type


def _rows(episodes: Iterable[GroupedEpisode], name: str) -> pa.Table:
    """The rows of these episodes in one of the files."""
    parts: list[tuple[pa.Table, int, int]] = []
    groups: list[str] = []
    for each in episodes:
        table, begins = each.tables.tables[name], each.tables.begins[name]
        first, end = begins[each.place : each.place + 2]
        groups += [each.group_id] * (end - first)
        if parts and parts[-1][0] is table and parts[-1][2] == first:
            parts[-1] = (table, parts[-1][1], end)
        else:
            parts.append((table, first, end))
    rows = pa.concat_tables([table.slice(first, end - first) for table, first, end in parts])
    if _FILES[name] is TRAJECTORY_TABLE and any(groups):
        place, alone = rows.schema.get_field_index("group_id"), rows["group_id"].to_pylist()
        ids = [shared or own for shared, own in zip(groups, alone, strict=True)]
        rows = rows.set_column(place, rows.schema.field(place), pa.array(ids, pa.string()))
    return rows.combine_chunks()
