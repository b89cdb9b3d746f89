"""Prometheus metrics of a worker, from the messages of its flow runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from flows.local_server import OrchestratorError
from flows.worker_link import FlowEnded, FlowStarted, Message, StageEnded

_STAGE_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 300, 900, 3600, 4 * 3600)


class WorkerMetrics:
    """The metrics of one worker since it started; Prometheus reads `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._iterations = Gauge(
            "erl_pipeline_iterations_done",
            "Iterations of a run that are committed",
            ["run"],
            registry=self.registry,
        )
        self._stage_seconds = Histogram(
            "erl_pipeline_stage_seconds",
            "Wall time of stages that were computed, not found committed",
            ["run", "stage"],
            buckets=_STAGE_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "erl_pipeline_generated_tokens", "Tokens generated in rollouts", ["run"], registry=self.registry
        )
        self._held_out = Gauge(
            "erl_pipeline_held_out_success",
            "Greedy success of first attempts in the last evaluation",
            ["run"],
            registry=self.registry,
        )
        self._active = Gauge(
            "erl_pipeline_flow_runs_active",
            "Flow runs at work or waiting",
            ["flow", "run"],
            registry=self.registry,
        )
        self._ended = Counter(
            "erl_pipeline_flow_runs",
            "Flow runs by how they ended: completed, failed, cancelled, skipped, killed",
            ["flow", "run", "outcome"],
            registry=self.registry,
        )

    def handle(self, message: Message) -> None:
        """Update the metrics by a message of a flow run."""
        if isinstance(message, FlowStarted):
            self._active.labels(message.flow, message.run).inc()
        elif isinstance(message, FlowEnded):
            self._active.labels(message.flow, message.run).dec()
            self._ended.labels(message.flow, message.run, message.outcome).inc()
        else:
            self._stage_ended(message)

    def _stage_ended(self, message: StageEnded) -> None:
        outcome = message.outcome
        self._iterations.labels(message.run).set(message.iterations)
        if not outcome.reused:
            self._stage_seconds.labels(message.run, outcome.stage).observe(outcome.seconds)
            if outcome.kind == "trajectories":
                self._tokens.labels(message.run).inc(outcome.counters.get("generated_tokens", 0))
        if "greedy_success" in outcome.metrics:
            self._held_out.labels(message.run).set(outcome.metrics["greedy_success"])


@contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve the metrics over HTTP inside this context; gives the port (port 0 takes a free one).

    Raises OrchestratorError when the port is taken.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OrchestratorError(
            f"metrics cannot be served on {host}, port {port} ({error.strerror}); choose another port"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
