"""The one interface of all generation engines: requests and answers, and what a package offers as an engine.
Importing it never imports torch.

An engine serves models by name, one checkpoint of each at a time. How it is given a checkpoint differs. An
engine in this process loads the policy. An engine in another process takes a `ServedCheckpoint`: plain data,
which whoever wrote the checkpoint has put beside its weights (`erl_pipeline.engines.probe_file`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins import NO_BYTES

if TYPE_CHECKING:
    import numpy as np

    from erl_pipeline.policies.pretrained import LoadedPolicy

Result = TypeVar("Result")

POLICY = "policy"
"""The name of the model that attempts tasks; a method may have others."""

PROBE_TEMPERATURE = 2.0
"""The highest temperature that vLLM accepts, and so the one that changes log-probabilities most."""


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to sample, from the model of this name.

    `temperature` 0 means the most probable token each time. `conversation` names the dialogue this turn
    belongs to: an engine may keep its key-value cache between two turns of one conversation. The token ids
    of a later turn extend those of the turn before.
    """

    prompt_token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    conversation: str
    model: str = POLICY


@dataclass(frozen=True)
class Generation:
    """The sampled tokens, the end token included when there is one.

    `logprobs` are in nats, one for each token, under the distribution that was sampled from (after
    temperature); for temperature 0 they are those of temperature 1.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


class GenerationEngine(Protocol):
    """Samples from the models that it serves."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer every request, in order. Equal requests in equal batches give equal tokens.

        Raises EngineError for a request to a model that is not served.
        """


class AsynchronousEngine(Protocol):
    """An engine that samples many turns at a time, in an event loop of its own."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to its end in the engine's event loop; may raise `Interrupted`, which cancels it."""

    async def sample(self, request: GenerationRequest) -> Generation:
        """Sample one turn; only within `run`."""


@dataclass(frozen=True)
class Probe:
    """Sequences `[sequence][time]` and a policy's log-probabilities of them, which identify its weights.

    `logprobs[i]`, in nats at temperature 1, belong to the last tokens of `token_ids[i]`, each given all
    tokens before it. `dtype` is the number type that they were computed in, such as `bfloat16`.
    `hot_logprobs`, `[sequences, vocabulary]`, are those of every token that could follow each sequence, at
    `PROBE_TEMPERATURE`. `base_logprobs` are like `logprobs`, but of the policy without its adapter; None
    where it has no adapter.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    dtype: str
    hot_logprobs: np.ndarray = field(repr=False)
    base_logprobs: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class ServedAdapter:
    """A LoRA adapter that turns its base model into the policy.

    `folder` has `adapter_model.safetensors` and `adapter_config.json`; None where the policy is the base
    itself, before the first update. `rank` is that of all adapters of this run, and `modules` are the last
    parts of the names of the modules that they change.
    """

    folder: Path | None
    rank: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class OutputHead:
    """Names, in a model's files, of its output head's weight and of the embedding that it is `tied_to`; None
    where the files hold the head itself."""

    name: str
    tied_to: str | None = None


@dataclass(frozen=True)
class ServedCheckpoint:
    """What an engine in another process needs to take over the weights of a checkpoint, and to prove it.

    `base_folder` is a `save_pretrained` folder: the policy itself, or the base of its `adapter`. `head` is
    that of the model in it. A turn ends after any of `end_token_ids`. `in_memory` is a folder of this
    machine's memory with the weights of `base_folder`; None where there is none
    (`erl_pipeline.engines.weights_in_memory`).
    """

    checkpoint_id: str
    base_folder: Path
    head: OutputHead
    probe: Probe
    end_token_ids: frozenset[int]
    adapter: ServedAdapter | None = None
    in_memory: Path | None = None


SettingsT = TypeVar("SettingsT", bound=PluginSettings)
T = TypeVar("T")

_KEPT = "engine"


@dataclass(frozen=True)
class SampledModel:
    """The checkpoint to sample from. Requests ask for it by `name`.

    `load` gives the policy in this process. An engine in another process calls `served` instead, which reads
    no weights.
    """

    name: str
    checkpoint_id: str
    load: Callable[[], LoadedPolicy]
    served: Callable[[], ServedCheckpoint]


class EngineWorker(Protocol):
    """The worker process, for whose life an engine may keep servers."""

    stop: threading.Event
    """Set when the run was asked to stop."""

    @property
    def scratch(self) -> Path:
        """A folder on this machine for files that are not artifacts, such as a server's log."""

    @property
    def deterministic(self) -> bool:
        """Whether GPUs are to give equal bytes for equal work (`resources.determinism`)."""

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returned for this name, at its first call. A context manager is entered then, and left
        when the worker ends."""

    def kept(self, name: str) -> Any | None:
        """What is kept under this name; None if nothing."""


class EngineNews(Protocol):
    """What an engine tells people."""

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """It has waited for so long."""

    def warn(self, message: str) -> None:
        """Something that a user should know."""


@dataclass(frozen=True)
class EngineCall:
    """What an engine is given besides its settings and the model."""

    worker: EngineWorker
    news: EngineNews
    stop: threading.Event
    """Set when the stage is to stop: the run was asked to, or the stage takes too long. An engine that is
    kept between stages has its worker's `stop`, and looks at this one while it is opened."""
    on_tokens: Callable[[int], None] = lambda count: None
    """Called with the number of tokens as they are sampled, by an engine that only takes batches."""


@dataclass(frozen=True)
class OpenedEngine:
    """An engine that serves the model.

    `concurrent` is the same engine where it takes single turns and has up to `max_in_flight` of them under
    way; None where it only takes batches. `goes_on`: whether its event loop goes on between two calls of
    `run`, so that what one call has begun is sampled further until the next. `is_serving` is false once the
    engine has given up; it serves again when it is opened again.
    """

    batches: GenerationEngine
    concurrent: AsynchronousEngine | None = None
    max_in_flight: int = 256
    handed_over: str = ""
    """How it came to the weights; empty where it has loaded them itself."""
    goes_on: bool = False
    is_serving: Callable[[], bool] = lambda: True


class DeviceHolder(Protocol):
    """An engine that holds device memory between stages."""

    def offload(self) -> None:
        """Release it, so that something can be trained on the same device."""


Holder = TypeVar("Holder", bound=DeviceHolder)


def keep_engine(worker: EngineWorker, make: Callable[[], Holder]) -> Holder:
    """The worker's engine, which is made at the first call and told before anything is trained."""
    return worker.keep(_KEPT, make)


def release_engine(worker: EngineWorker) -> None:
    """Make the worker's engine, if it has one, release the memory of its device."""
    kept: DeviceHolder | None = worker.kept(_KEPT)
    if kept is not None:
        kept.offload()


@dataclass(frozen=True)
class SamplingCapacity:
    """What takes memory while an engine samples, for estimates.

    `weight_copies` is 0 where the trainer's own weights are used. `dtype` is None for that of the policy, and
    `max_tokens` None for the model's own context.
    """

    sequences: int
    weight_copies: int = 0
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class EnginePlugin(Generic[SettingsT]):
    """What an entry point of `erl_pipeline.engines` names.

    The module that holds it imports heavy packages only within functions: it is imported in every process.
    """

    settings: type[SettingsT]
    """Has a field `type: Literal["..."]`, by which a configuration chooses the engine."""
    open: Callable[[SettingsT, SampledModel, EngineCall], OpenedEngine]
    """An engine that serves the model, and is known to do so."""
    in_recipes: type[PluginSettings] | None = None
    """The part of `settings` that samples depend on, a model that `settings` extends; None: they depend on
    all. The others may change during a run."""
    bytes_vary_because: Callable[[SettingsT, bool], str] = lambda _settings, _batch_invariant: ""
    """Why equal requests may give other bytes, on devices that add up in a fixed order; empty if they do not.
    The second argument says whether its servers compute each sequence alike whatever else is sampled at the
    same time."""
    devices: Callable[[SettingsT], int] = field(default=lambda _settings: 1, metadata=NO_BYTES)
    """How many GPUs the servers need that it starts."""
    one_model_because: Callable[[SettingsT], str | None] = field(
        default=lambda _settings: None, metadata=NO_BYTES
    )
    """The setting because of which it serves one model only; None where it serves several."""
    keeps_gpus_because: Callable[[SettingsT], str] = field(default=lambda _settings: "", metadata=NO_BYTES)
    """Why a trainer finds hardly any memory on the GPUs that it samples on, and what to set; empty if it does
    find some."""
    require_here: Callable[[SettingsT], None] = field(default=lambda _settings: None, metadata=NO_BYTES)
    """Raises ConfigError where this machine lacks what the settings ask for; a run that samples here asks
    before its first stage."""
    capacity: Callable[[SettingsT, int], SamplingCapacity] = field(
        default=lambda _settings, asked: SamplingCapacity(asked), metadata=NO_BYTES
    )
    """What it holds in memory; the number says how many sequences it is asked for at a time."""
    reads_memory: Callable[[SettingsT], bool] = field(default=lambda _settings: False, metadata=NO_BYTES)
    """Whether it takes weights from this machine's memory, if whoever trained them has put them there."""
    head_dtype: Callable[[SettingsT, str | None], str | None] = field(
        default=lambda _settings, _policy: None, metadata=NO_BYTES
    )
    """The number type in which it computes the output head, given that of the policy in this process; None:
    that of the other weights. Both must be equal."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what is sampled; its own always counts."""
