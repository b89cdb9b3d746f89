"""A probe that identifies a policy's weights to an engine in another process, and what else a sampler must
know of the policy: computed where the model is, and written beside its weights."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import PROBE_TEMPERATURE, OutputHead, Probe
from erl_pipeline.engines.probe_file import PROBE_FILE, ModelFacts, write_probe
from erl_pipeline.engines.sampling import draw_tokens, uniform_stream
from erl_pipeline.policies.adapters import has_adapter, linear_layers, without_adapter
from erl_pipeline.policies.checkpoints import MODEL
from erl_pipeline.policies.pretrained import LoadedPolicy, stored_names
from storage.errors import EngineError

_SEED = 0
_SEQUENCES = 16
_PROMPT_LENGTH = 8
_LENGTH = 16


def save_probe(policy: LoadedPolicy, folder: Path, probe: Probe | None = None) -> None:
    """Write `probe.safetensors` into the folder of a checkpoint whose weights, or adapter, are in `model`.

    `probe` is that of the policy, where it is computed already. Raises `EngineError` where the weights do not
    make a model that a server could read.
    """
    facts = None if has_adapter(policy.model) else model_facts(policy, folder / MODEL)
    write_probe(folder / PROBE_FILE, probe or make_probe(policy.model), facts)


def model_facts(policy: LoadedPolicy, folder: Path) -> ModelFacts:
    """What a sampler must know of a whole model that is written in `folder`."""
    return ModelFacts(
        model_type=policy.model.config.model_type,
        tokenizer_digest=policy.tokenizer_digest,
        context_length=policy.context_length,
        end_token_ids=tuple(sorted(policy.eos_token_ids)),
        head=output_head(policy.model, folder),
        linear_layers=tuple(linear_layers(policy.model)),
    )


def output_head(model: PreTrainedModel, folder: Path) -> OutputHead:
    """The output head of a model in its files.

    Raises `EngineError` when the files lack a tensor: a server that reads them would keep the tensor of the
    policy before.
    """
    stored = stored_names(model, [name for name, _ in model.named_parameters(remove_duplicate=False)])
    in_file = {own: name for name, own in stored.items() if own is not None}
    names = {module: name for name, module in model.named_modules()}
    output, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    head = in_file[f"{names[output]}.weight"]
    tied_to = in_file[f"{names[inputs]}.weight"] if output.weight is inputs.weight else None
    needed = set(stored)
    if tied_to is not None:
        needed.discard(head)
    written = {name for file in folder.glob("*.safetensors") for name in _tensor_names(file)}
    if missing := sorted(needed - written):
        raise EngineError(f"checkpoint {folder} lacks the tensors {', '.join(missing)}")
    return OutputHead(head, tied_to)


def _tensor_names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


@torch.no_grad()
def make_probe(model: PreTrainedModel) -> Probe:
    """The probe of this model: fixed prompts of arbitrary tokens, and how the model itself continues them.

    The continuations are the model's own, because in coarse number types the log-probability of a token that
    the model would never say is mostly rounding error. A model with a short context gets shorter sequences:
    after them there is room for one token.

    A model that is spread over processes needs this call in all of them. Each computes every sequence, and
    each block of the model has its weights in one place only while it computes.
    """
    length = min(_LENGTH, model.config.get_text_config().max_position_embeddings - 1)
    prompt = min(_PROMPT_LENGTH, length // 2)
    prompts = np.random.Generator(np.random.Philox(_SEED)).integers(
        model.config.get_text_config().vocab_size, size=(_SEQUENCES, prompt)
    )
    uniforms = np.stack([uniform_stream(seed, length) for seed in range(_SEQUENCES)])
    was_training = model.training
    model.eval()
    tokens = torch.from_numpy(prompts).to(model.device)  # [sequences, time]
    ones = torch.ones(_SEQUENCES, device=model.device)
    made = model(input_ids=tokens, use_cache=True, logits_to_keep=1)
    for place in range(prompt, length):
        drawn = torch.from_numpy(uniforms[:, place]).to(model.device)
        chosen, _ = draw_tokens(made.logits[:, -1], ones, drawn)
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
        if place + 1 < length:
            made = model(input_ids=chosen[:, None], past_key_values=made.past_key_values, use_cache=True)
    # Again, but in one pass, as training computes log-probabilities.
    logits = model(input_ids=tokens, use_cache=False).logits
    probe = Probe(
        token_ids=tuple(tuple(row) for row in tokens.tolist()),
        logprobs=_continuation_logprobs(logits, tokens, prompt),
        dtype=str(model.dtype).removeprefix("torch."),
        hot_logprobs=torch.log_softmax(logits[:, -1].float() / PROBE_TEMPERATURE, dim=-1).cpu().numpy(),
    )
    if has_adapter(model):
        with without_adapter(model):
            logits = model(input_ids=tokens, use_cache=False).logits
        probe = replace(probe, base_logprobs=_continuation_logprobs(logits, tokens, prompt))
    model.train(was_training)
    return probe


def _continuation_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, prompt: int
) -> tuple[tuple[float, ...], ...]:
    """Log-probabilities of the tokens after the first `prompt`. `logits`: `[sequences, time, vocabulary]`."""
    logprobs = torch.log_softmax(logits[:, prompt - 1 : -1].float(), dim=-1)
    chosen = logprobs.gather(2, tokens[:, prompt:, None]).squeeze(2)
    return tuple(tuple(row) for row in chosen.tolist())
