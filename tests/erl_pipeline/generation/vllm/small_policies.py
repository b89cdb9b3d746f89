"""Policies that vLLM serves on a CPU within seconds, and what the trainer's model says of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from erl_pipeline.config.generation import VllmEngineConfig

VOCABULARY = 44
"""As many as the tokenizer of `tests/erl_pipeline/episodes/script.py` has."""
CONTEXT = 128
END = 2
# One process less and no second import of everything: the server starts in a third of the time.
SMALL_SERVER = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}
ENGINE = VllmEngineConfig(
    dtype="float32",
    enforce_eager=True,
    max_in_flight=32,
    arguments=("--distributed-executor-backend=uni",),
    environment=SMALL_SERVER,
    request_seconds=120.0,
)
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": END}


def untied_gpt2() -> PreTrainedModel:
    """A GPT-2 whose output head is its own."""
    torch.manual_seed(0)
    sizes = {"n_positions": CONTEXT, "n_embd": 64, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(tie_word_embeddings=False, **_TOKENS, **sizes)).eval()


def tied_llama(layers: int = 2) -> PreTrainedModel:
    """A Llama whose output head is its embedding matrix."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
    }
    return LlamaForCausalLM(
        LlamaConfig(tie_word_embeddings=True, max_position_embeddings=CONTEXT, **_TOKENS, **sizes)
    ).eval()


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Write the model as a checkpoint folder."""
    model.save_pretrained(folder)
    return folder


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
