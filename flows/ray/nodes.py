"""The nodes of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from flows.nodes.check import Node


@dataclass(frozen=True)
class ClusterNode(Node):
    """A living node of the cluster, and its total resources."""

    cpus: float
    gpus: float
    memory_bytes: float

    def __str__(self) -> str:
        return (
            f"{self.address} ({self.cpus:g} CPUs, {self.gpus:g} GPUs, {self.memory_bytes / 1e9:.1f} GB of "
            "memory)"
        )


def living_nodes() -> list[ClusterNode]:
    """The living nodes of the cluster, sorted by address."""
    import ray

    found = [
        ClusterNode(
            id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            memory_bytes=node["Resources"].get("memory", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))
