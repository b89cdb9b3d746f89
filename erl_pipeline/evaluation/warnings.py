"""Finding what a run should warn of, from the numbers of its stages and the rows of its rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from erl_pipeline.config.store import WarningKind, WarningsConfig
from erl_pipeline.episodes.roles import NEVER_TRAINED
from erl_pipeline.evaluation.iterations import StageNumbers
from erl_pipeline.stages.training.update_policy import GROUPS, ZERO_ADVANTAGE_GROUPS
from storage.tables.scored import was_scored

ROWS = ("role", "finish_reason", "truncated")
"""The columns of rollouts that warnings look at."""

_STEPS = "optimizer_steps"


@dataclass(frozen=True)
class Found:
    """Something to warn of: what was found, in a sentence, and the setting to look at."""

    kind: WarningKind
    text: str
    setting: str


def settings_warnings(settings: WarningsConfig, group_size: int) -> Iterator[Found]:
    """Warnings from the settings, before anything runs."""
    if settings.no_advantage is not None and group_size == 1:
        yield Found(
            "group_size",
            "Each group has one trajectory, so no trajectory has an advantage and reinforcement learning "
            "changes nothing.",
            "rollouts.group_size",
        )


def update_warnings(
    settings: WarningsConfig, iterations: Sequence[Sequence[StageNumbers]]
) -> Iterator[Found]:
    """Warnings from the updates of the newest iterations.

    Args:
        iterations: the stages of the newest iterations, the oldest first. In the last one everything is
            checked; in the earlier ones, only whether there was an advantage.
    """
    newest = [stage for stage in iterations[-1] if _is_update(stage)]
    wanted = settings.no_advantage
    for stage in newest:
        if wanted is not None and _without_advantage_in_a_row(stage.stage, iterations) >= wanted:
            row = "this iteration" if wanted == 1 else f"{wanted} iterations in a row"
            yield Found(
                "no_advantage",
                f"In {row} no trajectory of {stage.stage} had an advantage: all rewards of each "
                "group were equal, so nothing is learned by reinforcement. Tasks are too hard, too easy, or "
                "the reward cannot tell attempts apart.",
                "rollouts.group_size, rollouts.selection and the environment's reward",
            )
        numbers = _numbers(stage)
        if not numbers[_STEPS]:
            continue
        entropy, mismatch = numbers["entropy"], numbers["mismatch_mean"]
        if settings.entropy is not None and entropy < settings.entropy:
            yield Found(
                "entropy",
                f"The entropy of the policy has fallen to {entropy:.3g} nats a token in {stage.stage}: it "
                "hardly explores any more.",
                "sampling.temperature, objective.entropy_coefficient and optimizer.learning_rate",
            )
        if settings.mismatch is not None and mismatch > settings.mismatch:
            yield Found(
                "mismatch",
                f"Sampler and trainer differ by {mismatch:.3g} nats a token on average in {stage.stage}: "
                "what is trained is not quite the policy that sampled.",
                "objective.correction and the dtype of engine and policy",
            )


def rollout_warnings(settings: WarningsConfig, rows: pl.DataFrame) -> Iterator[Found]:
    """Warnings from an iteration's trajectories; `rows` has the columns `ROWS`."""
    attempted = rows.filter(~pl.col("role").is_in(sorted(NEVER_TRAINED)))
    trained = attempted.filter(was_scored())
    failed = attempted.height - trained.height
    if settings.not_scored is not None and failed and failed >= settings.not_scored * attempted.height:
        yield Found(
            "not_scored",
            f"{_share_text(failed / attempted.height)} of {attempted.height:,} trajectories were not scored, "
            "because the environment or its scorer failed, so nothing is learned from them.",
            "the environment, its servers and rollouts.step_seconds; `erl-pipeline episodes list RUN "
            "--outcome not_scored` names the episodes",
        )
    if settings.ill_formed is not None:
        ill_formed = pl.col("finish_reason") == "ill_formed"
        shares = trained.group_by("role").agg(share=ill_formed.mean(), count=pl.len()).sort("role")
        for role, share, count in shares.rows():
            if share >= settings.ill_formed:
                yield Found(
                    "ill_formed",
                    f"{_share_text(share)} of {count:,} texts of role {role} are ill-formed, so nothing in "
                    "them is used.",
                    "the prompt and the limit of tokens that the method has for that role",
                )
    if settings.cut_off is not None and len(trained):
        share = sum(trained["truncated"]) / len(trained)
        if share >= settings.cut_off:
            yield Found(
                "cut_off",
                f"{_share_text(share)} of {len(trained):,} trajectories were cut off at the limit of tokens "
                "before they ended.",
                "sampling.max_new_tokens",
            )


def _share_text(share: float) -> str:
    return "All" if share == 1.0 else f"{share:.0%}"


def _is_update(stage: StageNumbers) -> bool:
    return stage.kind == "checkpoint" and any(name.startswith(f"{GROUPS}_") for name in _numbers(stage))


def _numbers(stage: StageNumbers) -> Mapping[str, float]:
    return {**stage.counters, **stage.metrics}


def _without_advantage_in_a_row(name: str, iterations: Sequence[Sequence[StageNumbers]]) -> int:
    """How many of the newest iterations in a row had an update of this name without any advantage."""
    found = 0
    for stages in reversed(iterations):
        numbers = [_numbers(stage) for stage in stages if stage.stage == name]
        if not numbers or not all(map(_is_without_advantage, numbers)):
            break
        found += 1
    return found


def _is_without_advantage(counters: Mapping[str, float]) -> bool:
    groups = _sum_over_roles(counters, GROUPS)
    return groups > 0 and groups == _sum_over_roles(counters, ZERO_ADVANTAGE_GROUPS)


def _sum_over_roles(counters: Mapping[str, float], name: str) -> float:
    return sum(count for counter, count in counters.items() if counter.startswith(f"{name}_"))
