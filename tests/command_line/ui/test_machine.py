"""The curves of what a run used of its machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from command_line.ui.machine_pages import machine_numbers, read_samples, stage_times
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.runs.log import log_file
from erl_pipeline.runs.machine_use import MACHINE_LOG, GpuUse, MachineUse
from storage.artifacts.manifest import Manifest
from tests.command_line.ui.clients import client, main_text
from tests.command_line.ui.stores import write_page_store

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGUN + timedelta(seconds=seconds)


def sample(seconds: float, cores: float, *gpus: tuple[float, float]) -> MachineUse:
    return MachineUse(
        at=at(seconds),
        cores=cores,
        memory=2e9,
        machine_cores=3.0,
        machine_memory=8e9,
        gpus=tuple(GpuUse(share=share, memory=memory) for share, memory in gpus),
    )


def made(stage: str, begin: float, end: float, *, reused: bool = False) -> StageRecord:
    times: dict[str, Any] = {"started_at": at(begin), "finished_at": at(end)}
    return StageRecord(1, stage, "", reused, Manifest.model_construct(**times))


def test_curves_run_over_the_time_of_work(tmp_path: Path) -> None:
    """Samples at 0, 30 and 60 s; then nobody works for an hour, and at its end there are two more."""
    samples = [
        sample(seconds, cores, (0.5, 4e9))
        for seconds, cores in [(0, 1.0), (30, 2.0), (60, 1.5), (3660, 0.5), (3690, 0.25)]
    ]
    found = machine_numbers(samples, [])
    charts = {chart["title"]: chart for chart in found["charts"]}
    assert list(charts) == ["Processors", "Memory", "GPU use", "GPU memory"]
    run, machine = charts["Processors"]["series"]
    assert run["x"] == [0.0, 0.5, 1.0, 1.0, 1.5]
    assert run["y"] == [1.0, 2.0, 1.5, 0.5, 0.25]
    assert machine["y"] == [3.0] * 5
    assert [line["y"][0] for line in charts["Memory"]["series"]] == [2.0, 8.0]
    assert [line["label"] for line in charts["GPU use"]["series"]] == ["GPU 0"]
    assert charts["GPU use"]["series"][0]["y"] == [0.5] * 5
    assert charts["GPU memory"]["series"][0]["y"] == [4.0] * 5
    without_answer = machine_numbers([*samples, sample(3720, 0.5)], [])["charts"][2]["series"]
    assert [(line["label"], line["y"]) for line in without_answer] == [("GPU 0", [0.5] * 5)]
    assert machine_numbers([], [])["charts"] == []
    assert len(machine_numbers([sample(0, 1.0)], [])["charts"]) == 2  # no GPU


def test_stages_at_work_are_stripes_in_the_order_of_their_time() -> None:
    samples = [sample(seconds, 1.0) for seconds in range(0, 121, 5)]
    history = [
        made("update", 0, 60),
        made("rollouts", 60, 75),
        made("rollouts", 90, 120),
        made("old", -600, -500),
        made("reused", 0, 50, reused=True),
    ]
    assert [(each.stage, each.seconds, each.lane) for each in stage_times(history)] == [
        ("old", 100.0, 1),
        ("update", 60.0, 2),
        ("rollouts", 45.0, 3),
    ]
    assert machine_numbers(samples, history)["spans"] == [(2, 0.0, 1.0), (3, 1.0, 1.25), (3, 1.5, 2.0)]


def test_spans_of_a_stage_without_a_visible_gap_are_one() -> None:
    samples = [sample(seconds, 1.0) for seconds in range(0, 601, 5)]
    history = [made("rollouts", second, second + 0.5) for second in range(600)]
    assert machine_numbers(samples, history)["spans"] == [(1, 0.0, pytest.approx(599.5 / 60))]


def test_the_page_reads_what_the_run_has_written(tmp_path: Path) -> None:
    uri = write_page_store(tmp_path).store.uri
    page = client(uri)
    assert "There are no samples on this machine" in main_text(page.get("/runs/one/machine").text)
    assert page.get("/runs/one/machine/numbers").json()["charts"] == []
    file = log_file(uri, "one", MACHINE_LOG)
    lines = [sample(seconds, 1.0).model_dump_json() for seconds in (0, 5)]
    file.with_name(f"{MACHINE_LOG}.1").write_text(lines[0] + "\n")
    file.write_text(f"{lines[1]}\n{lines[1][:20]}")  # a kill cut the last line short
    assert read_samples(lines[1][:20]) == []
    charts = page.get("/runs/one/machine/numbers").json()["charts"]
    assert charts[0]["series"][0]["y"] == [1.0, 1.0]
    text = main_text(page.get("/runs/one/machine").text)
    assert "update_policy 2" in text
