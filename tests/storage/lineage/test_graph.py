"""Walks over artifacts, on the small hand-written history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from storage.artifacts.manifest import Manifest
from storage.errors import InputError
from storage.lineage.graph import START, ArtifactGraph, Visit, reachable, walk, walk_inputs
from tests.histories import History

LINKS = {"a": ["b", "c"], "b": ["d"], "c": ["d", "a"], "d": []}


def named(history: History, artifact_ids: Mapping[str, object] | list[str]) -> list[str]:
    names = {artifact_id: name for name, artifact_id in history.ids.items()}
    return [names[artifact_id] for artifact_id in artifact_ids]


def test_each_is_reached_once_by_its_shortest_way_also_in_a_circle() -> None:
    def links(name: str) -> list[tuple[str, str]]:
        return [(f"of {name}", other) for other in LINKS[name]]

    assert walk({"a": START}, links) == {
        "a": START,
        "b": Visit(1, "of a", "a"),
        "c": Visit(1, "of a", "a"),
        "d": Visit(2, "of b", "b"),
    }
    assert list(walk({"a": START}, links, depth=1)) == ["a", "b", "c"]
    assert walk({"a": Visit(3, "", "x"), "d": START}, links)["d"] == START


def test_inputs_are_followed_to_their_end_and_each_manifest_is_read_once(history: History) -> None:
    read: Counter[str] = Counter()

    def find(artifact_id: str) -> Manifest | None:
        read[artifact_id] += 1
        return history.store.find(artifact_id)

    found = walk_inputs(find, [history.ids["dataset-2"]])
    assert named(history, found.manifests)[:4] == ["dataset-2", "rollouts-2", "shard-2", "shard-3"]
    assert set(read.values()) == {1}
    assert not found.missing
    line = walk_inputs(find, [history.ids["tuned-2"]], through={"checkpoint"})
    assert named(history, line.manifests) == ["tuned-2", "update-2", "tuned", "update", "bootstrap"]


def test_what_is_named_and_missing_is_told_with_who_named_it(history: History) -> None:
    gone = history.ids["shard"]
    found = walk_inputs(
        lambda one: None if one == gone else history.store.find(one), [history.ids["dataset"]]
    )
    assert named(history, found.manifests) == ["dataset", "rollouts"]
    assert found.missing == {gone: Visit(2, "its input shard-0000", history.ids["rollouts"])}
    with pytest.raises(InputError, match="no artifact abc"):
        reachable(history.store, ["abc"])


def test_descendants_are_everything_made_from_it_the_nearest_first(history: History) -> None:
    graph = ArtifactGraph(history.store.list())
    found = graph.descendants({history.ids["dataset"]: START}, depth=2)
    assert named(history, found)[:2] == ["dataset", "tuned"]
    assert set(named(history, found)[2:]) == {"scores", "shard-2", "shard-3", "update-2"}


def test_the_nearest_checkpoints_have_no_other_in_between(history: History) -> None:
    graph, shard = ArtifactGraph(history.store.list()), history.ids["shard"]
    assert set(named(history, graph.policies_trained_on(shard))) == {"update", "update-branch"}
    through_all = named(history, graph.nearest_checkpoints([shard]))
    assert set(through_all) == {"update", "update-branch", "tuned", "update-2", "tuned-2"}
    without_memory = graph.nearest_checkpoints([shard], through=lambda one: one.kind != "memory")
    assert set(named(history, without_memory)) == {"update", "update-branch", "tuned"}
    assert set(named(history, graph.nearest_checkpoints([history.ids["update"]]))) == {"tuned"}
