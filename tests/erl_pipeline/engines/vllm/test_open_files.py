from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from erl_pipeline.engines.vllm import ENGINE
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.settings import VllmEngineConfig
from storage.errors import ConfigError


@pytest.fixture
def most() -> Iterator[int]:
    """The highest limit that this process may set. It has a limit of 1024 during the test, as most users'
    processes have."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))


def test_each_request_under_way_has_room_for_a_connection(tmp_path: Path, most: int) -> None:
    """1000 connections and 512 other files."""
    with VllmEngine(VllmEngineConfig(max_in_flight=1000), tmp_path / "vllm", environment={}):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1512, most)


def test_a_limit_with_enough_room_stays(tmp_path: Path, most: int) -> None:
    with VllmEngine(VllmEngineConfig(max_in_flight=512), tmp_path / "vllm", environment={}):
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1024, most)


def test_more_connections_than_the_system_allows_are_refused_before_the_first_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1024, 1535))
    ENGINE.require_here(VllmEngineConfig(max_in_flight=1023))
    with pytest.raises(ConfigError, match=r"engine\.max_in_flight: 1024 .* this system allows 1535"):
        ENGINE.require_here(VllmEngineConfig(max_in_flight=1024))
