from collections.abc import Iterator
from pathlib import Path

import pytest

from erl_pipeline.engines.vllm.model_servers import server_arguments
from erl_pipeline.engines.vllm.server import ManagedServer
from tests.erl_pipeline.engines.vllm.small_policies import ENGINE, SMALL_SERVER, save, untied_gpt2

AS_USERS_HAVE_IT = ENGINE.model_copy(update={"arguments": ()})
"""Tests with vLLM's default processes."""


@pytest.fixture(scope="session")
def gpt2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedServer]:
    """A server that started with the untied GPT-2; what it serves now depends on the tests before."""
    folder: Path = tmp_path_factory.mktemp("gpt2_server")
    with ManagedServer(
        save(untied_gpt2(), folder / "checkpoint"),
        folder / "server.log",
        arguments=server_arguments(AS_USERS_HAVE_IT),
        environment=SMALL_SERVER,
    ) as server:
        yield server
