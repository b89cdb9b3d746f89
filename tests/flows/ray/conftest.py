"""One Ray cluster for all tests of a file, on this machine: a head without processors, and two nodes with
object stores of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator

import pytest

# Ray reads this when it is imported. Its servers listen to the network too, so strangers must be kept out.
# Without a token given here, Ray would write one into the home folder.
os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_DEDUP_LOGS_SKIP_REGEX=".",
    # By default Ray gives its workers low priority. They would wait too long beside the other tests.
    RAY_worker_niceness="0",
)

from ray.cluster_utils import Cluster

# Addresses that only this machine can reach. Ray takes 127.0.0.1 for the machine's address in the network.
_LOOPBACK = "127.0.0.2"
_NODE = {"object_store_memory": 80 * 2**20, "include_log_monitor": False, "node_ip_address": _LOOPBACK}
_QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}


class LocalCluster:
    """A cluster of several nodes on this machine."""

    def __init__(self, folder: str) -> None:
        self._gpus = False
        head = {**_NODE, "num_cpus": 0, "include_dashboard": False, "temp_dir": folder}
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**head, "_system_config": _QUICK_TO_NOTICE}
        )

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self, gpus: int = 0) -> None:
        """Add a node with two processors, and with GPUs that exist only in Ray's bookkeeping."""
        self._cluster.add_node(**_NODE, num_cpus=2, num_gpus=gpus)

    def have_nodes(self, count: int) -> None:
        """Add nodes until there are this many in addition to the head."""
        for _ in range(count + 1 - len(self._cluster.list_all_nodes())):
            self.add_node()

    def have_gpus(self) -> None:
        """Add a node with five GPUs, once: every node answers before each run."""
        if not self._gpus:
            self.add_node(gpus=5)
            self._gpus = True

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """The cluster of a file's tests. It ends with them, since an idle one takes a tenth of a processor. The
    head's folder has a short name, since a socket's path is limited to a hundred characters."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # Ray writes the address of a new cluster into its folder "ray", but does not create this folder.
    os.mkdir(f"{folder}/ray")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", folder)
        local = LocalCluster(folder)
        try:
            local.have_nodes(2)
            yield local
        finally:
            local.stop()
            shutil.rmtree(folder)
