"""The vLLM engine that a worker keeps from stage to stage."""

from __future__ import annotations

import os
from types import TracebackType

from erl_pipeline.engines.plugin import EngineCall, OpenedEngine, SampledModel, keep_engine
from erl_pipeline.engines.serving import served_checkpoint
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.settings import VllmEngineConfig
from erl_pipeline.policies.checkpoints import LoadedPolicies
from erl_pipeline.policies.hardware import release_cached_memory

_WHAT_STARTS = "the vLLM server to start"


class KeptVllmEngine:
    """A vLLM engine, and for each model the checkpoint that it was verified to sample from."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self._checkpoint_ids: dict[str, str] = {}

    def __enter__(self) -> KeptVllmEngine:
        self.engine.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.engine.__exit__(kind, error, traceback)

    def serve(self, model: SampledModel, call: EngineCall) -> None:
        """Sample from this checkpoint from now on. The server of each model starts at the first call."""
        parts = model.parts
        if self._checkpoint_ids.get(model.name) == parts.checkpoint_id:
            return
        self._checkpoint_ids.pop(model.name, None)
        # Release the trainer and cached memory, so that a server on the same GPU finds room.
        call.worker.keep("policies", LoadedPolicies).forget_trainer()
        release_cached_memory()
        checkpoint = served_checkpoint(
            model.policy, parts.checkpoint_id, parts.base_folder, parts.adapter_folder
        )
        self.engine.serve(model.name, checkpoint)
        self._checkpoint_ids[model.name] = parts.checkpoint_id

    def offload(self) -> None:
        """Release the memory of the servers."""
        self.engine.offload()
        self._checkpoint_ids.clear()


def open_served(settings: VllmEngineConfig, model: SampledModel, call: EngineCall) -> OpenedEngine:
    """The worker's engine, verified to sample from this checkpoint."""
    worker, news = call.worker, call.news
    kept = keep_engine(
        worker,
        lambda: KeptVllmEngine(
            VllmEngine(
                settings,
                worker.scratch / "vllm",
                os.environ,
                worker.stop,
                lambda seconds, line: news.waiting(_WHAT_STARTS, seconds, line),
                news.warn,
            )
        ),
    )
    kept.serve(model, call)
    if settings.max_in_flight == 1 and not settings.others_servers:
        # Whether a prefix comes from the cache or is computed may change the last bits.
        kept.engine.reset_prefix_cache(model.name)
    return OpenedEngine(kept.engine, kept.engine, settings.max_in_flight)
