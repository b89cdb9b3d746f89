from __future__ import annotations

import pytest

from storage.artifacts.manifest import code_version
from storage.errors import InputError
from storage.lineage.graph import ArtifactGraph
from storage.lineage.questions import made_by, policies_trained_on, rows_using_memory
from storage.lineage.rows import LineageRows
from tests.histories import History


@pytest.fixture(scope="module")
def rows(history: History) -> LineageRows:
    return LineageRows(history.store, list(history.store.list()))


@pytest.fixture(scope="module")
def graph(history: History) -> ArtifactGraph:
    return ArtifactGraph(history.store.list())


def test_rows_that_used_a_memory_entry_are_those_that_saw_it_and_those_that_followed(
    history: History, rows: LineageRows
) -> None:
    found = rows_using_memory(rows, "m-")
    assert found.select("id", "how", "iteration", "task_id", "artifact_id").rows() == [
        ("reflection-2", "saw it", 2, "t2", history.ids["shard-2"]),
        ("second-2", "followed a trajectory that saw it", 2, "t2", history.ids["shard-2"]),
    ]


def test_only_memory_entries_have_a_use(rows: LineageRows) -> None:
    with pytest.raises(InputError, match="no memory entry has an id 'first'"):
        rows_using_memory(rows, "first")


def test_policies_that_trained_on_a_task_directly_and_as_descendants(
    history: History, rows: LineageRows, graph: ArtifactGraph
) -> None:
    def found(task: str) -> dict[str, tuple[str, int]]:
        names = {artifact_id: name for name, artifact_id in history.ids.items()}
        frame = policies_trained_on(rows, graph, task)
        return {names[row["policy"]]: (row["how"], row["rows"]) for row in frame.to_dicts()}

    assert found("t1") == {
        "update": ("directly", 3),
        "update-branch": ("directly", 3),
        "tuned": ("directly", 1),
        "update-2": ("directly", 1),
        "tuned-2": ("as a descendant", 0),
    }
    assert found("t2") == {"update-2": ("directly", 3), "tuned-2": ("as a descendant", 0)}
    assert found("h1") == {}


def test_a_task_that_nobody_played_is_named_with_an_example(rows: LineageRows, graph: ArtifactGraph) -> None:
    with pytest.raises(InputError, match=r"no row is of task 't9'; tasks are named like '(t1|t2|h1)'"):
        policies_trained_on(rows, graph, "t9")


def test_all_that_a_version_of_the_code_made(history: History) -> None:
    manifests = list(history.store.list())
    found = made_by(manifests, code_version()[:7])
    assert set(found["artifact_id"]) == set(history.ids.values())
    assert found["rows"].sum() == 3 + 1 + 1 + 1 + 3 + 1 + 1
    assert found["finished_at"].is_sorted()
    older = [
        manifest.model_copy(update={"code_version": "older"}) if manifest.stage == "evaluate" else manifest
        for manifest in manifests
    ]
    assert set(made_by(older, "older")["artifact_id"]) == {history.ids["scores"], history.ids["scores-2"]}
    with pytest.raises(InputError, match=r"nothing was made by code version 'no'.*older \(2\)"):
        made_by(older, "no")
