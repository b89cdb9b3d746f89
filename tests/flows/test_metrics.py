from __future__ import annotations

import socket

import httpx
import pytest

from erl_pipeline.plan.stage import StageOutcome
from flows.local_server import OrchestratorError
from flows.metrics import WorkerMetrics, serve_metrics
from flows.worker_link import FlowEnded, FlowStarted, StageEnded
from storage.artifacts.recipe import ArtifactKind


def stage(
    name: str, kind: ArtifactKind, reused: bool = False, seconds: float = 2.0, **numbers: float
) -> StageOutcome:
    return StageOutcome(
        stage=name,
        kind=kind,
        iteration=1,
        key="",
        artifact_id="a" * 32,
        reused=reused,
        seconds=seconds,
        making_seconds=seconds,
        made_by="lake",
        counters=numbers,
        metrics=numbers,
    )


def test_metrics_count_what_was_computed_and_not_what_was_found() -> None:
    metrics = WorkerMetrics()
    metrics.handle(FlowStarted("train", "lake"))
    metrics.handle(StageEnded("lake", 0, stage("rollout_shard", "trajectories", generated_tokens=100)))
    metrics.handle(StageEnded("lake", 0, stage("rollout_shard", "trajectories", generated_tokens=50)))
    metrics.handle(
        StageEnded("lake", 0, stage("rollout_shard", "trajectories", reused=True, generated_tokens=7))
    )
    metrics.handle(StageEnded("lake", 0, stage("sample_elsewhere", "trajectories")))  # of a plug-in
    metrics.handle(StageEnded("lake", 3, stage("fine_tune", "checkpoint", seconds=0.5)))
    metrics.handle(StageEnded("lake", 3, stage("evaluate", "evaluation", greedy_success=0.25)))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"erl_pipeline_{name}", labels)

    assert value("generated_tokens_total", run="lake") == 150
    assert value("stage_seconds_sum", run="lake", stage="rollout_shard") == 4.0
    assert value("stage_seconds_count", run="lake", stage="rollout_shard") == 2
    assert value("stage_seconds_bucket", run="lake", stage="fine_tune", le="0.3") == 0
    assert value("stage_seconds_bucket", run="lake", stage="fine_tune", le="1.0") == 1
    assert value("iterations_done", run="lake") == 3
    assert value("held_out_success", run="lake") == 0.25
    assert value("flow_runs_active", flow="train", run="lake") == 1
    metrics.handle(FlowEnded("train", "lake", "failed"))
    assert value("flow_runs_active", flow="train", run="lake") == 0
    assert value("flow_runs_total", flow="train", run="lake", outcome="failed") == 1


def test_metrics_are_served_where_prometheus_looks_for_them() -> None:
    metrics = WorkerMetrics()
    metrics.handle(StageEnded("lake", 3, stage("fine_tune", "checkpoint")))
    with serve_metrics(metrics.registry, "127.0.0.1", 0) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert 'erl_pipeline_iterations_done{run="lake"} 3.0' in answer.text.splitlines()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")


def test_a_port_for_metrics_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(OrchestratorError, match=f"metrics cannot be served on 127.0.0.1, port {port}"),
            serve_metrics(WorkerMetrics().registry, "127.0.0.1", port),
        ):
            pass
