"""Rows that are found by the stored places are the same as those found by reading the whole store."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.watched import WatchedStore
from storage.errors import InputError
from storage.lineage.graph import ArtifactGraph
from storage.lineage.reach import downstream, near, upstream
from storage.lineage.row_graph import RowPlaces
from storage.tables.parquet import write_rows
from storage.tables.trajectories import TRAJECTORIES
from tests.histories import History, trajectory_row, write_history

ROWS = ("first", "reflection", "second", "m-1", "s-second", "reflection-2", "second-2", "first-3", "held-out")


def test_a_row_has_the_same_lineage_by_places_as_by_the_whole_store(history: History) -> None:
    store = WatchedStore(history.store.uri)
    graph, places = ArtifactGraph(store.list()), RowPlaces(store)
    places.look(graph.manifests.values())
    # `reflection` is an id, and the beginning of another one.
    for row in (*ROWS, "m-", "s-sec", history.ids["shard"]):
        for depth in (1, 2, 6):
            came = near(store, graph, lambda: places, row, "upstream", depth)
            assert came == upstream(history.store, None, row, depth)
            led = near(store, graph, lambda: places, row, "downstream", depth)
            assert led == downstream(history.store, None, row, depth)
    with pytest.raises(InputError, match="has an id 'nowhere'"):
        near(store, graph, lambda: places, "nowhere", "upstream", 2)


def test_the_artifacts_around_a_row_are_those_that_hold_its_rows(history: History) -> None:
    store = WatchedStore(history.store.uri)
    places = RowPlaces(store)
    places.look(store.list())
    names = {artifact_id: name for name, artifact_id in history.ids.items()}

    def around(*asked: object) -> set[str]:
        return {names[each] for each in places.around(*asked)}  # type: ignore[arg-type]

    # The SFT row came from the second attempt, which is in the shard with its whole episode.
    assert around("s-second", "upstream", 0) == {"dataset"}
    assert around("s-second", "upstream", None) == {"dataset", "shard"}
    # The entry was seen by a reflection of the second iteration.
    assert around("m-1", "downstream", 1) == {"memory", "shard-2"}


def test_an_artifact_that_comes_or_goes_is_looked_at(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    store = WatchedStore(history.store.uri)
    places = RowPlaces(store)
    places.look(store.list())
    assert places.around("late", "upstream", 2) == []
    late = trajectory_row(trajectory_id="late", parent_trajectory_id="first-3")
    recipe = Recipe("rollout_shard", 1, {"name": "late"}, {}, 0, kind="trajectories")
    with history.store.create(recipe, run="base", iteration=3) as staging:
        write_rows(staging.path / "trajectories.parquet", [late], TRAJECTORIES)
        staging.commit()
    places.look(store.list())
    assert set(places.around("late", "upstream", 1)) == {recipe.artifact_id, history.ids["shard-3"]}
    manifest = history.store.find(recipe.artifact_id)
    assert manifest is not None
    history.store.remove(manifest)
    places.look(store.list())
    assert places.around("late", "upstream", 2) == []
