"""What the stages of one run share: configuration, store, run ledger, the policy in memory, the listener."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch

from erl_pipeline.config.generation import OPERATIONAL_SETTINGS, VllmEngineConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import POLICY, Interrupted
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.pipeline.outcome import ProgressListener, StageOutcome
from erl_pipeline.policies.checkpoints import checkpoint_parts, load_checkpoint
from erl_pipeline.policies.hardware import release_cached_memory
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.policies.serving import served_checkpoint
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.filesystem import disk_errors, open_root
from storage.memory.embedding import Embedder
from storage.memory.history import FORGET_STAGE
from storage.memory.reflection_memory import ReflectionMemory
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore, config_differences, latest_entries

_VLLM_STARTS = "the vLLM server to start"
_MAY_CHANGE = {"iterations", "metrics", "threads"}


class OtherArtifact(Exception):
    """A stage would not give the artifact that the ledger has of it: its code or its inputs have changed."""

    def __init__(self, stage: str, iteration: int) -> None:
        super().__init__(
            f"{stage} of iteration {iteration} would give another artifact than the run has: its code or "
            "what it reads has changed"
        )


class RunContext:
    """One open run. Holds the policy that was loaded or trained last, so that the next stage need not
    read it from the store again."""

    def __init__(
        self,
        config: RunConfig,
        store: ArtifactStore,
        run: Run,
        listener: ProgressListener,
        stop: threading.Event,
    ) -> None:
        self.config = config
        self.store = store
        self.run = run
        self.listener = listener
        self.stop = stop
        self._open = ExitStack()
        self._policy_id = ""
        self._policy: LoadedPolicy | None = None
        self._vllm: VllmEngine | None = None
        self._served_id = ""
        self.observers: list[Callable[[int, str, str], None]] = []
        """Are told of the iteration, stage and id of every artifact that the run gets or goes by."""
        self._ledger: list[LedgerEntry] | None = None
        self._recorded = {
            (entry.iteration, entry.stage, entry.key): entry.artifact_id for entry in self.recorded()
        }
        self._held = False

    def raise_if_stopped(self) -> None:
        """Raise `Interrupted` when the run was asked to stop."""
        if self.stop.is_set():
            raise Interrupted

    def recorded(self) -> list[LedgerEntry]:
        """Every line of the run's ledger, the oldest first; read once, for as long as nothing is added."""
        if self._ledger is None:
            self._ledger = self.run.recorded()
        return self._ledger

    def stages(self) -> list[LedgerEntry]:
        """The latest entry of each (iteration, stage, key), like `Run.stages`."""
        return latest_entries(self.recorded())

    def record(self, outcome: StageOutcome, key: str) -> None:
        """Write an outcome to the run's ledger, unless it stands there already."""
        place = (outcome.iteration, outcome.stage, key)
        if self._recorded.get(place) != outcome.artifact_id or not outcome.reused:
            self._enter(place, outcome.artifact_id, outcome.reused, outcome.seconds)
        self._tell(outcome.iteration, outcome.stage, outcome.artifact_id)

    def share(self, entries: Iterable[LedgerEntry]) -> None:
        """Enter artifacts of another run in this run's ledger, each once."""
        for entry in entries:
            place = (entry.iteration, entry.stage, entry.key)
            if place not in self._recorded:
                self._enter(place, entry.artifact_id, reused=True, seconds=0.0)
                self._tell(entry.iteration, entry.stage, entry.artifact_id)

    def _enter(
        self, place: tuple[int | None, str, str], artifact_id: str, reused: bool, seconds: float
    ) -> None:
        iteration, stage, key = place
        self.run.record(iteration, stage, artifact_id, key=key, reused=reused, seconds=seconds)
        self._recorded[place] = artifact_id
        self._ledger = None

    def _tell(self, iteration: int | None, stage: str, artifact_id: str) -> None:
        for observer in self.observers:
            observer(iteration or 0, stage, artifact_id)

    @contextmanager
    def held_to_ledger(self) -> Iterator[None]:
        """Within the block, a stage that would give another artifact than the ledger names raises
        `OtherArtifact`, before it does anything."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def require_as_recorded(self, recipe: Recipe, iteration: int | None, key: str) -> None:
        """Raise `OtherArtifact` where the run is held to its ledger and the recipe is another than there."""
        known = self._recorded.get((iteration, recipe.stage, key))
        # Who asks that something be forgotten numbers it otherwise; its recipe follows from the memory's.
        if self._held and known not in (None, recipe.artifact_id) and recipe.stage != FORGET_STAGE:
            raise OtherArtifact(recipe.stage, iteration or 0)

    def count_steps(self, stage: str) -> Callable[[int, float], None]:
        """To be called after every optimizer step: shows its loss, and ends a run that was stopped."""

        def on_step(step: int, loss: float) -> None:
            self.raise_if_stopped()
            self.listener.advance(stage, 1, loss=loss)

        return on_step

    def policy(self, checkpoint_id: str) -> LoadedPolicy:
        """The policy of a checkpoint, for sampling."""
        if self._policy is None or self._policy_id != checkpoint_id:
            self._policy = None
            self._policy = load_checkpoint(self.store, checkpoint_id, self.config)
            self._policy_id = checkpoint_id
        return self._policy

    def take_policy(self, checkpoint_id: str) -> LoadedPolicy:
        """The policy of a checkpoint, to be changed by the caller; no one else will get this object."""
        if self._vllm is not None:
            self._vllm.offload()
            self._served_id = ""
        policy = self.policy(checkpoint_id)
        self._policy, self._policy_id = None, ""
        return policy

    def keep_policy(self, checkpoint_id: str, policy: LoadedPolicy) -> None:
        """Hand in the policy that was just committed as `checkpoint_id`."""
        self._policy, self._policy_id = policy, checkpoint_id

    def vllm(self, checkpoint_id: str) -> VllmEngine:
        """The vLLM engine, proven to sample from this checkpoint. Only for runs with `engine.type: vllm`.

        Its server starts at the first call and ends with the context.
        """
        policy = self.policy(checkpoint_id)
        if self._vllm is None:
            assert isinstance(self.config.engine, VllmEngineConfig)
            folder = open_root(self.store.uri).scratch / "runs" / self.run.name / "vllm"
            engine = VllmEngine(
                self.config.engine,
                folder,
                os.environ,
                self.stop,
                lambda seconds, line: self.listener.waiting(_VLLM_STARTS, seconds, line),
            )
            self._vllm = self._open.enter_context(engine)
        if self._served_id != checkpoint_id:
            self._served_id = ""
            # What the trainer no longer needs, so that a server on the same GPU finds room.
            release_cached_memory()
            parts = checkpoint_parts(self.store, checkpoint_id)
            self._vllm.serve(
                POLICY,
                served_checkpoint(policy, checkpoint_id, parts.base_folder, parts.adapter_folder),
            )
            self._served_id = checkpoint_id
        return self._vllm

    def close(self) -> None:
        """End what the context has started."""
        self._open.close()

    @cached_property
    def memory(self) -> ReflectionMemory:
        """The run's reflection memory. Only for runs with memory on."""
        assert self.config.memory is not None
        return ReflectionMemory(
            self.store.uri, self.run.name, self.store, Embedder(self.config.memory.embedding_model)
        )


@contextmanager
def open_context(
    config: RunConfig, store_uri: str, listener: ProgressListener, stop: threading.Event
) -> Iterator[RunContext]:
    """Create or continue the run `config.name` in a store, holding its lock.

    Raises:
        ConfigError: the run exists with other settings; only `iterations`, `metrics`, `threads` and
            the engine's `OPERATIONAL_SETTINGS` may change.
        RunBusy: another process is working on it.
        StoreError: the store cannot be written.
    """
    runs = RunStore(store_uri)
    settings = config.model_dump(mode="json")
    run = runs.create(config.name, settings) if config.name not in runs.list() else runs.open(config.name)
    with disk_errors(store_uri), run.lock():
        _refuse_other_settings(run, settings)
        torch.set_num_threads(config.threads)
        context = RunContext(config, ArtifactStore(store_uri, threads=config.threads), run, listener, stop)
        try:
            yield context
        finally:
            context.close()


def _refuse_other_settings(run: Run, settings: dict[str, object]) -> None:
    differences = config_differences(_fixed(run.config), _fixed(settings))
    if differences:
        raise ConfigError(
            f"run {run.name} exists with other settings: {'; '.join(differences)}. "
            "Continue it with its own settings, or give the changed run another --name."
        )


def _fixed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run keeps to its end."""
    fixed = {key: value for key, value in settings.items() if key not in _MAY_CHANGE}
    engine = fixed.get("engine", {})
    return {**fixed, "engine": {key: engine[key] for key in engine if key not in OPERATIONAL_SETTINGS}}
