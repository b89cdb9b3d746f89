"""Audits of a small run: what is equal, what differs, and what is reported."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from erl_pipeline.plan.listener import NullListener
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.audit import AuditResult, audit
from erl_pipeline.stages.training.build_distillation import BUILD_DISTILLATION
from storage.artifacts.manifest import Determinism
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from tests.erl_pipeline.runs.small_runs import damage, ids


def audited(store: Path, tmp_path: Path, iteration: int, stage: str, last: int = 2) -> list[AuditResult]:
    return audit(
        str(store), "small", iteration, stage, last, tmp_path / "scratch", NullListener(), threading.Event()
    )


def by_stage(results: list[AuditResult]) -> dict[tuple[int, str], str]:
    return {(each.iteration, f"{each.stage} {each.key}".strip()): each.verdict for each in results}


def files_of(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def test_a_whole_run_is_computed_again_to_equal_bytes_and_nothing_is_written(
    store: Path, tmp_path: Path
) -> None:
    before = files_of(store)
    results = audited(store, tmp_path, 0, "prepare_tasks")
    assert len(results) == len(ids(store))
    assert set(by_stage(results).values()) == {"equal"}
    assert files_of(store) == before
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_audit_begins_with_a_stage_and_ends_with_an_iteration(trained: Path, tmp_path: Path) -> None:
    results = audited(trained, tmp_path, 1, "build_distillation", last=1)
    assert [(each.iteration, each.stage) for each in results] == [(1, "build_distillation"), (1, "fine_tune")]


def test_a_stage_that_the_iteration_lacks_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--from evaluate: the stages of iteration 1 are generate_rollouts,"):
        audited(trained, tmp_path, 1, "evaluate")


def test_checkpoints_name_the_attention_with_which_they_were_trained(trained: Path) -> None:
    store = ArtifactStore(str(trained))
    named = {
        key.stage: store.open(artifact_id).manifest.environment.get("attention")
        for key, artifact_id in ids(trained).items()
    }
    assert (named["update_policy"], named["fine_tune"], named["evaluate"]) == ("blocks", "blocks", None)


def test_damaged_files_are_told(store: Path, tmp_path: Path) -> None:
    victim = damage(store, 2, "evaluate")
    (result,) = [each for each in audited(store, tmp_path, 2, "fine_tune") if each.stage == "evaluate"]
    assert result.verdict == "damaged"
    assert str(victim) in result.differences[0]


def rewrite(store: Path, place: StageKey, determinism: Determinism) -> None:
    """Replace an artifact's only table with the same rows in other bytes, with a manifest that fits them."""
    artifacts = ArtifactStore(str(store))
    old = artifacts.open(ids(store)[place])
    (entry,) = old.files
    table, manifest = pq.read_table(old.path(entry.path)), old.manifest
    artifacts.remove(manifest)
    with artifacts.create(manifest.recipe, run=manifest.run, iteration=manifest.iteration) as staging:
        pq.write_table(table, staging.path / entry.path, compression="none")
        staging.commit(counters=dict(manifest.counters), determinism=determinism)


def test_other_bytes_are_different_where_equal_ones_are_promised(store: Path, tmp_path: Path) -> None:
    place = StageKey(2, "evaluate", "")
    verdicts: dict[Determinism, str] = {"bytes": "different", "approximate": "not promised"}
    for determinism, verdict in verdicts.items():
        rewrite(store, place, determinism)
        (result,) = audited(store, tmp_path, 2, "evaluate")
        assert result.verdict == verdict
        assert result.differences[0].startswith("evaluation.parquet has SHA-256")


def test_a_program_that_would_make_another_artifact_says_so(store: Path, tmp_path: Path) -> None:
    before = BUILD_DISTILLATION.version
    object.__setattr__(BUILD_DISTILLATION, "version", 99)
    try:
        results = audited(store, tmp_path, 2, "build_distillation")
    finally:
        object.__setattr__(BUILD_DISTILLATION, "version", before)
    assert by_stage(results) == {
        (2, "build_distillation"): "other recipe",
        (2, "fine_tune"): "equal",
        (2, "evaluate"): "equal",
    }
    assert results[0].differences == (f"stage version: {before} -> 99",)
