"""The benchmark trains a real run and continues it, and its table shows what was measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from erl_pipeline.config.loading import load_config
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("iteration_growth")


def test_one_more_iteration_of_a_real_run_is_measured(growth: ModuleType, tmp_path: Path) -> None:
    config = load_config(growth.configuration(tmp_path), ["policy.cold_start.steps=4"])
    growth.configuration(tmp_path).write_text(growth.CONFIG.replace("steps: 60", "steps: 4"))
    growth.build(tmp_path, config, 2)
    assert growth.stored_iterations(tmp_path, config) == 2
    figures = growth.one_more(tmp_path)
    assert growth.stored_iterations(tmp_path, config) == 3
    assert figures["stored"] == 2
    assert figures["train"] == pytest.approx(figures["before"] + figures["stages"] + figures["around"])
    assert min(figures.values()) > 0
    report = verify_run(ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)).open(growth.RUN))
    assert report.problems == []


def test_the_table_has_medians_ranges_and_their_ratio(growth: ModuleType) -> None:
    def runs(stored: int, seconds: list[float]) -> list[dict[str, float]]:
        names = [*growth.FIGURES, "cpu_seconds"]
        return [
            {**dict.fromkeys(names, value), "peak_bytes": 5e8, "stored": stored + 2.0 * number}
            for number, value in enumerate(seconds)
        ]

    rows = growth.result_table({10: runs(10, [2.0, 1.0, 4.0]), 1000: runs(1000, [3.0, 2.0, 9.0])})
    assert rows[0] == ["seconds", "10 to 15 stored", "1,000 to 1,005 stored", "ratio of medians"]
    assert rows[1][1:] == ["2.000 (1.000 to 4.000)", "3.000 (2.000 to 9.000)", "1.50"]
    assert rows[-1] == ["peak memory, MB", "500 (500 to 500)", "500 (500 to 500)", "1.00"]
