"""Servers that a file names: others may add and remove them while a run samples."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from erl_pipeline.engines.vllm.replica import Replica
from erl_pipeline.engines.vllm.server_pool import ServerPool
from erl_pipeline.engines.vllm.settings import ServerAddress, read_server_list
from storage.errors import ConfigError

_LOOK_SECONDS = 5.0


class ListedServers:
    """Keeps the servers of a pool those of a file. Lives in the event loop of the pool.

    Args:
        make_replica: makes a replica of a server. Raises ConfigError when its key is not known.
        warn: called when the file cannot be used while the run samples; the servers then stay as they are.
    """

    def __init__(
        self,
        path: Path,
        pool: ServerPool,
        make_replica: Callable[[ServerAddress], Replica],
        warn: Callable[[str], None],
    ) -> None:
        self._path = path
        self._pool = pool
        self._make_replica = make_replica
        self._warn = warn
        self._replicas: dict[ServerAddress, Replica] = {}

    async def update(self) -> None:
        """Add and remove servers of the pool, as the file says now.

        Raises ConfigError when the file cannot be used; the pool is then as before.
        """
        listed = await asyncio.to_thread(read_server_list, self._path)
        new = {each: self._make_replica(each) for each in listed if each not in self._replicas}
        for address in set(self._replicas).difference(listed):
            self._pool.dismiss(self._replicas.pop(address))
        for address, replica in new.items():
            self._replicas[address] = replica
            await self._pool.admit(replica)

    async def follow(self) -> None:
        """Update the pool again and again, until this is cancelled."""
        told = ""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.update()
                told = ""
            except ConfigError as error:
                if str(error) != told:
                    told = str(error)
                    self._warn(f"{told}\n  The run goes on with the servers that it has.")
