"""The one interface behind which every generation engine stands. Importing it never imports torch.

An engine serves models by name, one checkpoint of each at a time. How it is given a checkpoint differs: an
engine in this process takes the loaded policy, one in another process a `ServedCheckpoint`, which is plain
data that whoever has the policy makes (`erl_pipeline.engines.serving`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

POLICY = "policy"
"""The name of the model that attempts tasks; a method may have others."""

PROBE_TEMPERATURE = 2.0
"""The highest temperature that vLLM takes: there a log-probability before temperature differs most."""


class Interrupted(Exception):
    """The run was asked to stop; what is committed stays, what is in flight is dropped."""


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to sample, from the model of this name.

    `temperature` 0 means the most probable token each time. `conversation` names the dialogue this turn
    belongs to: an engine may keep its key-value cache between two turns of one conversation, the second
    of which extends the token ids of the first.
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


@dataclass(frozen=True)
class Probe:
    """Sequences `[sequence][time]` and what a policy says of how they go on: the proof of its weights.

    `logprobs[i]`, in nats at temperature 1, belong to the last tokens of `token_ids[i]`, each given all
    tokens before it. `dtype` is the number type that they were computed in, such as `bfloat16`.
    `hot_logprobs` are of every token that could follow each sequence, at `PROBE_TEMPERATURE`:
    `[sequences, vocabulary]`. `base_logprobs` are as `logprobs`, of the policy without its adapter; None
    where it has none.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    dtype: str
    hot_logprobs: np.ndarray = field(repr=False)
    base_logprobs: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class ServedAdapter:
    """A LoRA adapter that makes the policy out of its base.

    `folder` has `adapter_model.safetensors` and `adapter_config.json`; None where the policy is the base
    itself, before the first update. `modules` are the last parts of the names of the modules that adapters
    of this run change, and `rank` is theirs.
    """

    folder: Path | None
    rank: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class ServedCheckpoint:
    """What an engine in another process needs to take over the weights of a checkpoint, and to prove it.

    `base_folder` is a `save_pretrained` folder: the policy itself, or what its `adapter` belongs to. Turns
    end after any of `end_token_ids`.
    """

    checkpoint_id: str
    base_folder: Path
    probe: Probe
    end_token_ids: frozenset[int]
    adapter: ServedAdapter | None = None
