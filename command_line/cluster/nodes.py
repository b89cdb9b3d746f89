"""What is found on the nodes of a Ray cluster."""

from pathlib import Path

from pydantic import ValidationError

from erl_pipeline.config.explain import explain
from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.sources import code_packages
from flows.ray.nodes import NodeFinding
from flows.ray.settings import RayConfig
from flows.ray.survey import examine
from storage.errors import InputError


def examine_nodes(
    config: Path | None, address: str | None, settings: list[str], store: str
) -> list[NodeFinding]:
    """Examine each node of the cluster of a configuration, or of the cluster at an address."""
    if config is None:
        if settings:
            raise InputError("--set is for a configuration: name one")
        try:
            runner = RayConfig() if address is None else RayConfig(address=address)
        except ValidationError as error:
            raise InputError(f"--{'; '.join(explain(error, RayConfig, {}))}") from error
        return examine(runner, store)
    resolved = load_config(
        config, settings, {} if address is None else {"--address": ("runner.address", address)}
    )
    if not isinstance(resolved.runner, RayConfig):
        raise InputError(f"{config}: runner.type is {resolved.runner.type}; only ray has a cluster")
    packages = [each for of_owner in code_packages(resolved).values() for each in of_owner]
    return examine(resolved.runner, store, packages, resolved.resources, resolved.nodes_to_find)


def node_cells(finding: NodeFinding) -> dict[str, str]:
    """The row of a node in the table."""
    node, report = finding.node, finding.report
    return {
        "node": node.address,
        "host": "" if report is None else report.host,
        "CPUs": f"{node.cpus:g}",
        "GPUs": f"{node.gpus:g}",
        "memory": f"{node.memory_bytes / 1e9:.1f} GB",
        "Python": "" if report is None else report.python,
        "code": "" if report is None else report.code,
        "clock": "" if report is None else f"{finding.clock_offset * 1000:+.0f} ms",
        "verdict": "problem" if finding.problems else "ok",
    }
