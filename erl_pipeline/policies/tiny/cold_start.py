"""The cold start: supervised training of a random network on scripted demonstrations."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from erl_pipeline.config.policy import ColdStartConfig, TinyPolicyConfig
from erl_pipeline.environments.tiny_parts import Demonstration, TinyParts
from erl_pipeline.policies.tiny.architecture import build_model
from erl_pipeline.policies.tiny.tokenizer import ASSISTANT, BOS, END, USER, build_tokenizer
from storage.errors import TrainingDiverged

_DECAY_FROM = 0.6  # share of the steps after which the learning rate falls
_LAST_RATE = 0.05  # what it falls to, as a share of its peak
_BETAS = (0.9, 0.95)


def cold_start(
    policy: TinyPolicyConfig,
    parts: TinyParts,
    seed: int,
    output_dir: Path,
    on_step: Callable[[int, float], None] | None = None,
) -> dict[str, float]:
    """Make the tiny policy's first checkpoint: a plain `save_pretrained` folder with its tokenizer.

    The same arguments and number of threads give the same weights. `parts` are those of the environment.
    `on_step` is told each step (from 1) and its loss in nats a token.

    Returns the mean of the last losses in nats a token and the number of trained tokens. Raises
    `TrainingDiverged` when a loss is not finite.
    """
    settings = policy.cold_start
    context_length = parts.context_length + (parts.retry_tokens if settings.retries else 0)
    tokenizer = build_tokenizer(parts.words, context_length)
    model = build_model(policy, tokenizer, context_length, seed)
    optimizers = _optimizers(model, settings)
    episodes = parts.demonstrations(random.Random(f"cold_start/{seed}"), settings)

    trained_tokens = 0
    losses: list[float] = []
    model.train()
    for step in range(settings.steps):
        shown: list[Demonstration] = []
        for _ in range(settings.demonstrations_per_step):
            shown += next(episodes)
        token_ids, trained = to_batch(shown, tokenizer)
        loss = _mean_loss(model, token_ids, trained)
        losses.append(loss.item())
        if not torch.isfinite(loss):
            raise TrainingDiverged(
                f"the loss of the cold start is {losses[-1]} at step {step + 1}; lower the learning "
                "rates in policy.cold_start"
            )
        loss.backward()
        for optimizer, peak in optimizers:
            optimizer.param_groups[0]["lr"] = peak * _rate(step / settings.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        trained_tokens += int(trained.sum())
        if on_step is not None:
            on_step(step + 1, losses[-1])

    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    last = losses[-50:]
    return {"loss": sum(last) / len(last), "trained_tokens": float(trained_tokens)}


def to_words(demonstration: Demonstration) -> tuple[list[str], list[bool]]:
    """A conversation as the tokenizer's words, and which of them are trained: what the assistant says."""
    words, trained = [BOS], [False]
    for message in demonstration:
        said = message["content"].split()
        if message["role"] == "assistant":
            words += [ASSISTANT, *said, END]
            trained += [False, *[True] * (len(said) + 1)]
        else:
            words += [USER, *said]
            trained += [False] * (len(said) + 1)
    return words, trained


def to_batch(
    demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and trained mask, `[batch, time]`; padded on the right, which causal attention never sees."""
    ids = tokenizer.get_vocab()
    shown = [to_words(demonstration) for demonstration in demonstrations]
    width = max(len(words) for words, _ in shown)
    token_ids = torch.full((len(shown), width), tokenizer.pad_token_id, dtype=torch.long)
    mask = torch.zeros(len(shown), width, dtype=torch.bool)
    for row, (words, trained) in enumerate(shown):
        token_ids[row, : len(words)] = torch.tensor([ids[word] for word in words])
        mask[row, : len(words)] = torch.tensor(trained)
    return token_ids, mask


def _mean_loss(model: GPT2LMHeadModel, token_ids: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats, averaged over the trained tokens; the head sees no other position."""
    hidden = model.transformer(input_ids=token_ids[:, :-1]).last_hidden_state  # [batch, time - 1, width]
    targets = trained[:, 1:]
    return cross_entropy(model.lm_head(hidden[targets]), token_ids[:, 1:][targets])


def _optimizers(
    model: GPT2LMHeadModel, settings: ColdStartConfig
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the blocks' matrices, AdamW for the rest, each with its peak learning rate."""
    blocks = {id(parameter) for parameter in model.transformer.h.parameters() if parameter.ndim == 2}
    matrices = [parameter for parameter in model.parameters() if id(parameter) in blocks]
    others = [parameter for parameter in model.parameters() if id(parameter) not in blocks]
    muon = torch.optim.Muon(matrices, lr=settings.matrix_learning_rate, weight_decay=0.0)
    adamw = torch.optim.AdamW(others, lr=settings.learning_rate, betas=_BETAS, weight_decay=0.0)
    return [(muon, settings.matrix_learning_rate), (adamw, settings.learning_rate)]


def _rate(done: float) -> float:
    """The learning rate as a share of its peak, when this share of the steps is done."""
    if done < _DECAY_FROM:
        return 1.0
    return 1.0 - (1.0 - _LAST_RATE) * (done - _DECAY_FROM) / (1.0 - _DECAY_FROM)
