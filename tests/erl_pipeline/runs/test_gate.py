"""The gate of the cold start, in a run."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.plan.plan import StageKey
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from tests.erl_pipeline.runs.small_runs import SMALL, Notes, go, ids, small


def trained(store: Path, gate: float) -> tuple[Manifest, Notes]:
    """A cold start of at least 4 and at most 9 steps, and the messages that it printed."""
    cold_start = {"steps": 4, "most_steps": 9, "demonstrations_per_step": 4, "gate": gate}
    config = small(policy={**SMALL["policy"], "cold_start": cold_start})
    notes = go(config, store, stop_after="bootstrap")
    return ArtifactStore(str(store)).open(ids(store)[StageKey(0, "bootstrap", "")]).manifest, notes


def test_a_cold_start_that_misses_its_gate_says_so_and_what_to_do(tmp_path: Path) -> None:
    manifest, notes = trained(tmp_path, gate=1.0)
    assert (manifest.counters["optimizer_steps"], manifest.counters["gate_missed"]) == (9, 1)
    right = manifest.metrics["seen_slots_right"]
    assert right < 1.0
    assert notes.warnings == [
        f"the cold start ended after 9 steps with seen_slots_right {right:.2f}, less than "
        "policy.cold_start.gate: 1; reflections may keep what the attempt has refuted. Raise "
        "policy.cold_start.most_steps, or choose another policy.cold_start.seed"
    ]


def test_without_a_gate_the_steps_are_taken_and_the_share_is_told_all_the_same(tmp_path: Path) -> None:
    manifest, notes = trained(tmp_path, gate=0.0)
    assert (manifest.counters["optimizer_steps"], manifest.counters["gate_missed"]) == (4, 0)
    assert 0.0 <= manifest.metrics["seen_slots_right"] <= 1.0
    assert notes.warnings == []
