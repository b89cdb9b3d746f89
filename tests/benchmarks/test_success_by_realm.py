from __future__ import annotations

import importlib
from pathlib import Path

import pytest


def test_realms_are_ranked_in_each_run_before_the_mean_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    ranked = importlib.import_module("learning.success_by_realm").ranked
    found = ranked({"0": {"r0": 0.1, "r1": 0.5, "r2": 0.2}, "1": {"r0": 0.7, "r1": 0.0, "r2": 0.4}})
    # 0.5 and 0.7, 0.2 and 0.4, 0.1 and 0.
    assert found == pytest.approx({"best_realm": 0.6, "second_realm": 0.3, "worst_realm": 0.05})
