from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.errors import InputError
from storage.lineage.graph import runs_by_artifact
from storage.lineage.reach import Reach, downstream, upstream
from tests.histories import History, write_history


def steps(history: History, reach: Reach) -> dict[str, int]:
    """Steps to each row, by id, and to each artifact, by its name in the history."""
    names = {artifact_id: name for name, artifact_id in history.ids.items()}
    return {names.get(thing.id, thing.id): thing.depth for thing in reach.things}


def test_an_sft_row_came_from_its_episode_and_from_what_made_the_rows(history: History) -> None:
    reach = upstream(history.store, history.base, "s-second")
    assert steps(history, reach) == {
        "second": 1,
        "dataset": 1,
        "reflection": 2,
        "shard": 2,
        "rollouts": 2,
        "first": 3,
        "bootstrap": 3,
    }
    told = {thing.id: (thing.relation, thing.via) for thing in reach.things}
    assert told["second"] == ("trajectory that it teaches", "s-second")
    assert told["reflection"] == ("trajectory it followed", "second")
    assert told["first"] == ("trajectory it followed", "reflection")
    assert told[history.ids["shard"]] == ("artifact that holds it", "second")
    assert told[history.ids["bootstrap"]] == ("its input checkpoint", history.ids["shard"])


def test_a_memory_entry_reached_the_reflections_that_saw_it_and_what_trained_on_them(
    history: History,
) -> None:
    reach = downstream(history.store, history.base, "m-1")
    assert steps(history, reach) == {
        "reflection-2": 1,
        "second-2": 2,
        "update-2": 2,
        "tuned-2": 3,
        "scores-2": 4,
    }
    assert reach.trained == (history.ids["update-2"],)
    assert reach.things[0].facts["task_id"] == "t2"


def test_a_first_attempt_reached_policies_of_both_runs_that_share_its_shard(history: History) -> None:
    reach = downstream(history.store, history.base, "first")
    found = steps(history, reach)
    rows = {"reflection": 1, "second": 2, "m-1": 2, "s-second": 3, "reflection-2": 3, "second-2": 4}
    assert rows.items() <= found.items()
    assert (found["update"], found["update-branch"]) == (1, 1)
    # The fine-tuned policy began from one that trained on it; that path is shorter than the one by the SFT
    # row.
    assert (found["tuned"], found["scores"], found["update-2"]) == (2, 3, 3)
    # Neither is on a path from this row: memory and dataset are reached through the rows that they contain.
    assert not {"memory", "dataset", "rollouts"} & found.keys()
    names = {"update", "update-branch", "tuned", "update-2"}
    assert set(reach.trained) == {history.ids[name] for name in names}


def test_a_row_that_nothing_came_of_reached_the_policies_that_trained_on_it_and_their_heirs(
    history: History,
) -> None:
    reach = downstream(history.store, history.base, "first-3")
    assert steps(history, reach) == {"update-2": 1, "tuned-2": 2, "scores-2": 3}
    assert downstream(history.store, history.base, "held-out").things == ()


def test_depth_counts_steps_over_rows_and_artifacts_alike(history: History) -> None:
    near = downstream(history.store, history.base, "first", depth=1)
    assert steps(history, near) == {"reflection": 1, "update": 1, "update-branch": 1}
    further = upstream(history.store, history.base, "s-second", depth=2)
    assert steps(history, further) == {"second": 1, "dataset": 1, "reflection": 2, "shard": 2, "rollouts": 2}


def test_of_an_artifact_only_artifacts_are_told(history: History) -> None:
    reach = downstream(history.store, history.base, history.ids["tuned"][:20])
    assert steps(history, reach) == {
        "scores": 1,
        "shard-2": 1,
        "shard-3": 1,
        "update-2": 1,
        "rollouts-2": 2,
        "tuned-2": 2,
        "memory-2": 3,
        "dataset-2": 3,
        "scores-2": 3,
    }
    assert reach.trained == (history.ids["update-2"],)
    above = upstream(history.store, history.base, history.ids["dataset"])
    assert steps(history, above) == {"rollouts": 1, "shard": 2, "bootstrap": 3}


def test_a_list_of_shards_trained_the_policies_that_read_it_and_no_others(history: History) -> None:
    reach = downstream(history.store, history.base, history.ids["rollouts"])
    assert set(reach.trained) == {history.ids["update"], history.ids["update-branch"]}


def test_the_id_is_looked_for_in_the_run_that_is_named(history: History) -> None:
    with pytest.raises(InputError, match="an id 'm-1'"):
        upstream(history.store, history.branch, "m-1")
    assert steps(history, upstream(history.store, None, "m-1"))["shard"] == 2


def test_runs_that_share_an_artifact_are_named(history: History) -> None:
    runs = runs_by_artifact(history.runs)
    assert runs[history.ids["shard"]] == ["base", "branch"]
    assert runs[history.ids["update-branch"]] == ["branch"]
    assert runs[history.ids["tuned-2"]] == ["base"]


def test_a_row_that_lies_in_two_artifacts_is_one_row_and_reaches_what_trained_on_either(
    tmp_path: Path,
) -> None:
    history = write_history(str(tmp_path / "store"))
    store = history.store
    copied = Recipe("replay_buffer", 1, {}, {"rollouts": history.ids["rollouts-2"]}, 0)
    with store.create(copied, run="base", iteration=3) as staging:
        source = store.open(history.ids["shard-3"]).path("trajectories.parquet")
        shutil.copy(source, staging.path / "trajectories.parquet")
        staging.commit()
    trained = Recipe("update_policy", 1, {}, {"replayed": copied.artifact_id}, 0, kind="checkpoint")
    with store.create(trained, run="base", iteration=3) as staging:
        staging.commit(policy_version=trained.artifact_id)
    reach = downstream(store, None, "first-3")
    assert set(reach.trained) == {history.ids["update-2"], trained.artifact_id}
    above = {thing.id: thing.depth for thing in upstream(store, None, "first-3").things}
    assert (above[history.ids["shard-3"]], above[copied.artifact_id]) == (1, 1)


def test_rows_of_an_object_store_are_followed_too(object_store_uri: str) -> None:
    history = write_history(object_store_uri)
    assert steps(history, downstream(history.store, history.base, "m-1"))["scores-2"] == 4
    assert steps(history, upstream(history.store, history.base, "s-second"))["first"] == 3
