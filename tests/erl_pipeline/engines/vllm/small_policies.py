"""Policies that vLLM serves on a CPU within seconds, and the trainer's log-probabilities of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import ServedCheckpoint
from erl_pipeline.engines.probe import make_probe, output_head
from erl_pipeline.engines.vllm.settings import VllmEngineConfig
from tests.random_models import random_gpt2, random_llama

VOCABULARY = 44
"""The number of words of the tokenizer in `tests/erl_pipeline/episodes/script.py`."""
CONTEXT = 128
END = 2
SMALL_SERVER = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
ONE_PROCESS = "--distributed-executor-backend=vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's engine computes in its own process, not in a worker's: a start takes two fifths less time."""
SMALL_CACHE = "--num-gpu-blocks-override=64"
"""8,192 tokens of keys and values. Otherwise a start writes a whole gibibyte."""
ENGINE = VllmEngineConfig(
    dtype="float32",
    enforce_eager=True,
    max_in_flight=32,
    arguments=(ONE_PROCESS, SMALL_CACHE),
    environment=SMALL_SERVER,
    progress_seconds=120.0,
)
_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": END}


def untied_gpt2() -> PreTrainedModel:
    """A GPT-2 with a separate output head."""
    return random_gpt2(VOCABULARY, positions=CONTEXT, **_TOKENS)


def tied_llama(layers: int = 2, width: int = 128) -> PreTrainedModel:
    """A Llama whose output head is its embedding matrix; `width` is that of its feed-forward layers."""
    return random_llama(VOCABULARY, layers=layers, intermediate=width, positions=CONTEXT, **_TOKENS)


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Write the model as a checkpoint folder."""
    model.save_pretrained(folder)
    return folder


def served(model: PreTrainedModel, version: str, folder: Path) -> ServedCheckpoint:
    """The model in the form that an engine gets; its weights are written below `folder`."""
    checkpoint = save(model, folder / version)
    head = output_head(model, checkpoint)
    return ServedCheckpoint(version, checkpoint, head, make_probe(model), frozenset({END}))


def train_a_little(model: PreTrainedModel) -> None:
    """A few steps at a high learning rate on random text: every weight moves far."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for seed in range(4):
        tokens = torch.randint(VOCABULARY, (8, 16), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


@torch.inference_mode()
def logprobs_of(
    model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0
) -> list[float]:
    """The model's log-probabilities, in nats, of each token of `answer` after `prompt`."""
    tokens = torch.tensor([*prompt, *answer])
    logits = model(input_ids=tokens[None]).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return [float(logprobs[step, token]) for step, token in enumerate(answer)]
