"""Two engines of one run at the same time, such as those of two `serve-policy`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from erl_pipeline.engines.interface import OutputHead, Probe, ServedCheckpoint
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.settings import VllmEngineConfig


def copy_of_one(engine: VllmEngine, folder: Path) -> Path:
    """Where the engine's servers will read a checkpoint with tied embeddings, which needs a copy."""
    head, probe = OutputHead("lm_head.weight", "wte.weight"), Probe((), (), "float32", np.zeros((1, 8)))
    checkpoint = ServedCheckpoint("one", folder / "checkpoint", head, probe, frozenset())
    return engine._servers_for("production").prepare(checkpoint).folder


def test_an_engine_does_not_remove_what_servers_of_another_one_read(tmp_path: Path) -> None:
    config, folder = VllmEngineConfig(), tmp_path / "vllm"
    with VllmEngine(config, folder, environment={}) as first:
        read = copy_of_one(first, tmp_path)
        read.mkdir()
        with VllmEngine(config, folder, environment={}) as second:
            assert copy_of_one(second, tmp_path) == tmp_path / "vllm-2/production/serving/one"
            assert read.is_dir()
        with VllmEngine(config, folder, environment={}) as third:
            assert copy_of_one(third, tmp_path) == tmp_path / "vllm-2/production/serving/one"
    with VllmEngine(config, folder, environment={}) as alone:
        assert copy_of_one(alone, tmp_path) == read == tmp_path / "vllm/production/serving/one"
        assert not read.exists()
