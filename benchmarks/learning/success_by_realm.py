"""The success of each arm of a comparison in realms, realm by realm.

    python benchmarks/learning/success_by_realm.py comparison/store benchmarks/results/three_realms

It reads the greedy attempts on the test boards from the comparison's store, in each run at its first
evaluation at or after the token budget, and writes `by_realm.json` beside `comparison.json`. The realms of a
run are ranked by its success in them, since each seed hides other words behind a realm's name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from erl_pipeline.comparison.arms import Arm
from erl_pipeline.evaluation.history import read_history, test_evaluations
from erl_pipeline.stages.evaluation.scores import greedy_outcomes
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.sequences import attempt_files
from storage.tables.trajectories import scan_trajectories

RANKS = ("best_realm", "second_realm", "worst_realm")


def success_by_realm(store_uri: str, run: str, iteration: int) -> dict[str, float]:
    """The success rate of a run's greedy first attempts in each realm, after an iteration."""
    store = ArtifactStore(store_uri)
    evaluations = test_evaluations(read_history(store, RunStore(store_uri).open(run)))
    (found,) = [each for each in evaluations if each.iteration == iteration]
    rows = scan_trajectories(attempt_files([store.open(found.manifest.artifact_id)])).collect()
    payloads = dict(rows.select("task_id", "task_payload").iter_rows())
    by_realm: dict[str, list[bool]] = {}
    for task, solved in greedy_outcomes(rows).items():
        by_realm.setdefault(json.loads(payloads[task])["realm"], []).append(solved)
    return {realm: fmean(solved) for realm, solved in sorted(by_realm.items())}


def ranked(by_seed: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean over seeds of the success in the best realm of each, the second, and so on."""
    successes = [sorted(each.values(), reverse=True) for each in by_seed.values()]
    return {rank: fmean(each) for rank, each in zip(RANKS, zip(*successes, strict=True), strict=True)}


def main(store_uri: str, folder: Path) -> None:
    """Write the file of a comparison."""
    compared = json.loads((folder / "comparison.json").read_text())
    budget, arms = compared["budgets"]["generated_tokens"], dict[str, Any]()
    for arm, found in compared["arms"].items():
        by_seed = {}
        for seed, run in found["seeds"].items():
            reached = [each["iteration"] for each in run["curve"] if each["generated_tokens"] >= budget]
            name = f"{compared['name']}.{Arm(arm).run_part}.seed{seed}"
            by_seed[seed] = success_by_realm(store_uri, name, min(reached))
        arms[arm] = {"by_seed": by_seed, **ranked(by_seed)}
    (folder / "by_realm.json").write_text(json.dumps(arms, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
