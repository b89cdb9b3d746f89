"""Checkpoints of a store, opened to be sampled from as the stages of a run open them."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from erl_pipeline.config.plugins import operational_part, plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import (
    AsynchronousEngine,
    EnginePlugin,
    Generation,
    GenerationRequest,
    OpenedEngine,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.loop import Collected
from erl_pipeline.plan.stage import Listener, Resources, StageCall, StageProgress, WorkerSettings
from erl_pipeline.policies.checkpoints import BASE, CHECKPOINT, weights_settings
from erl_pipeline.runs.config import readable_config
from erl_pipeline.stages.rollouts.playing import opened_engine, play_settings
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint
from storage.errors import ConfigError
from storage.runs.run import RunStore
from storage.serving.aliases import AliasChange


@dataclass(frozen=True)
class OpenedPolicy:
    """The checkpoint that an alias means, ready to be sampled from.

    `context_length` is in tokens: that of the policy, or of its engine where that is less. `sample` runs in
    the event loop of the server. `in_place`: its engine holds one checkpoint for each alias, so that the next
    one replaces it; else the next one is opened beside it.
    """

    change: AliasChange
    chat: ChatTokenizer
    tokenizer_digest: str
    context_length: int
    end_token_ids: frozenset[int]
    sample: Callable[[GenerationRequest], Awaitable[Generation]]
    in_place: bool = False
    engine: AsynchronousEngine | None = None
    """The engine in whose event loop the server has to run; None where any does."""
    is_serving: Callable[[], bool] = lambda: True
    """False once its engine has given up; opened again, the checkpoint is served again."""

    @property
    def checkpoint_id(self) -> str:
        return self.change.checkpoint_id


class OpenPolicy(Protocol):
    """Opens the checkpoint that an alias means. Takes seconds or minutes; may be called in any thread.

    Raises PipelineError for one that cannot be opened. What frameworks and the system raise passes through:
    RuntimeError, such as where memory is short, and OSError.
    """

    def __call__(self, change: AliasChange) -> OpenedPolicy: ...


class StoredPolicies:
    """Opens checkpoints by the engine of a run; a context manager that ends what it has started.

    Args:
        config: of the run that is served.
        stop: when it is set, whatever an engine waits for ends with `Interrupted`.
    """

    def __init__(self, config: RunConfig, store_uri: str, stop: threading.Event, listener: Listener) -> None:
        self._settings = play_settings(config)
        engine: EnginePlugin[Any] = plugins("engines")[config.engine.type].value
        self._most_tokens = engine.capacity(config.engine, 1).max_tokens
        worker = WorkerSettings(
            store_uri=store_uri,
            run=config.name,
            threads=config.resources.threads,
            engine=operational_part("engines", config.engine),
            cache=config.store.cache(),
        )
        self.resources = Resources(worker, stop)
        self._progress = StageProgress("serve-policy", listener, stop)
        # Engines that take batches share the processor, or the device: one after the other is as fast.
        self._thread = ThreadPoolExecutor(1, "engine", initializer=_use_threads, initargs=(worker.threads,))

    def __enter__(self) -> StoredPolicies:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()
        self.resources.close()

    def open(self, change: AliasChange) -> OpenedPolicy:
        """Open the checkpoint that an alias means, as `OpenPolicy`."""
        store = self.resources.store
        checkpoint = store.open(change.checkpoint_id)
        base = checkpoint.manifest.inputs.get(BASE)
        made_by = readable_config(RunStore(store.uri).open(change.run))
        call = StageCall(
            settings=self._settings,
            inputs={CHECKPOINT: checkpoint, **({} if base is None else {BASE: store.open(base)})},
            index={},
            seed=0,
            artifact_id="",
            locations={},
            folder=Path(),
            progress=self._progress,
            resources=self.resources,
        )
        policy = sampled_checkpoint(call, weights_settings(made_by), change.alias)
        if policy.instructions:
            raise ConfigError(
                f"checkpoint {change.checkpoint_id} of run {change.run} has instructions, which served "
                "conversations do not show, and its weights are those that the run began with; `export` it, "
                "and put the texts of its instruction.json into the system messages of your calls"
            )
        opened = opened_engine(call, self._settings.engine, policy.model)
        return OpenedPolicy(
            change=change,
            chat=self.resources.keep(
                f"chat {policy.tokenizer_digest}", lambda: ChatTokenizer(policy.tokenizer)
            ),
            tokenizer_digest=policy.tokenizer_digest,
            # Beyond what the engine holds, it would give empty answers.
            context_length=min(policy.context_length, self._most_tokens or policy.context_length),
            end_token_ids=policy.end_token_ids,
            sample=self._sampler(opened),
            in_place=bool(opened.handed_over),
            engine=opened.concurrent,
            is_serving=opened.is_serving,
        )

    def _sampler(self, opened: OpenedEngine) -> Callable[[GenerationRequest], Awaitable[Generation]]:
        if opened.concurrent is not None:
            return opened.concurrent.sample
        # What is asked while the engine is busy is its next batch.
        return Collected[GenerationRequest, Generation](opened.batches.generate, self._thread).ask


def require_several_models(config: RunConfig, canary: str) -> None:
    """Raise ConfigError where the engine of a run can serve one checkpoint only."""
    setting = plugins("engines")[config.engine.type].value.one_model_because(config.engine)
    if setting is not None:
        raise ConfigError(
            f"--canary {canary}: with engine.{setting} the engine serves one checkpoint only; leave out one "
            "of the two"
        )


def _use_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
