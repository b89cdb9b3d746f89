"""The cold start: supervised training of a random network on scripted demonstrations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.config.policy import ColdStartConfig, TinyPolicyConfig
from erl_pipeline.environments.frozen_lake.generation import generate_boards
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import Demonstration, demonstrate
from erl_pipeline.policies.tiny.architecture import build_model, context_length
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer
from storage.errors import ConfigError, TrainingDiverged

_DECAY_FROM = 0.6  # share of the steps after which the learning rate falls
_LAST_RATE = 0.05  # what it falls to, as a share of its peak
_BETAS = (0.9, 0.95)


def cold_start(
    policy: TinyPolicyConfig,
    environment: FrozenLakeConfig,
    seed: int,
    output_dir: Path,
    on_step: Callable[[int, float], None] | None = None,
) -> dict[str, float]:
    """Make the tiny policy's first checkpoint: a plain `save_pretrained` folder with its tokenizer.

    The same arguments and number of threads give the same weights. Held-out boards are never
    demonstrated. `on_step` is told each step (from 1) and its loss in nats a token.

    Returns the mean of the last losses in nats a token and the number of trained tokens. Raises
    `ConfigError` when the environment does not speak the compact format and `TrainingDiverged` when a
    loss is not finite.
    """
    if environment.format != "compact":
        raise ConfigError(
            f"environment.format: {environment.format}: a policy of type: tiny reads format: compact only"
        )
    settings = policy.cold_start
    positions = context_length(environment)
    tokenizer = build_tokenizer(environment, positions)
    model = build_model(policy, tokenizer, positions, seed)
    optimizers = _optimizers(model, settings)
    boards = generate_boards(environment, "training", environment.training_boards)
    stream = random.Random(f"cold_start/{seed}")

    trained_tokens = 0
    losses: list[float] = []
    model.train()
    for step in range(settings.steps):
        shown: list[Demonstration] = []
        for _ in range(settings.demonstrations_per_step):
            shown += demonstrate(stream, environment, settings, boards)
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


def to_batch(
    demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and trained mask, `[batch, time]`; padded on the right, which causal attention never sees."""
    ids = tokenizer.get_vocab()
    width = max(len(demonstration.words) for demonstration in demonstrations)
    token_ids = torch.full((len(demonstrations), width), tokenizer.pad_token_id, dtype=torch.long)
    trained = torch.zeros(len(demonstrations), width, dtype=torch.bool)
    for row, demonstration in enumerate(demonstrations):
        length = len(demonstration.words)
        token_ids[row, :length] = torch.tensor([ids[word] for word in demonstration.words])
        trained[row, :length] = torch.tensor(demonstration.trained)
    return token_ids, trained


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
