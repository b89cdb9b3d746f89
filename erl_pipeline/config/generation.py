"""Settings of the engines that sample text from the policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import Settings, checked_address
from erl_pipeline.config.server_arguments import option_name, require_readable

_CUTS_SUPPORT = (
    "it gives tokens that the policy could draw a probability of 0, and the ratio of the trained policy to "
    "the one that sampled has no meaning there"
)
_BENDS_DISTRIBUTION = (
    "it makes a token's probability depend on the text around it in a way that the trainer does not compute, "
    "so that the ratio of the trained policy to the one that sampled would compare two different things"
)
_REFUSED_SAMPLING = {
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "typical_p", "bad_words", "allowed_token_ids"), _CUTS_SUPPORT
    ),
    **dict.fromkeys(
        ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"), _BENDS_DISTRIBUTION
    ),
}
"""Settings that other samplers have, and why training on what they sample would be wrong."""


class SamplingConfig(Settings):
    """How tokens are drawn: from the whole distribution, at a temperature. Settings that cut or distort the
    distribution (`top_p`, `top_k`, penalties, ...) are refused, because the update divides by the probability
    with which a token was drawn."""

    temperature: float = Field(default=1.0, le=2.0)
    """Divides the logits before the softmax; stored log-probabilities include it. More than 0."""
    max_new_tokens: int = Field(default=8, ge=1)
    """The most tokens in one turn of an attempt."""

    @model_validator(mode="before")
    @classmethod
    def _ratio_has_a_meaning(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name in _REFUSED_SAMPLING:
                raise ValueError(f"{name} is not offered: {_REFUSED_SAMPLING[name]}; leave it out")
        return values

    @field_validator("temperature")
    @classmethod
    def _samples(cls, temperature: float) -> float:
        if temperature <= 0.0:
            raise ValueError(
                f"{temperature:g}; allowed: more than 0.0 (at 0 the most probable token is taken each time: "
                "all attempts of a group are alike, and the ratio to such a policy has no meaning)"
            )
        return temperature


class TransformersEngineConfig(Settings):
    """The embedded engine: transformers with a key-value cache, in this process, no server."""

    type: Literal["transformers"] = "transformers"
    max_batch_sequences: int = Field(default=256, ge=1)
    """The most sequences in one forward pass; more are split into batches of sequences of similar length."""


class ServerAddress(Settings):
    """A vLLM server that the pipeline does not start.

    It may serve the model under any name. It needs `--logprobs-mode processed_logprobs`, `--enable-scale-out`
    or `--tokens-only`, and `VLLM_SERVER_DEV_MODE=1`, and must be able to read the run's folders. With
    `policy.lora` it serves the base model, and also needs `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`,
    `--enable-lora`, `--max-lora-rank`, and `--lora-target-modules` with the modules that are adapted.
    """

    url: str
    """Address, such as `http://gpu-1:8000`."""
    api_key_variable: str | None = None
    """Environment variable that holds the server's key; null if it needs no key."""
    copies: int = Field(default=1, ge=1, le=1024)
    """Copies of the model that it keeps, if it was started with `--data-parallel-size`. Each copy must prove
    new weights, and a group's attempts go to one of them."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        return checked_address(url)


_SET_BY_THE_PIPELINE = {
    "model",
    "served-model-name",
    "host",
    "port",
    "uds",
    "api-key",
    "dtype",
    "max-num-seqs",
    "max-model-len",
    "tokens-only",
    "skip-tokenizer-init",
    "logprobs-mode",
    "generation-config",
    "override-generation-config",
    "enable-sleep-mode",
}
"""Arguments of the server that the pipeline sets itself. With other values the log-probabilities would be
wrong, or the server would not be found."""


class VllmEngineConfig(Settings):
    """Sampling by vLLM, on servers that are started for this run, or on the `servers` given."""

    type: Literal["vllm"] = "vllm"
    servers: tuple[ServerAddress, ...] = ()
    """Servers that run already; empty: the run starts its own, unless there is a `server_list`."""
    server_list: Path | None = Field(default=None, exclude_if=lambda value: value is None)
    """A YAML file that names such servers, with the keys that `servers` have. It is read again every five
    seconds while the run samples: a server that is added gets the weights, proves that it has them, and then
    gets requests; one that is removed gets no more. With no server in it, the run waits for one."""
    replicas: int = Field(default=1, ge=1, le=64)
    """How many servers the run starts. Each has the whole model and its own devices: as many as `arguments`
    ask for with `--tensor-parallel-size` and `--pipeline-parallel-size`."""
    executable: str | None = None
    """Python interpreter that has vLLM; null: the one that runs this program."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Number type in which the servers compute; it also sets how closely they must agree with the trainer."""
    max_context: int | None = Field(default=None, ge=1)
    """The most tokens of prompt and answer together; null: the model's own limit."""
    lifecycle: Literal["persistent", "per_stage"] = "persistent"
    """`persistent`: the run's own server runs from the first stage that samples to the end of the run, and
    loads new weights while it runs. `per_stage`: it ends before training and starts again with the new
    weights. This gives the trainer the whole machine, but costs a start for each stage that samples."""
    sleep: bool = False
    """The run's own persistent server frees its GPU memory while the trainer works, and wakes up with the new
    weights. It drops its weights, which are replaced anyway; the base model of LoRA adapters moves to host
    memory. Only on GPUs: with this setting vLLM's CPU build refuses to start."""
    max_in_flight: int = Field(default=64, ge=1)
    """The most sequences that are generated at the same time, over all servers. With 1, on the run's own
    server, repeated rollouts have the same bytes. With more, the rounding of a sequence's logits depends on
    the other sequences in its batch."""
    enforce_eager: bool = False
    """Do not compile the model: the server starts sooner but samples more slowly."""
    chunked_prefill: bool = False
    """Compute long prompts in parts, between the steps of other sequences: useful on a GPU. vLLM's CPU build
    crashes when it splits the prompt of a request that has a seed, and all requests here have one."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the server that is started, such as `--tensor-parallel-size=2`; an option and its
    value may also be two items of the list."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the server that is started, such as `VLLM_CPU_KVCACHE_SPACE: "4"`."""
    startup_seconds: float = Field(default=600.0, gt=0.0)
    """Deadline for a server's start, and for a server to come back when none is left."""
    request_seconds: float = Field(default=600.0, gt=0.0)
    """Deadline for one request; a server that misses it counts as dead."""
    max_failures: int = Field(default=3, ge=0)
    """How many server failures are tolerated while one policy is served; one more stops the run."""

    @field_validator("arguments")
    @classmethod
    def _leaves_ours_alone(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        require_readable(arguments)
        for argument in arguments:
            name = option_name(argument)
            if re.sub("^--(no-)?", "", name) in _SET_BY_THE_PIPELINE:
                raise ValueError(
                    f"{name} is set by the pipeline: log-probabilities must be those of the distribution "
                    "that was sampled from, and the server must be found; leave it out, or use the setting "
                    "of `engine` where there is one"
                )
        return arguments

    @model_validator(mode="after")
    def _possible_together(self) -> VllmEngineConfig:
        if self.servers and self.server_list is not None:
            raise ValueError("servers and server_list both name servers; use one of them")
        if self.others_servers and (self.lifecycle == "per_stage" or self.sleep):
            raise ValueError(
                "lifecycle: per_stage and sleep: true are for a server that the run starts itself; leave "
                f"them out with engine.{self.others_servers}"
            )
        if self.others_servers and self.replicas > 1:
            raise ValueError(
                f"replicas: {self.replicas} is for servers that the run starts itself; with "
                f"engine.{self.others_servers} leave it out, and name every server"
            )
        if self.sleep and self.lifecycle == "per_stage":
            raise ValueError(
                "sleep: true has no meaning with lifecycle: per_stage, whose server ends before the trainer "
                "works; allowed: lifecycle: persistent"
            )
        return self

    @property
    def others_servers(self) -> Literal["servers", "server_list"] | None:
        """The setting that names servers which the run does not start; None where it starts its own."""
        if self.servers:
            return "servers"
        return "server_list" if self.server_list is not None else None


OPERATIONAL_SETTINGS = frozenset(
    {
        "servers",
        "server_list",
        "replicas",
        "executable",
        "lifecycle",
        "sleep",
        "startup_seconds",
        "request_seconds",
        "max_failures",
    }
)
"""Settings of an engine that say where it runs and how long to wait for it, but do not affect what it
samples. They may change during a run, and no artifact's id depends on them."""

EngineConfig = Annotated[TransformersEngineConfig | VllmEngineConfig, Field(discriminator="type")]


def identity_of(engine: EngineConfig) -> EngineConfig:
    """The engine as recipes hold it: its operational settings at their defaults."""
    return type(engine).model_validate(engine.model_dump(exclude=set(OPERATIONAL_SETTINGS)))


def operational_settings(engine: EngineConfig) -> dict[str, Any]:
    """The settings that a worker is given besides the recipe."""
    return engine.model_dump(mode="json", include=set(OPERATIONAL_SETTINGS))


def with_operational(engine: EngineConfig, operational: dict[str, Any]) -> EngineConfig:
    """The engine of a recipe with this worker's operational settings."""
    return type(engine).model_validate({**engine.model_dump(), **operational})
