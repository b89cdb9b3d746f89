"""The cold start: supervised training of a random network on scripted demonstrations."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

import erl_pipeline.policies.lean_imports  # noqa: F401
from erl_pipeline.config.policy import ColdStartConfig, TinyPolicyConfig
from erl_pipeline.environments.demonstrations import Demonstration, ExamQuestion, TinyParts
from erl_pipeline.policies.tiny import model as tiny_model
from storage.errors import TrainingDiverged

# isort: split


_BATCH = 128


@dataclass(frozen=True)
class Examiner:
    """Questions as tokens.

    `token_ids` is `[questions, time]`, `asked` the mask of the tokens that must be right.
    """

    token_ids: torch.Tensor
    asked: torch.Tensor

    @torch.inference_mode()
    def share_right(self, model: GPT2LMHeadModel) -> float:
        """The share of asked tokens that are the most probable after the tokens before them."""
        right = 0
        for token_ids, asked in zip(
            self.token_ids.split(_BATCH), self.asked[:, 1:].split(_BATCH), strict=True
        ):
            hidden = model.transformer(input_ids=token_ids[:, :-1]).last_hidden_state
            said = model.lm_head(hidden[asked]).argmax(-1)
            right += int((said == token_ids[:, 1:][asked]).sum())
        return right / int(self.asked.sum())


def examiner(questions: Sequence[ExamQuestion], tokenizer: PreTrainedTokenizerFast) -> Examiner:
    """The questions, ready to be asked often. Raises `ValueError` where they ask for no word."""
    token_ids = tiny_model.to_batch([question.demonstration for question in questions], tokenizer).token_ids
    asked = torch.zeros_like(token_ids, dtype=torch.bool)
    for row, question in enumerate(questions):
        words, _ = tiny_model.to_words(question.demonstration)
        answer = len(words) - len(question.demonstration[-1]["content"].split()) - 1  # before <end>
        asked[row, [answer + place for place in question.places]] = True
    if not asked.any():
        raise ValueError("an examination needs a word that is asked for")
    return Examiner(token_ids, asked)


_FALLS_AFTER = 0.6  # share of the steps after which the learning rates fall
_LAST_RATE = 0.05  # what they fall to, as a share of their peak
_EXAMINED_EVERY = 50  # steps


class Schedule:
    """Steps at full learning rates, then steps in which they fall.

    With a gate the first part continues until all examinations are passed, or the most steps are reached: a
    skill that has not emerged at full rates does not emerge when they fall.
    """

    def __init__(self, settings: ColdStartConfig, *, gated: bool) -> None:
        self._settings = settings
        self._gated = gated
        self._falls_from = round(_FALLS_AFTER * settings.steps)
        self._falling = settings.steps - self._falls_from

    @property
    def steps(self) -> int:
        """The total number of steps expected so far."""
        return self._falls_from + self._falling

    def examination_due(self, done: int) -> bool:
        """Whether the policy has to be examined after `done` steps."""
        return self._gated and done == self._falls_from

    def examined(self, done: int, share_right: float) -> None:
        """Continue at full rates where too little was right, in the worst examination, and steps are left."""
        more = min(_EXAMINED_EVERY, self._settings.limit - self.steps)
        if share_right < self._settings.gate and more > 0:
            self._falls_from = done + more
        else:
            self._gated = False

    def rate(self, done: int) -> float:
        """The learning rates as a share of their peaks, after `done` steps."""
        if done < self._falls_from:
            return 1.0
        return 1.0 - (1.0 - _LAST_RATE) * (done - self._falls_from) / self._falling


# isort: split


_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class ColdStarted:
    """The result of a cold start: steps, trained tokens, the mean of the last losses in nats a token, and the
    share of right answers at the end in each examination of the environment, by its name."""

    steps: int
    trained_tokens: int
    loss: float
    shares_right: Mapping[str, float]


def cold_start(
    policy: TinyPolicyConfig,
    parts: TinyParts,
    seed: int,
    output_dir: Path,
    on_step: Callable[[int, int, float], None] | None = None,
) -> ColdStarted:
    """Make the tiny policy's first checkpoint: a plain `save_pretrained` folder with its tokenizer.

    The same arguments and number of threads give the same weights. `parts` are those of the environment.
    `on_step` gets the number of each step (from 1), the number of steps expected so far, and the step's loss
    in nats a token.

    Raises `TrainingDiverged` when a loss is not finite.
    """
    settings = policy.cold_start
    context_length = parts.context_length + (parts.retry_tokens if settings.retries else 0)
    tokenizer = tiny_model.build_tokenizer(parts.words, context_length)
    model = tiny_model.build_model(policy, tokenizer, context_length, seed)
    optimizers = _optimizers(model, settings)
    episodes = parts.demonstrations(random.Random(f"cold_start/{seed}"), settings)
    examiners = {
        each.name: examiner(
            each.questions(random.Random(f"cold_start/examination/{seed}"), settings), tokenizer
        )
        for each in parts.examinations
    }

    def examine() -> dict[str, float]:
        return {name: each.share_right(model) for name, each in examiners.items()}

    schedule = Schedule(settings, gated=bool(parts.examinations) and settings.gate > 0)

    trained_tokens = 0
    losses: list[float] = []
    model.train()
    while len(losses) < schedule.steps:
        if schedule.examination_due(len(losses)):
            schedule.examined(len(losses), min(examine().values()))
        shown: list[Demonstration] = []
        for _ in range(settings.demonstrations_per_step):
            shown += next(episodes)
        batches = tiny_model.to_batches(shown, tokenizer)
        tokens = sum(int(batch.trained.sum()) for batch in batches)
        loss = torch.stack([_loss(model, batch) for batch in batches]).sum() / tokens
        if not torch.isfinite(loss):
            raise TrainingDiverged(
                f"the loss of the cold start is {loss.item()} at step {len(losses) + 1}; lower the learning "
                "rates in policy.cold_start"
            )
        loss.backward()
        for optimizer, peak in optimizers:
            optimizer.param_groups[0]["lr"] = peak * schedule.rate(len(losses))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        trained_tokens += tokens
        if on_step is not None:
            on_step(len(losses), schedule.steps, losses[-1])

    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    last = losses[-50:]
    return ColdStarted(
        steps=len(losses),
        trained_tokens=trained_tokens,
        loss=sum(last) / len(last),
        shares_right=examine(),
    )


def _loss(model: GPT2LMHeadModel, batch: tiny_model.Batch) -> torch.Tensor:
    """Cross-entropy in nats, summed over the trained tokens; the head is computed at no other position."""
    hidden = model.transformer(  # [rows, time - 1, width]
        input_ids=batch.token_ids[:, :-1],
        position_ids=batch.positions[:, :-1],
        attention_mask=None if batch.attention is None else batch.attention[:, :, :-1, :-1],
    ).last_hidden_state
    targets = batch.trained[:, 1:]
    return cross_entropy(model.lm_head(hidden[targets]), batch.token_ids[:, 1:][targets], reduction="sum")


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
