"""Settings of the engines that sample text from the policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from erl_pipeline.config.base import Settings


class SamplingConfig(Settings):
    """How tokens are drawn. Top-p and top-k are left out on purpose: they cut the behaviour policy's
    support, and a ratio of log-probabilities has no meaning on tokens that could not be drawn."""

    temperature: float = Field(default=1.0, gt=0.0, le=2.0)
    """Divides the logits before the softmax; stored log-probabilities are those after it."""
    max_new_tokens: int = Field(default=8, ge=1)
    """Most tokens of one turn of an attempt."""
    max_reflection_tokens: int = Field(default=8, ge=1)
    """Most tokens of one reflection."""


class TransformersEngineConfig(Settings):
    """The embedded engine: transformers with a key-value cache, in this process, no server."""

    type: Literal["transformers"] = "transformers"
    max_batch_sequences: int = Field(default=256, ge=1)
    """Most sequences in one forward pass; longer lists are cut into batches of similar length."""


class ServerAddress(Settings):
    """A vLLM server that somebody else runs.

    It must serve the model under any name with `--logprobs-mode processed_logprobs`, `--enable-scale-out`
    or `--tokens-only`, and `VLLM_SERVER_DEV_MODE=1`, and must be able to read the run's folders.
    """

    url: str
    """Such as `http://gpu-1:8000`."""
    api_key_variable: str | None = None
    """Environment variable that holds its key; none when it asks for no key."""


class VllmEngineConfig(Settings):
    """Sampling by vLLM: a server started for this run or, where `servers` are given, those."""

    type: Literal["vllm"] = "vllm"
    servers: tuple[ServerAddress, ...] = ()
    """Servers that somebody else runs; empty starts one of our own."""
    executable: str | None = None
    """Python interpreter that has vLLM; none is the one that runs this."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number type the servers compute in; also sets how well they must agree with the trainer."""
    max_context: int | None = Field(default=None, ge=1)
    """Most tokens of prompt and answer together; none takes the model's own limit."""
    max_in_flight: int = Field(default=64, ge=1)
    """Most sequences that are generated at the same time, over all servers."""
    enforce_eager: bool = False
    """Do not compile the model: starts sooner, samples more slowly."""
    chunked_prefill: bool = False
    """Compute long prompts in parts, between the steps of other sequences: worth it on a GPU. vLLM's CPU
    build dies when it cuts the prompt of a request with a seed, and all of ours have one."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the server that is started, such as `--tensor-parallel-size=2`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server that is started, such as `VLLM_CPU_KVCACHE_SPACE: "4"`."""
    startup_seconds: float = Field(default=600.0, gt=0.0)
    """Deadline of a server's start, and of the return of a server when none is left."""
    request_seconds: float = Field(default=600.0, gt=0.0)
    """Deadline of one request; a server that misses it is taken for dead."""
    max_failures: int = Field(default=3, ge=0)
    """Failures of servers that are survived while one policy is served; one more stops the run."""


EngineConfig = Annotated[TransformersEngineConfig | VllmEngineConfig, Field(discriminator="type")]
