"""A run compared with a copy of it, in a copy of its store in which something was changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from erl_pipeline.plan.plan import Place
from erl_pipeline.runs.certificate.comparison import Comparison, compare_copy
from erl_pipeline.runs.certificate.subject import find_subject
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import damage, ids

STAGES = 18
"""The number of artifacts: 3 before the first iteration; in each of two iterations 2 shards, their rollouts,
memory, update, dataset and fine-tuning; and a last evaluation."""


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "copy"))


def compare(store: Path, copy: Path) -> Comparison:
    return compare_copy(find_subject(str(store), "small"), str(copy))


def test_an_equal_copy_has_every_artifact_and_nothing_else(store: Path, copy: Path) -> None:
    found = compare(store, copy)
    assert (found.artifacts, found.lost, found.doubled, found.different) == (STAGES, [], [], [])
    artifacts = ArtifactStore(str(store))
    manifests = [artifacts.open(each).manifest for each in ids(store).values()]
    assert found.files == sum(len(manifest.files) for manifest in manifests)


def test_a_changed_byte_of_the_run_is_a_difference(store: Path, copy: Path) -> None:
    path = damage(store, 1, "build_distillation")
    found = compare(store, copy)
    assert found.artifacts == STAGES - 1
    [line] = found.different
    assert line.startswith("build_distillation of iteration 1: artifact ")
    assert str(path) in line


def test_an_artifact_that_the_copy_lacks_is_lost(store: Path, copy: Path) -> None:
    evaluation = ids(copy)[Place(2, "evaluate", "")]
    shutil.rmtree(copy / "artifacts" / "evaluate" / evaluation)
    found = compare(store, copy)
    assert found.lost == [f"evaluate of iteration 2 ({evaluation}) is not in the copy's store"]


def test_what_is_computed_again_or_belongs_to_no_stage_is_doubled(store: Path, copy: Path) -> None:
    run = RunStore(str(copy)).open("small")
    update = ids(copy)[Place(2, "update_policy", "")]
    with run.lock():
        run.record(2, "update_policy", update, kind="checkpoint", reused=False, seconds=1.0)
    stray = Recipe("stray", 1, {}, {}, 0)
    with ArtifactStore(str(copy)).create(stray, run="small", iteration=None) as staging:
        staging.commit()
    found = compare(store, copy)
    assert found.doubled == [
        "update_policy of iteration 2 was computed 2 times",
        f"artifact {stray.artifact_id} (stray) is not part of the plan",
    ]
