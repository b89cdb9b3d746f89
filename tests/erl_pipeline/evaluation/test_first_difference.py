"""Where two runs or two files first differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from erl_pipeline.evaluation.first_difference import (
    Divergence,
    first_divergence,
    first_row_difference,
    first_tensor_difference,
)
from erl_pipeline.evaluation.history import read_history
from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.run import RunStore
from storage.tables.parquet import write_rows
from storage.tables.trajectories import TRAJECTORIES
from tests.histories import trajectory_row


def table(path: Path, *rows: dict[str, Any]) -> Path:
    given = [trajectory_row(**{"trajectory_id": f"{path.stem}-{at}", **row}) for at, row in enumerate(rows)]
    write_rows(path, given, TRAJECTORIES)
    return path


def test_ids_versions_and_seeds_do_not_count(tmp_path: Path) -> None:
    a = table(tmp_path / "a.parquet", {"policy_version": "p", "seed": 1, "episode_id": "e"})
    b = table(tmp_path / "b.parquet", {"policy_version": "q", "seed": 2, "episode_id": "f"})
    assert first_row_difference(a, b, "rows") is None


def test_the_earliest_row_counts_whichever_column_it_is_in(tmp_path: Path) -> None:
    a = table(tmp_path / "a.parquet", {}, {"reward": 0.0, "task_id": "t7"}, {"feedback": "fell"})
    b = table(tmp_path / "b.parquet", {}, {"reward": 1.0, "task_id": "t7"}, {"feedback": "lost"})
    found = first_row_difference(a, b, "rows")
    assert found is not None
    assert (found.row, found.column, found.a, found.b) == (1, "reward", "0.0", "1.0")
    assert found.place["task_id"] == "t7"


def test_nan_is_no_difference_from_itself(tmp_path: Path) -> None:
    def row(feedback: str, logprobs: list[float]) -> dict[str, Any]:
        tokens: dict[str, Any] = {"response_token_ids": [3, 4], "response_mask": [1, 1]}
        return {"reward": float("nan"), "behaviour_logprobs": logprobs, "feedback": feedback, **tokens}

    nan = float("nan")
    a = table(tmp_path / "a.parquet", row("fell", [nan, -0.5]))
    found = first_row_difference(a, table(tmp_path / "b.parquet", row("lost", [nan, -0.5])), "rows")
    assert found is not None
    assert found.column == "feedback"
    found = first_row_difference(a, table(tmp_path / "c.parquet", row("fell", [nan, -0.25])), "rows")
    assert found is not None
    assert (found.column, found.token, found.b) == ("behaviour_logprobs", 1, "-0.25")


@pytest.mark.parametrize(
    ("other", "token", "value"), [([3, 9, 5], 1, "9"), ([3, 4], 2, "the end"), ([3, 4, 5, 6], 3, "6")]
)
def test_the_first_token_that_differs_is_named(
    tmp_path: Path, other: list[int], token: int, value: str
) -> None:
    def response(tokens: list[int]) -> dict[str, Any]:
        return {"response_token_ids": tokens, "response_mask": [1] * 3, "behaviour_logprobs": [-0.5] * 3}

    a, b = table(tmp_path / "a.parquet", response([3, 4, 5])), table(tmp_path / "b.parquet", response(other))
    found = first_row_difference(a, b, "rows")
    assert found is not None
    assert (found.column, found.token, found.b) == ("response_token_ids", token, value)


def test_a_table_that_only_goes_on_differs_where_the_other_ends(tmp_path: Path) -> None:
    a, b = table(tmp_path / "a.parquet", {}), table(tmp_path / "b.parquet", {}, {"sample_index": 1})
    found = first_row_difference(a, b, "rows")
    assert found is not None
    assert (found.row, found.a, found.b, found.place["sample_index"]) == (1, "1 rows", "2 rows", 1)


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_first_element_the_number_and_the_largest_difference_are_told(
    tmp_path: Path, kind: torch.dtype
) -> None:
    ours = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=kind)
    theirs = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.5, 8.0]], dtype=kind)
    same = torch.ones(2, dtype=kind)
    a = saved(tmp_path / "a.safetensors", first=same, second=ours)
    b = saved(tmp_path / "b.safetensors", first=same, second=theirs)
    found = first_tensor_difference(a, b, "model")
    assert found is not None
    assert (found.tensor, found.position, found.a, found.b) == ("second", (1, 1), "5", "5.5")
    assert (found.count, found.largest) == (2, 2.0)
    assert first_tensor_difference(a, a, "model") is None


def test_elements_are_compared_by_their_bytes(tmp_path: Path) -> None:
    """0.0 and -0.0 differ, and NaN is the same as itself; no difference is the largest where one is NaN."""
    nan, nothing = float("nan"), torch.zeros(0)
    a = saved(tmp_path / "a.safetensors", nothing=nothing, weight=torch.tensor([nan, 1.0, 0.0]))
    b = saved(tmp_path / "b.safetensors", nothing=nothing, weight=torch.tensor([nan, 1.0, -0.0]))
    found = first_tensor_difference(a, b, "model")
    assert found is not None
    assert (found.position, found.count, found.a, found.b, found.largest) == ((2,), 1, "0", "-0", None)


def test_other_names_and_shapes_are_differences(tmp_path: Path) -> None:
    a = saved(tmp_path / "a.safetensors", weight=torch.zeros(2))
    b = saved(tmp_path / "b.safetensors", weight=torch.zeros(3))
    c = saved(tmp_path / "c.safetensors", weight=torch.zeros(2), bias=torch.zeros(1))
    shape, name = first_tensor_difference(a, b, "m"), first_tensor_difference(a, c, "m")
    assert shape is not None
    assert name is not None
    assert (shape.what, shape.a, shape.b) == ("shape of weight", "F32 [2]", "F32 [3]")
    assert (name.tensor, name.a, name.b) == ("bias", "absent", "there")


def test_what_is_no_safetensors_file_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    with pytest.raises(StoreError, match=r"bad\.safetensors is not a safetensors file"):
        first_tensor_difference(bad, bad, "m")


Stage = tuple[str, int | None, ArtifactKind, Mapping[str, Any], float]
"""Name, iteration, kind, settings, and the reward of its one row."""

BEGIN: Stage = ("bootstrap", None, "checkpoint", {"seed": 1}, 0.0)


def divergence(folder: Path, a: Sequence[Stage], b: Sequence[Stage]) -> Divergence:
    store, runs = ArtifactStore(str(folder)), RunStore(str(folder))
    histories = []
    for name, stages in (("a", a), ("b", b)):
        run = runs.create(name, {"name": name})
        for stage, iteration, kind, settings, reward in stages:
            recipe = Recipe(stage, 1, dict(settings), {}, 0, kind=kind)
            if store.find(recipe.artifact_id) is None:
                with store.create(recipe, run=name, iteration=iteration) as staging:
                    row = trajectory_row(trajectory_id=recipe.artifact_id, reward=reward)
                    write_rows(staging.path / "rows.parquet", [row], TRAJECTORIES)
                    staging.commit()
            run.record(iteration, stage, recipe.artifact_id, kind=kind, reused=False, seconds=0.0)
        histories.append(read_history(store, run))
    return first_divergence(store, *histories)


def shard(iteration: int, samples: int, reward: float) -> Stage:
    settings = {"iteration": iteration, "samples": samples}
    return "rollout_shard", iteration, "trajectories", settings, reward


def test_runs_that_share_everything_do_not_part(tmp_path: Path) -> None:
    found = divergence(tmp_path, [BEGIN, shard(1, 4, 0.5)], [BEGIN, shard(1, 4, 0.5)])
    assert (found.shared, found.parting, found.at, found.content) == (2, None, None, None)


def test_another_recipe_comes_first_and_other_content_later(tmp_path: Path) -> None:
    a = [BEGIN, shard(1, 4, 0.5), shard(2, 4, 0.5)]
    b = [BEGIN, shard(1, 8, 0.5), shard(2, 8, 1.0)]
    found = divergence(tmp_path, a, b)
    assert found.parting is not None
    assert found.at is not None
    assert found.content is not None
    assert (found.shared, found.parting.place.iteration, found.parting.recipe) == (1, 1, ("samples: 4 -> 8",))
    assert (found.alike, found.at.place.iteration) == (1, 2)
    assert (found.content.row, found.content.column, found.content.a) == (0, "reward", "0.5")


@pytest.mark.parametrize("longer", ["a", "b"])
def test_a_run_that_ends_earlier_parts_where_it_ends(tmp_path: Path, longer: str) -> None:
    runs = {"a": [BEGIN], "b": [BEGIN], longer: [BEGIN, shard(1, 4, 0.5)]}
    found = divergence(tmp_path, runs["a"], runs["b"])
    assert found.at is not None
    assert found.at.place.iteration == 1
    assert (found.at.a is None, found.at.b is None) == (longer == "b", longer == "a")
    assert found.content is None
