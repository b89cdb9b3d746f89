"""The one interface of all generation engines. Importing it never imports torch.

An engine serves models by name, one checkpoint of each at a time. How it is given a checkpoint differs. An
engine in this process takes the loaded policy. An engine in another process takes a `ServedCheckpoint`: plain
data, made where the policy is loaded (`erl_pipeline.engines.serving`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np

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
        ...


class AsynchronousEngine(Protocol):
    """An engine that samples many turns at a time, in an event loop of its own."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to its end in the engine's event loop; may raise `Interrupted`, which cancels it."""
        ...

    async def sample(self, request: GenerationRequest) -> Generation:
        """Sample one turn; only within `run`."""
        ...


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
class ServedCheckpoint:
    """What an engine in another process needs to take over the weights of a checkpoint, and to prove it.

    `base_folder` is a `save_pretrained` folder: the policy itself, or the base of its `adapter`. A turn
    ends after any of `end_token_ids`.
    """

    checkpoint_id: str
    base_folder: Path
    probe: Probe
    end_token_ids: frozenset[int]
    adapter: ServedAdapter | None = None
