"""Settings of replay: successes of earlier iterations are trained together with fresh attempts (ExGRPO).

The paper is arXiv 2510.02245 (v2); "code" is the official one, folder `ExGRPO` of
Simplified-Reasoning/LUFFY at commit 01f4ae0. Where the two differ, the setting says which value is whose.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.pipeline import PipelineConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.rollouts import RolloutConfig, UniformSelection

REPLAYED = "replay"
"""Role of a stored attempt that is trained on again."""

EXPERIENCE = "experience"
"""Name of the experience in a run's state, and of the input through which stages get it."""

ACTIVE, RETIRED = "active", "retired"
"""Whether a task can be replayed: one whose attempts all succeed retires."""

Sampler = Literal["exgrpo", "tiers", "uniform"]
Importance = Literal["behaviour", "trainer", "off"]
Entropy = Literal["vocabulary", "nll", "sampled"]
Pick = Literal["lowest", "highest", "random"]


def _off(value: Any) -> Any:
    """YAML's `off` is false."""
    return None if value is False else value


def _word_off(value: Any) -> Any:
    """The same where `off` is one of several words."""
    return "off" if value is False else value


class BucketSettings(Settings):
    """How often tasks of each bucket are drawn. A task's bucket is its number of successes when it was last
    tried, out of `group_size` K; where attempts were not scored, the number out of K at the rate of the
    others. Weights are those of a normal distribution over the buckets that hold a task (paper, section
    4.1)."""

    mean: float = Field(default=0.5, ge=0.0, le=1.0)
    """The bucket that is drawn most, as a share of K."""
    sigma: float = Field(default=1.0, gt=0.0)
    """Standard deviation, in units of `sigma_unit`."""
    sigma_unit: Literal["count", "rate"] = "count"
    """`count`: successes (code: x = k, mean K / 2). `rate`: success rates (paper's text: x = k / K), which
    with sigma 1 draws all buckets nearly alike."""


class TierSettings(Settings):
    """A simplified variant that practitioners' guides describe; it is in no paper. All attempts are stored,
    and ranked within their group by quality into tiers of equal size; tiers are drawn by fixed shares.

    Three faults of the usual sketch are corrected: log-probabilities keep their gradient
    (`torch.tensor(logprobs)` cuts it), the ratio is taken token by token against what was stored (the sketch
    compares a whole sequence with a uniform baseline for one token), and shares become whole numbers by
    largest remainder (`int()` draws 30 of 32).
    """

    success_weight: float = Field(default=0.7, ge=0.0, le=1.0)
    """Share of success in the quality; the rest is 1 minus the mean cosine similarity to other attempts."""
    diversity: Literal["tokens", "embedding"] = Field(
        default="tokens", exclude_if=lambda diversity: diversity == "tokens"
    )
    """Which similarity: `tokens`, to the other attempts of the group, whose vectors count the tokens of their
    responses; `embedding`, to the task's newest 32 stored attempts of earlier iterations, whose vectors are
    those of `embedding_model` for what the policy said (of the group while the task has none)."""
    embedding_model: str = Field(
        default="all-MiniLM-L6-v2", exclude_if=lambda model: model == "all-MiniLM-L6-v2"
    )
    """As `memory.embedding_model` of ERL, for `diversity: embedding`."""
    shares: tuple[float, ...] = Field(default=(0.5, 0.3, 0.15, 0.05), min_length=1, max_length=100)
    """Shares of the draws, from the best tier to the worst; there are as many tiers as shares."""
    reward: Literal["own", "quality"] = Field(default="own", exclude_if=lambda reward: reward == "own")
    """What a replayed row counts with where it is compared with the fresh rows of its group: `own`, its
    reward; `quality`, that with which it was stored. Fresh rows always count with their rewards."""
    capacity: int = Field(default=100_000, ge=1)
    """Newest stored attempts that can be drawn (first in, first out)."""
    on_policy_start: float = Field(default=0.7, ge=0.0, le=1.0)
    """Weight of fresh rows in the first pass over the training tasks; replayed ones have the rest up to 1."""
    on_policy_decay: float = Field(default=0.1, ge=0.0)
    """How much this weight falls with each pass."""
    on_policy_least: float = Field(default=0.3, ge=0.0, le=1.0)
    """The weight at which it stops falling."""

    @field_validator("shares")
    @classmethod
    def _add_up(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if min(shares) < 0 or abs(sum(shares) - 1.0) > 1e-9:
            raise ValueError(f"{list(shares)}: allowed are shares of at least 0 that add up to 1")
        return shares


class ReplayConfig(Settings):
    """What is stored, drawn and replayed, and with which loss."""

    sampler: Sampler = "exgrpo"
    """`exgrpo`: tasks are drawn by bucket, and `pick` says which stored success of each. `uniform`: any
    stored success of any task, all tasks equally likely (a control). `tiers`: a simplified variant, see the
    setting `tiers`."""
    share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of an iteration's tasks that are replayed, rounded down: one stored attempt each beside K - 1
    fresh ones (rho of the paper; 0.25 and 0.75 are its ablations). A task that is replayed is not drawn as a
    fresh one too; in the code it may be both."""
    start_success: float = Field(default=0.35, ge=0.0, le=1.0)
    """Replay begins in the iteration after the first one in which fresh attempts succeed more often than
    this, and never stops again; earlier attempts are not stored (paper, section 5.1; code:
    experience_start_sratio)."""
    buckets: BucketSettings = BucketSettings()
    pick: Pick = "lowest"
    """Which of a task's stored successes is replayed: the one of lowest entropy under the current policy
    (paper), of highest, or a random one (the paper's ablations). With `uniform` a random one."""
    entropy: Entropy = "vocabulary"
    """Mean over a response's tokens of: `vocabulary`, the entropy of the whole distribution (code); `nll`,
    the negative log-probability of the sampled token (paper, algorithm 1); `sampled`, that times the token's
    probability (paper, section 3.2). The code masks the wrong places, so that short responses win; here the
    mask is that of the response."""
    importance: Annotated[Importance, BeforeValidator(_word_off)] = "behaviour"
    """What the ratio w of a replayed token is taken against: `behaviour`, the log-probabilities of the
    sampler (paper's formula); `trainer`, those that the trainer computed before the update of that
    iteration (code, whose sampler is another engine); `off`: w is 1 (an ablation)."""
    shaping_beta: Annotated[float | None, BeforeValidator(_off)] = Field(default=0.1, gt=0.0)
    """Replayed tokens get w / (w + beta) in place of w (paper, eq. 4 and appendix D). `off` leaves w (an
    ablation)."""
    weight_cap: float | None = Field(default=None, gt=0.0)
    """Largest w, without shaping; `tiers` has 5."""
    clip: bool = False
    """`on`: fresh tokens keep their clip range once replay has begun. Both paper (appendix D) and code
    (loss_remove_clip) remove it for all tokens."""
    retire: Literal["experience", "tasks"] = "experience"
    """A task whose attempts all succeed retires for good: its stored attempts are dropped (paper).
    `tasks`: it is also no longer drawn as a fresh one, as long as 20 more tasks remain than an iteration
    draws (code, which does so at the next pass over the tasks)."""
    max_age: int | None = Field(default=None, ge=1)
    """Most iterations since an attempt was stored; `null`, as in paper and code, keeps all."""
    max_per_task: int | None = Field(default=None, ge=1)
    """Newest stored attempts of a task that can be replayed; `null`, as in paper and code: all."""
    tiers: TierSettings = TierSettings()

    @model_validator(mode="before")
    @classmethod
    def _follow_the_sampler(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("sampler") == "uniform":
            return {"pick": "random", **values}
        if isinstance(values, dict) and values.get("sampler") == "tiers":
            return {"pick": "random", "shaping_beta": False, "weight_cap": 5.0, **values}
        return values

    @model_validator(mode="after")
    def _possible_together(self) -> ReplayConfig:
        if self.sampler != "exgrpo" and self.pick != "random":
            raise ValueError(f"pick: {self.pick}; allowed with sampler: {self.sampler} is random")
        if self.shaping_beta is not None and self.weight_cap is not None:
            raise ValueError(
                f"weight_cap: {self.weight_cap:g}; a shaped weight is below 1 already: set shaping_beta: "
                "off, or weight_cap: null"
            )
        return self


class DrawSettings(Settings):
    """What a draw of tasks to replay depends on, besides the experience; see `ReplayConfig` for each."""

    sampler: Sampler
    share: float
    tasks_per_iteration: int
    group_size: int
    buckets: BucketSettings
    pick: Pick
    tiers: TierSettings
    max_age: int | None
    max_per_task: int | None


def most_replayed(share: float, tasks: int) -> int:
    """Tasks of an iteration that are replayed: the share, rounded down."""
    return math.floor(share * tasks + 1e-9)


def require_replayable(
    replay: ReplayConfig, rollouts: RolloutConfig, pipeline: PipelineConfig, method: PluginSettings
) -> None:
    """Raise ValueError, which names both settings, where nothing would be replayed, or replay lacks what it
    needs."""
    described = plugins("methods")[method.type].value
    if described.replayed is None:
        reason = "its groups are no first attempts at one task on one prompt"
        raise ValueError(
            f"replay: method {method.type} cannot be combined with it, since "
            f"{reason if described.trains else 'it trains nothing'}; allowed are erl and rlvr"
        )
    if not isinstance(rollouts.selection, UniformSelection):
        raise ValueError(
            f"rollouts.selection.type: {rollouts.selection.type}; with replay the only allowed selection is "
            "uniform, since replay chooses tasks itself; or set replay: off"
        )
    if rollouts.group_size < 2:
        raise ValueError(
            f"rollouts.group_size: {rollouts.group_size}; with replay a group is one stored attempt and "
            "fresh ones, so that at least 2 are needed; or set replay: off"
        )
    if most_replayed(replay.share, rollouts.tasks_per_iteration) < 1:
        raise ValueError(
            f"replay.share: {replay.share:g} of rollouts.tasks_per_iteration: "
            f"{rollouts.tasks_per_iteration} is less than one task; raise one of them, or set replay: off"
        )
    if pipeline.lag and replay.importance == "off":
        raise ValueError(
            f"pipeline.lag: {pipeline.lag}; with replay.importance: off nothing corrects for the "
            "older policy; set importance to behaviour or trainer, or lag to 0"
        )
    _require_young(replay.max_age, pipeline)


def _require_young(replay_age: int | None, pipeline: PipelineConfig) -> None:
    """Raise ValueError where a replayed attempt may be too old for an update that does not drop it. Its age
    is the iterations since it was stored, plus the lag of the policy that sampled it."""
    if pipeline.max_age is None or pipeline.too_old == "drop":
        return
    if replay_age is None or replay_age + pipeline.lag > pipeline.max_age:
        most = pipeline.max_age - pipeline.lag
        allowed = f"1 to {most}" if most > 0 else "replay: off"
        raise ValueError(
            f"replay.max_age: {'null' if replay_age is None else replay_age}; allowed with "
            f"pipeline.max_age: {pipeline.max_age}, pipeline.lag: {pipeline.lag} and pipeline.too_old: "
            f"wait is {allowed}, since older attempts would be replayed; or set pipeline.too_old: drop"
        )
