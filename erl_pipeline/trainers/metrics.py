"""The numbers that a trainer reports."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from storage.tables.scored import NotScored

NotTrained = Literal[
    "never_trained",
    NotScored,
    "too_old",
    "no_tokens",
    "zero_weight",
    "zero_advantage",
    "not_drawn",
]
"""Why a sequence was not trained.

- `never_trained`: its role is never trained, such as a judge's, so that no trainer was given it
- `environment_error`, `environment_timeout`, `scorer_error`: the attempt, or the one that a text led to, was
  not scored, so that no trainer was given it
- `not_rated`, `not_trainable`: nobody rated the served conversation, or its tokens cannot be trained
- `too_old`: the policy that sampled it is too old (`pipeline.max_age`), so that no trainer was given it
- `no_tokens`: the policy sampled none of its tokens
- `zero_weight`: the objective gives its role the weight 0, or leaves it out since a limit cut it off
- `zero_advantage`: its reward is the mean of its group, and nothing but the advantage gives it a loss
- `not_drawn`: the supervised steps were over before its turn came
"""


@dataclass(frozen=True)
class SequenceRecord:
    """One sequence in one training. Numbers are None where nothing was trained or measured.

    Means are over the trained tokens of all steps in which the sequence took part.
    """

    weight: float
    """The factor of its losses: its own weight times that of its role."""
    not_trained: NotTrained | None = None
    steps: int = 0
    """Optimizer steps in which it took part."""
    trained_tokens: int = 0
    """Tokens with a loss, counted once for each step."""
    mean_ratio: float | None = None
    """Mean probability ratio of the surrogate."""
    clipped_share: float | None = None
    """Share of tokens at which the clip removed the gradient."""
    entropy: float | None = None
    """Mean entropy, in nats, of the trainer's distributions at its tokens."""
    mismatch: float | None = None
    """Mean |log-probability of the trainer - that of the sampler| before the first step, nats. None where its
    first pass came after a step and the objective needed no log-probabilities from before."""
    loss: float | None = None
    """Its share of the loss of an optimizer batch; the mean over its steps."""
    token_logprobs: tuple[float, ...] | None = None
    """Log-probability that the trainer gave each response token when it first saw it, 0 where the mask is 0;
    None unless tokens are recorded."""
    token_entropies: tuple[float, ...] | None = None
    """The same for the entropies."""


@dataclass(frozen=True)
class _Metrics:
    def counters(self) -> dict[str, int]:
        """Whole numbers, for the manifest's counters."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    def metrics(self) -> dict[str, float]:
        """All other numbers."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}


@dataclass(frozen=True)
class RoleMetrics:
    """Means over the trained tokens of one role, over all optimizer steps."""

    entropy: float
    clip_fraction: float


@dataclass(frozen=True)
class ReplayMetrics(_Metrics):
    """What replayed trajectories did in an update. The ratio w is the policy's probability over that of the
    policy that sampled; the weight takes its place in the loss. Means and quantiles are over replayed tokens.
    Losses are the parts of a step's policy loss, as means over the steps."""

    replayed_sequences: int
    replay_loss: float
    fresh_loss: float
    replay_ratio_mean: float
    replay_ratio_p10: float
    replay_ratio_p50: float
    replay_ratio_p90: float
    replay_weight_mean: float
    replay_weight_p10: float
    replay_weight_p50: float
    replay_weight_p90: float


@dataclass(frozen=True)
class DistillationMetrics(_Metrics):
    """What a loss of self-distillation did in an update. All but the loss are means over the tokens that a
    teacher has scored, p is the policy in training, q its teacher, b the policy that sampled."""

    taught_sequences: int
    distillation_loss: float
    """Its part in the loss of a step, with its coefficient; the mean over the steps."""
    teacher_gap: float
    """log q - log p of the token that was sampled, nats."""
    distillation_capped: float
    """Share of tokens at which p / b was above `ratio_cap`."""
    distillation_clipped: float
    """Share of tokens whose divergence was above `token_clip`."""
    student_tail: float
    """Probability in p of the tokens that are not compared."""
    teacher_tail: float
    """The same in q."""
    reinforcement_grad_norm: float | None = None
    """Euclidean norm of the gradient of all other parts of the loss in the first step, before clipping; None
    where it was not measured."""
    distillation_grad_norm: float | None = None
    """The same of this part, with its coefficient."""


@dataclass(frozen=True)
class UpdateMetrics(_Metrics):
    """What a reinforcement-learning update did. Floats are 0 where no optimizer step was made.

    Losses are means over the optimizer steps; ratio, clipping and weights are means over trained
    tokens; `mismatch_*` compare trainer and sampler before the first step, on that step's tokens.
    """

    policy_loss: float
    kl_loss: float
    """Divergence to the reference in nats, before its coefficient; of tokens that a policy sampled, and of
    others if their role has a KL term."""
    entropy: float
    """Mean entropy in nats at tokens that a policy sampled, and at others if their role has a bonus."""
    grad_norm: float
    """Euclidean norm of the gradient before clipping; the mean over steps."""
    ratio_mean: float
    clip_fraction: float
    mismatch_mean: float
    """Mean |log-probability of the trainer - that of the sampler|, nats."""
    mismatch_max: float
    mismatch_kl: float
    """KL(sampler || trainer) by the k3 estimator, nats a token."""
    importance_mean: float
    """Mean importance weight after truncation or masking; 0 under `bypass`, which has none."""
    importance_capped: float
    """Share of tokens whose weight was truncated or masked."""
    seconds: float
    tokens_per_second: float
    """Prompt and response tokens of all sequences, times epochs, over wall time."""
    optimizer_steps: int
    microbatches: int
    sequences: int
    """Sequences that were trained."""
    dropped_zero_advantage: int
    """Sequences left out because their advantage is 0."""
    dropped_untrained: int
    """Sequences left out because the policy sampled none of their tokens."""
    dropped_zero_weight: int
    """Sequences left out because the objective gives their role the weight 0."""
    trained_tokens: int
    """Tokens with a loss, times epochs."""
    sequence_tokens: int
    """Prompt and response tokens, times epochs."""
    input_tokens: int
    """Tokens that went through the model: fewer where prompts are shared."""
    shares_prompts: int
    """1 where the model's attention takes shared prompts, 0 where padded rows are used."""
    attention: str
    """How attention was computed: `flash`, `flex`, `blocks`, or `rows` where padded rows are used."""
    roles: Mapping[str, RoleMetrics]
    """The roles that were trained."""
    records: Sequence[SequenceRecord]
    """What was done with each sequence of the work, in its order."""
    replay: ReplayMetrics | None = None
    """None where nothing could be replayed."""
    distillation: DistillationMetrics | None = None
    """None without a loss of self-distillation."""

    def counters(self) -> dict[str, int]:
        """All whole numbers."""
        counters = super().counters()
        for part in (self.replay, self.distillation):
            counters |= {} if part is None else part.counters()
        return counters

    def metrics(self) -> dict[str, float]:
        """All numbers that are not whole; those of a role have names such as `entropy_reflection`."""
        by_role = {
            f"{name}_{role}": value
            for role, numbers in self.roles.items()
            for name, value in asdict(numbers).items()
        }
        of_parts: dict[str, float] = {}
        for part in (self.replay, self.distillation):
            of_parts |= {} if part is None else part.metrics()
        return {**super().metrics(), **by_role, **of_parts}


@dataclass(frozen=True)
class FineTuneMetrics(_Metrics):
    """What a supervised update did. Floats are 0 where no optimizer step was made."""

    loss: float
    """Cross-entropy in nats a token, the mean over steps."""
    first_loss: float
    last_loss: float
    grad_norm: float
    seconds: float
    tokens_per_second: float
    """Prompt and response tokens of all rows of all steps, over wall time."""
    optimizer_steps: int
    microbatches: int
    rows: int
    """Rows in the dataset that have a token to train."""
    dropped_untrained: int
    trained_tokens: int
    sequence_tokens: int
    input_tokens: int
    shares_prompts: int
    attention: str
    records: Sequence[SequenceRecord]
    """What was done with each sequence of the work, in its order."""
