import threading
from pathlib import Path

import pytest

from erl_pipeline.config.load import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.context import open_context
from erl_pipeline.pipeline.outcome import Silent
from storage.errors import ConfigError
from tests.integration.runs import write_config


def config(folder: Path, *settings: str) -> RunConfig:
    return load_config(write_config(folder), ["engine.type=vllm", *settings])


def opened(config: RunConfig, folder: Path) -> None:
    with open_context(config, str(folder / "store"), Silent(), threading.Event()):
        pass


@pytest.mark.parametrize(
    "setting",
    ["iterations=9", "threads=2", "metrics=[]", "engine.startup_seconds=900", "engine.max_failures=9"],
)
def test_what_decides_no_result_may_change_in_a_run(tmp_path: Path, setting: str) -> None:
    opened(config(tmp_path), tmp_path)
    opened(config(tmp_path, setting), tmp_path)


def test_what_decides_a_result_may_not(tmp_path: Path) -> None:
    opened(config(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match=r"engine.max_in_flight: 64 -> 8"):
        opened(config(tmp_path, "engine.max_in_flight=8"), tmp_path)
